package toolbox

import (
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// dirs is a service that keeps which directories there are, and whose commands fail.
type dirs struct {
	sandbox.Service
	all  map[string]bool
	exec error // of starting a command
}

func (d *dirs) ListJobs(context.Context, string, sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return &sandbox.List[sandbox.Job]{}, nil
}

func (d *dirs) MakeDir(_ context.Context, _ string, req sandbox.MakeDirRequest) (*sandbox.FileInfo, error) {
	d.all[req.Path] = true
	return &sandbox.FileInfo{}, nil
}

func (d *dirs) WriteFile(_ context.Context, _ string, req sandbox.WriteFileRequest, _ io.Reader) (*sandbox.FileInfo, error) {
	d.all[strings.TrimSuffix(req.Path, "/command")] = true
	return &sandbox.FileInfo{}, nil
}

func (d *dirs) DeleteFile(_ context.Context, _, path string, _ bool) error {
	delete(d.all, path)
	return nil
}

func (d *dirs) Exec(context.Context, string, sandbox.ExecRequest, sandbox.JobSink) (*sandbox.Job, error) {
	return nil, d.exec
}

func (d *dirs) WriteInput(context.Context, string, string, []byte, bool) error {
	return sandbox.Errorf(sandbox.CodeConflict, "the job has ended")
}

// A session whose shell does not start leaves no directory. Neither does a command that
// the shell did not get, which would otherwise be listed as one that ran.
func TestSessionLeavesNothing(t *testing.T) {
	svc := &dirs{all: map[string]bool{}, exec: sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many commands")}
	h := New(Config{Service: svc, Log: slog.New(slog.DiscardHandler)})
	ctx := gate.WithSandbox(t.Context(), &sandbox.Sandbox{ID: "sbx-1"})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/process/session", strings.NewReader(`{"sessionId":"s"}`)).WithContext(ctx))
	if w.Code != 429 || len(svc.all) > 0 {
		t.Errorf("%d %s, left %v", w.Code, w.Body, svc.all)
	}
	p := &plane{svc, slog.New(slog.DiscardHandler)}
	_, err := p.begin(ctx, &session{id: "s", dir: dirOf("s"), job: &sandbox.Job{ID: "job-1", SandboxID: "sbx-1"}}, "true", modeWait)
	if answer.Of(err).Code != answer.SessionEnded || len(svc.all) > 0 {
		t.Errorf("%v, left %v", err, svc.all)
	}
}
