// Package enginetest is the test suite of [engine.Engine], which every implementation
// must pass.
package enginetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// patience is how long the suite waits for an expected event.
const patience = time.Minute

// Subject is an implementation under test, with its own state.
type Subject struct {
	// Open returns a new engine over the state, as after a restart of the daemon. The
	// previous engine has been closed.
	Open func(t *testing.T) engine.Engine
	// Spec returns the spec of a small instance. The suite sets ID and Env.
	Spec func(t *testing.T) engine.Spec
	// Fail makes an instance fail without a call to the engine.
	Fail func(t *testing.T, id string)
	// Traces, if not nil, lists everything that is left of an instance: processes, mounts,
	// directories.
	Traces func(t *testing.T, id string) []string
	// CreateTimeout limits one Create; 0 means 30 s.
	CreateTimeout time.Duration
}

// Run runs the suite. fresh returns a subject without instances.
func Run(t *testing.T, fresh func(t *testing.T) Subject) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"CreateAndUse", testCreateAndUse},
		{"Defaults", testDefaults},
		{"Unknown", testUnknown},
		{"List", testList},
		{"Destroy", testDestroy},
		{"DestroyBusy", testDestroyBusy},
		{"Restart", testRestart},
		{"Limits", testLimits},
		{"CancelledCreate", testCancelledCreate},
		{"CancelDuringCreate", testCancelDuringCreate},
		{"Failure", testFailure},
		{"FailureAfterRestart", testFailureAfterRestart},
		{"FailureWhileClosed", testFailureWhileClosed},
		{"ConcurrentCreates", testConcurrentCreates},
		{"DialPort", testDialPort},
		{"SetNetwork", testSetNetwork},
		{"NetworkLog", testNetworkLog},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, newSuite(fresh(t)))
		})
	}
}

// suite is the subject of one test, with its open engine.
type suite struct {
	Subject
	e      engine.Engine
	failed chan engine.Status
}

func newSuite(subject Subject) *suite {
	if subject.CreateTimeout == 0 {
		subject.CreateTimeout = 30 * time.Second
	}
	return &suite{Subject: subject}
}

// start opens the engine. If it was open, it is closed first.
func (s *suite) start(t *testing.T) engine.Engine {
	t.Helper()
	if s.e != nil {
		must(t, s.e.Close())
	}
	e := s.Open(t)
	failed := make(chan engine.Status, 64)
	e.Notify(func(st engine.Status) { failed <- st })
	s.e, s.failed = e, failed
	t.Cleanup(func() {
		if s.e != e {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		all, err := e.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, st := range all {
			if err := e.Destroy(ctx, st.ID); err != nil {
				t.Error(err)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (s *suite) create(t *testing.T, id string) engine.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.CreateTimeout)
	defer cancel()
	spec := s.Spec(t)
	spec.ID = id
	i, err := s.e.Create(ctx, spec)
	must(t, err)
	return i
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, i engine.Instance) *agentclient.Client {
	c := agentclient.New(i.ID(), i.Dial)
	t.Cleanup(c.Close)
	return c
}

// output runs a shell line in an instance and returns what it printed.
func output(t *testing.T, c *agentclient.Client, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out strings.Builder
	job, err := c.Exec(ctx, "", &sandbox.ExecRequest{Shell: line, TimeoutMS: patience.Milliseconds()}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	must(t, err)
	if job.State != sandbox.JobExited || job.ExitCode != 0 {
		t.Fatalf("%q ended as %+v with %q", line, job, out.String())
	}
	return strings.TrimSpace(out.String())
}

// destroyListed destroys an instance, which must be in the list until nothing of it is left.
func (s *suite) destroyListed(t *testing.T, id string) {
	t.Helper()
	destroyed := make(chan error, 1)
	go func() { destroyed <- s.e.Destroy(t.Context(), id) }()
	for {
		all, err := s.e.List(t.Context())
		must(t, err)
		if !slices.ContainsFunc(all, func(st engine.Status) bool { return st.ID == id }) {
			break
		}
		select {
		case err := <-destroyed:
			must(t, err)
			s.wantGone(t, id)
			return
		default:
		}
	}
	s.wantGone(t, id)
	must(t, <-destroyed)
}

// wantStatus checks an instance's entry in the list; nil means that there is none.
func (s *suite) wantStatus(t *testing.T, id string, want *engine.Status) {
	t.Helper()
	all, err := s.e.List(t.Context())
	must(t, err)
	i := slices.IndexFunc(all, func(st engine.Status) bool { return st.ID == id })
	switch {
	case want == nil && i >= 0:
		t.Fatalf("List has %+v, want nothing of it", all[i])
	case want != nil && i < 0:
		t.Fatalf("List has no %s", id)
	case want != nil && all[i].Running != want.Running:
		t.Fatalf("List has %+v, want running %v", all[i], want.Running)
	case want != nil && !want.Running && all[i].Reason == "":
		t.Fatalf("List has %+v without a reason", all[i])
	}
}

func (s *suite) wantGone(t *testing.T, id string) {
	t.Helper()
	s.wantStatus(t, id, nil)
	if _, err := s.e.Open(t.Context(), id); !errors.Is(err, engine.ErrNotFound) {
		t.Fatalf("Open of what is gone: %v, want ErrNotFound", err)
	}
	if s.Traces != nil {
		if left := s.Traces(t, id); len(left) > 0 {
			t.Fatalf("left of %s: %v", id, left)
		}
	}
}

// wantNotice waits for the notice of a failure.
func (s *suite) wantNotice(t *testing.T, id string) {
	t.Helper()
	select {
	case st := <-s.failed:
		if st.ID != id || st.Running || st.Reason == "" {
			t.Fatalf("notice %+v, want the failure of %s with a reason", st, id)
		}
	case <-time.After(patience):
		t.Fatalf("no notice of the failure of %s", id)
	}
}
