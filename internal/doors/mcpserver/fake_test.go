package mcpserver

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a service that runs imaginary commands: "sleep" until it is
// cancelled or for five minutes, "panic", "fail", "hold" prints and then waits
// for release, and what else it is given it prints. The tests of whole conversations use the real one.
type fake struct {
	sandbox.Service
	started chan string
	ended   chan error
	release chan struct{}

	mu      sync.Mutex
	callers []sandbox.Caller // guarded by mu
	waits   []time.Duration  // of commands, until they become jobs; guarded by mu
}

func newFake() *fake {
	return &fake{started: make(chan string, 16), ended: make(chan error, 16), release: make(chan struct{})}
}

func (f *fake) note(ctx context.Context) {
	c, _ := sandbox.CallerOf(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.callers = append(f.callers, c)
}

func (f *fake) seen() []sandbox.Caller {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sandbox.Caller(nil), f.callers...)
}

func (f *fake) detachTimes() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Duration(nil), f.waits...)
}

func (f *fake) Exec(ctx context.Context, id string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	f.note(ctx)
	f.mu.Lock()
	f.waits = append(f.waits, time.Duration(req.DetachAfterMS)*time.Millisecond)
	f.mu.Unlock()
	job := &sandbox.Job{ID: "job-1", SandboxID: id, State: sandbox.JobExited, StartedAt: time.Now()}
	switch {
	case req.Shell == "panic":
		panic("a secret: hunter2")
	case req.Shell == "fail":
		return nil, sandbox.Wrap(sandbox.CodeInternal, context.DeadlineExceeded, "internal error; see the server's log for details")
	case strings.HasPrefix(req.Shell, "sleep"):
		f.started <- id
		var err error
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(5 * time.Minute):
		}
		f.ended <- err
		if err != nil {
			return nil, err
		}
	case req.Shell == "hold":
		if err := sink(sandbox.JobEvent{Stream: sandbox.Stderr, Data: []byte("early\n")}); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.release:
		}
	default:
		if err := sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: []byte(req.Shell)}); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	job.EndedAt = &now
	return job, nil
}

func (f *fake) List(ctx context.Context, _ sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	f.note(ctx)
	return &sandbox.List[sandbox.Sandbox]{}, nil
}

func (f *fake) ReadFile(ctx context.Context, id string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	f.note(ctx)
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such file; list the directory with file_list")
}
