package service

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// remembered returns the kept events as short texts.
func (w *harness) remembered(ctx context.Context, req sandbox.FollowEventsRequest) (texts []string) {
	w.t.Helper()
	req.Once = true
	if req.After == "" {
		req.After = sandbox.EventsOldest
	}
	must(w.t, w.FollowEvents(ctx, req, func(e sandbox.Event) error {
		texts = append(texts, eventText(e))
		return nil
	}))
	return texts
}

func eventText(e sandbox.Event) string {
	switch {
	case e.Sandbox != nil:
		return fmt.Sprintf("%s %s %s", e.Kind, e.Sandbox.Name, e.Sandbox.State)
	case e.Job != nil:
		return fmt.Sprintf("%s %s %d", e.Kind, e.Job.State, e.Job.ExitCode)
	case e.Snapshot != nil:
		return fmt.Sprintf("%s %s", e.Kind, e.Snapshot.Name)
	}
	return string(e.Kind)
}

// TestEventsOfALife follows a sandbox from its creation to its end.
func TestEventsOfALife(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.shell(x.ID, "true")
	snap, err := w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{Name: "s"})
	must(t, err)
	w.pause("x")
	_, err = w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	_, err = w.DeleteSnapshot(ctx, snap.ID)
	must(t, err)
	_, err = w.Kill(ctx, "x")
	must(t, err)
	want := []string{
		"begun", "sandbox x creating", "sandbox x running", "job running 0", "job exited 0", "snapshot s",
		"sandbox x paused", "sandbox x running", "snapshot_deleted", "sandbox x stopping", "sandbox x killed",
	}
	kinds := sandbox.FollowEventsRequest{Sandbox: x.ID, Kinds: []sandbox.EventKind{sandbox.EventSandbox, sandbox.EventSnapshot, sandbox.EventSnapshotDeleted, sandbox.EventJob}}
	if diff := cmp.Diff(want, slices.Compact(w.remembered(ctx, kinds))); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
	jobs := sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventJob}}
	if got := w.remembered(ctx, jobs); !slices.Equal(got, []string{"begun", "job running 0", "job exited 0"}) {
		t.Errorf("of jobs is told %q", got)
	}
}

// TestEventsOfOthers checks that nobody gets events of another team's or namespace's
// sandboxes.
func TestEventsOfOthers(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	blue := as(t.Context(), "blue", sandbox.Scopes()...)
	if got := w.remembered(blue, sandbox.FollowEventsRequest{}); !slices.Equal(got, []string{"begun"}) {
		t.Errorf("another team is told %q", got)
	}
	caller, _ := sandbox.CallerOf(asRed(t))
	caller.Namespace = "elsewhere"
	if got := w.remembered(sandbox.WithCaller(t.Context(), caller), sandbox.FollowEventsRequest{}); !slices.Equal(got, []string{"begun"}) {
		t.Errorf("another namespace is told %q", got)
	}
	wantCode(t, w.FollowEvents(blue, sandbox.FollowEventsRequest{Sandbox: "x"}, nil), sandbox.CodeNotFound)
	nobody := as(t.Context(), "red", sandbox.ScopeFilesWrite)
	wantCode(t, w.FollowEvents(nobody, sandbox.FollowEventsRequest{}, nil), sandbox.CodeForbidden)
}

func TestEventsRequest(t *testing.T) {
	w := newHarness(t)
	for _, req := range []sandbox.FollowEventsRequest{
		{Kinds: []sandbox.EventKind{"begun"}}, {Kinds: []sandbox.EventKind{"sandbox", "nonsense"}},
		{After: string(make([]byte, maxEventID+1))}, {Kinds: []sandbox.EventKind{sandbox.EventNetwork}},
	} {
		wantCode(t, w.FollowEvents(asRed(t), req, nil), sandbox.CodeInvalid)
	}
}

// TestFollowEvents follows one sandbox live: the end of a background job, a pause, and what
// the sandbox tries to reach.
func TestFollowEvents(t *testing.T) {
	w := newHarness(t)
	ctx, cancel := context.WithCancel(asRed(t))
	defer cancel()
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.create(sandbox.CreateRequest{Name: "other"})
	got, done := make(chan sandbox.Event, 64), make(chan error, 1)
	follow := func(ctx context.Context, sink func(sandbox.Event) error) {
		go func() { done <- w.FollowEvents(ctx, sandbox.FollowEventsRequest{Sandbox: "x"}, sink) }()
	}
	until := func(what string) {
		t.Helper()
		for e := range got {
			if e.SandboxID != x.ID && e.Kind != sandbox.EventBegun {
				t.Errorf("an event of another sandbox: %s", eventText(e))
			}
			if eventText(e) == what {
				return
			}
		}
	}
	follow(ctx, func(e sandbox.Event) error { got <- e; return nil })
	until("begun")
	_, err := w.Exec(ctx, "x", sandbox.ExecRequest{Shell: "until [ -e go ]; do sleep 0.01; done; exit 3", Background: true}, nil)
	must(t, err)
	until("job running 0")
	w.shell(x.ID, "touch go")
	until("job exited 3")
	w.pause("x")
	until("sandbox x paused")
	_, err = w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	until("sandbox x running")
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Port: 7})
	until("network")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("leaving gave %v", err)
	}
	follow(asRed(t), func(sandbox.Event) error { return io.ErrShortWrite })
	if err := <-done; err != io.ErrShortWrite {
		t.Errorf("an error of the sink became %v", err)
	}
}

// TestEventsAfterRestart gets the end of a job that an earlier daemon has started, and of
// one that came into a sandbox by a merge. Jobs that begin meanwhile are not reported
// twice, and a paused sandbox is not resumed.
func TestEventsAfterRestart(t *testing.T) {
	w := newHarness(t)
	begin := func(name string) {
		_, err := w.Exec(asRed(t), name, sandbox.ExecRequest{Shell: "until [ -e go ]; do sleep 0.01; done; exit 3", Background: true}, nil)
		must(t, err)
	}
	x := w.create(sandbox.CreateRequest{Name: "x"})
	begin("x")
	w.create(sandbox.CreateRequest{Name: "y"})
	w.pause("y")
	w.restart()
	ctx, cancel := context.WithCancel(asRed(t))
	defer cancel()
	got, done := make(chan sandbox.Event, 64), make(chan error, 1)
	go func() {
		done <- w.FollowEvents(ctx, sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventJob}}, func(e sandbox.Event) error { got <- e; return nil })
	}()
	if e := <-got; e.Kind != sandbox.EventBegun {
		t.Fatalf("the first event is %s", eventText(e))
	}
	told := map[string]int{}
	until := func(box *sandbox.Sandbox, what string) {
		t.Helper()
		for told[box.ID+what] == 0 {
			e := <-got
			told[e.SandboxID+eventText(e)]++
		}
	}
	w.shell(x.ID, "touch go")
	until(x, "job exited 3")
	y, err := w.Get(asRed(t), "y")
	must(t, err)
	if y.State != sandbox.StatePaused {
		t.Fatalf("sandbox y is %s", y.State)
	}
	w.shell(x.ID, "rm go")
	child := w.fork("x", sandbox.ForkRequest{Name: "child"})[0]
	begin(child.ID)
	_, err = w.Merge(asRed(t), "x", sandbox.MergeRequest{Winner: child.ID})
	must(t, err)
	delete(told, x.ID+"job exited 3")
	w.shell(x.ID, "touch go; exit 4")
	until(x, "job exited 3")
	until(x, "job exited 4")
	cancel()
	<-done
	if told[x.ID+"job exited 0"] != 2 || told[x.ID+"job exited 3"] != 1 || told[x.ID+"job exited 4"] != 1 {
		t.Errorf("is told %v", told)
	}
	wait(t, func() bool { return len(w.awaitedIn(x.ID)) == 0 }, func() string { return "jobs are awaited that have ended" })
}

// However many jobs a sandbox claims to run, the daemon waits for few of them.
func TestFoundJobsAreBounded(t *testing.T) {
	w := newHarness(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	const n = maxFound + 8
	for range n {
		_, err := w.Exec(asRed(t), x.ID, sandbox.ExecRequest{Shell: "exec sleep 300", Background: true}, nil)
		must(t, err)
	}
	w.restart()
	wait(t, func() bool { return len(w.awaitedIn(x.ID)) == maxFound }, func() string { return fmt.Sprintf("%d jobs are awaited", len(w.awaitedIn(x.ID))) })
	if !w.askForJobs(w.handleOf(x.ID)) || len(w.awaitedIn(x.ID)) != maxFound {
		t.Errorf("%d jobs are awaited when the sandbox is asked again", len(w.awaitedIn(x.ID)))
	}
}

// The server keeps thousands of events, so none contains all of a long command.
func TestCommandsInEventsAreShort(t *testing.T) {
	w := newHarness(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	long := strings.Repeat("ü", 2000)
	if _, err := w.Exec(asRed(t), x.ID, sandbox.ExecRequest{Command: []string{"true", long, long}}, nil); err != nil {
		t.Fatal(err)
	}
	jobs := 0
	must(t, w.FollowEvents(asRed(t), sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventJob}, After: sandbox.EventsOldest, Once: true}, func(e sandbox.Event) error {
		if e.Job == nil {
			return nil
		}
		jobs++
		if all := strings.Join(e.Job.Command, ""); len(e.Job.Command) != 2 || len(all) > maxAnnounced+len("…") || !utf8.ValidString(all) {
			t.Errorf("the command is %d arguments of %d bytes", len(e.Job.Command), len(all))
		}
		return nil
	}))
	if jobs == 0 {
		t.Error("no job is told")
	}
}
