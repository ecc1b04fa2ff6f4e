package enginetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

var running = &engine.Status{Running: true}

func testCreateAndUse(t *testing.T, s *suite) {
	s.start(t)
	i := s.create(t, "sbx-one")
	if i.ID() != "sbx-one" {
		t.Errorf("id is %q", i.ID())
	}
	c := client(t, i)
	if _, err := c.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := output(t, c, "echo hello; echo $((6*7))"); got != "hello\n42" {
		t.Errorf("the command printed %q", got)
	}
	st, err := i.Stats(t.Context())
	must(t, err)
	if st.CPUNanos <= 0 || st.MemoryBytes <= 0 || st.PrivateBytes < 0 || st.DiskBytes < 0 {
		t.Errorf("stats are %+v", st)
	}
	// A second connection at the same time.
	if _, err := client(t, i).Health(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantStatus(t, "sbx-one", running)
}

func testDefaults(t *testing.T, s *suite) {
	s.start(t)
	spec := s.Spec(t)
	spec.ID, spec.Env = "sbx-one", map[string]string{"COVE_TEST": "it's $HOME"}
	i, err := s.e.Create(t.Context(), spec)
	must(t, err)
	if got := output(t, client(t, i), `echo "$COVE_TEST"`); got != "it's $HOME" {
		t.Errorf("the environment holds %q", got)
	}
	if _, err := s.e.Create(t.Context(), spec); err == nil {
		t.Error("an id was used twice")
	}
	s.wantStatus(t, "sbx-one", running)
}

func testUnknown(t *testing.T, s *suite) {
	e := s.start(t)
	if _, err := e.Open(t.Context(), "sbx-none"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Open: %v, want ErrNotFound", err)
	}
	if err := e.Destroy(t.Context(), "sbx-none"); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b", "\x00"} {
		if _, err := e.Open(t.Context(), id); err == nil {
			t.Errorf("Open(%q) found something", id)
		}
	}
	all, err := e.List(t.Context())
	must(t, err)
	if len(all) != 0 {
		t.Errorf("List has %v", all)
	}
}

func testList(t *testing.T, s *suite) {
	s.start(t)
	s.create(t, "sbx-one")
	s.create(t, "sbx-two")
	s.wantStatus(t, "sbx-one", running)
	s.wantStatus(t, "sbx-two", running)
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	s.wantGone(t, "sbx-one")
	s.wantStatus(t, "sbx-two", running)
}

func testDestroy(t *testing.T, s *suite) {
	s.start(t)
	i := s.create(t, "sbx-one")
	output(t, client(t, i), "echo data > file; mkdir -p a/b; chmod 000 a")
	silent := func(after string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if conn, err := i.Dial(ctx); err == nil {
			conn.Close()
			if _, err := client(t, i).Health(ctx); err == nil {
				t.Errorf("the agent answers after %s", after)
			}
		}
	}
	if ender, ok := s.e.(engine.Ender); ok {
		for _, id := range []string{"sbx-one", "sbx-one", "sbx-none"} {
			must(t, ender.End(t.Context(), id))
		}
		silent("End")
	}
	for range 2 {
		must(t, s.e.Destroy(t.Context(), "sbx-one"))
		s.wantGone(t, "sbx-one")
	}
	silent("Destroy")
	select {
	case st := <-s.failed:
		t.Errorf("Destroy was reported as a failure: %+v", st)
	case <-time.After(200 * time.Millisecond):
	}
}

func testDestroyBusy(t *testing.T, s *suite) {
	s.start(t)
	i := s.create(t, "sbx-one")
	c := client(t, i)
	started := make(chan struct{}, 2)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), "job-1", &sandbox.ExecRequest{Shell: "trap '' TERM; echo ready; while :; do sleep 1; done"}, func(e sandbox.JobEvent) error {
			if e.Stream == sandbox.Stdout {
				started <- struct{}{}
			}
			return nil
		})
		ended <- err
	}()
	<-started
	s.destroyListed(t, "sbx-one")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the command ended well")
		}
	case <-time.After(patience):
		t.Error("the command's stream is open after Destroy")
	}
}

func testRestart(t *testing.T, s *suite) {
	s.start(t)
	first := s.create(t, "sbx-one")
	c := client(t, first)
	_, err := c.Exec(t.Context(), "job-1", &sandbox.ExecRequest{Shell: "echo before; sleep 300", Background: true}, nil)
	must(t, err)
	c.Close()
	s.start(t)
	s.wantStatus(t, "sbx-one", running)
	// An Open by a caller that has gone does not change the instance.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.e.Open(gone, "sbx-one"); errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Open of a living instance by a caller who has gone: %v", err)
	}
	i, err := s.e.Open(t.Context(), "sbx-one")
	must(t, err)
	c = client(t, i)
	job, err := c.GetJob(t.Context(), "job-1", 0)
	must(t, err)
	if job.State != sandbox.JobRunning {
		t.Errorf("after a restart the job is %+v", job)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		out, err := c.ReadOutput(t.Context(), "job-1", &sandbox.OutputRequest{Stream: sandbox.Stdout, Limit: 100})
		must(t, err)
		if string(out.Data) == "before\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a restart the output is %q", out.Data)
		}
	}
	if got := output(t, c, "echo after"); got != "after" {
		t.Errorf("after a restart a command printed %q", got)
	}
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	s.wantGone(t, "sbx-one")
}

func testLimits(t *testing.T, s *suite) {
	s.start(t)
	i := s.create(t, "sbx-one")
	_, err := i.SetLimits(t.Context(), sandbox.Resources{VCPUs: 2, MemoryMiB: 600, MaxPIDs: 100})
	must(t, err)
	_, err = i.SetLimits(t.Context(), sandbox.Resources{})
	must(t, err)
	for _, u := range append(i.Unenforced(), "") {
		if len(u) > 500 {
			t.Errorf("unenforced says %q", u)
		}
	}
	if got := output(t, client(t, i), "echo ok"); got != "ok" {
		t.Errorf("with new limits a command printed %q", got)
	}
}

func testCancelledCreate(t *testing.T, s *suite) {
	s.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spec := s.Spec(t)
	spec.ID = "sbx-one"
	if _, err := s.e.Create(ctx, spec); err == nil {
		t.Error("Create with a cancelled context succeeded")
	}
	s.wantGone(t, "sbx-one")
}

// testCancelDuringCreate cancels a create at many different moments.
func testCancelDuringCreate(t *testing.T, s *suite) {
	s.start(t)
	begin := time.Now()
	s.create(t, "sbx-measure")
	whole := time.Since(begin)
	const moments = 8
	for n := range moments {
		id := fmt.Sprintf("sbx-c%d", n)
		spec := s.Spec(t)
		spec.ID = id
		ctx, cancel := context.WithTimeout(t.Context(), whole*time.Duration(n)/moments)
		_, err := s.e.Create(ctx, spec)
		cancel()
		if err == nil {
			must(t, s.e.Destroy(t.Context(), id))
		}
		s.wantGone(t, id)
	}
	s.wantStatus(t, "sbx-measure", running)
	select {
	case st := <-s.failed:
		t.Errorf("a cancelled create was reported as a failure: %+v", st)
	default:
	}
}

func testFailure(t *testing.T, s *suite) {
	s.start(t)
	i := s.create(t, "sbx-one")
	s.create(t, "sbx-two")
	c := client(t, i)
	output(t, c, "echo ok")
	s.Fail(t, "sbx-one")
	s.wantNotice(t, "sbx-one")
	s.wantStatus(t, "sbx-one", &engine.Status{})
	s.wantStatus(t, "sbx-two", running)
	if _, err := s.e.Open(t.Context(), "sbx-one"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Open of a failed instance: %v, want ErrNotFound", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := c.Health(ctx); err == nil {
		t.Error("the agent of a failed instance answers")
	}
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	s.wantGone(t, "sbx-one")
	select {
	case st := <-s.failed:
		t.Errorf("a second notice: %+v", st)
	case <-time.After(200 * time.Millisecond):
	}
}

func testFailureAfterRestart(t *testing.T, s *suite) {
	s.start(t)
	s.create(t, "sbx-one")
	s.start(t)
	if _, err := s.e.Open(t.Context(), "sbx-one"); err != nil {
		t.Fatal(err)
	}
	s.Fail(t, "sbx-one")
	s.wantNotice(t, "sbx-one")
	s.wantStatus(t, "sbx-one", &engine.Status{})
}

// testFailureWhileClosed kills an instance while no daemon runs: the next engine reports
// it as failed, or does not find it at all.
func testFailureWhileClosed(t *testing.T, s *suite) {
	s.start(t)
	s.create(t, "sbx-one")
	must(t, s.e.Close())
	s.e = nil
	s.Fail(t, "sbx-one")
	s.start(t)
	all, err := s.e.List(t.Context())
	must(t, err)
	for _, st := range all {
		if st.ID == "sbx-one" && (st.Running || st.Reason == "") {
			t.Errorf("List has %+v, want it failed with a reason", st)
		}
	}
	if _, err := s.e.Open(t.Context(), "sbx-one"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Open: %v, want ErrNotFound", err)
	}
	must(t, s.e.Destroy(t.Context(), "sbx-one"))
	s.wantGone(t, "sbx-one")
}

func testConcurrentCreates(t *testing.T, s *suite) {
	s.start(t)
	const n = 4
	specs := make([]engine.Spec, n)
	for k := range n {
		specs[k] = s.Spec(t)
		specs[k].ID = fmt.Sprintf("sbx-p%d", k)
	}
	errs := make(chan error, n)
	for _, spec := range specs {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), s.CreateTimeout)
			defer cancel()
			_, err := s.e.Create(ctx, spec)
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, spec := range specs {
		s.wantStatus(t, spec.ID, running)
	}
	for _, spec := range specs {
		go func() { errs <- s.e.Destroy(t.Context(), spec.ID) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, spec := range specs {
		s.wantGone(t, spec.ID)
	}
}
