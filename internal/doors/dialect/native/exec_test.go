package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// slow is a service whose command outlives the call: what takes 45 seconds
// with a real one. It writes output and hands the command over.
type slow struct {
	sandbox.Service
	got sandbox.ExecRequest
}

func (s *slow) Exec(_ context.Context, _ string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	s.got = req
	if err := sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: []byte("so far\n")}); err != nil {
		return nil, err
	}
	return &sandbox.Job{ID: "job-9", State: sandbox.JobRunning, StartedAt: time.Now()}, nil
}

func TestDetach(t *testing.T) {
	tests := []struct {
		name, args  string
		want        sandbox.ExecRequest
		detachAfter time.Duration
	}{
		{"default", `{"sandbox":"s","shell":"make"}`, sandbox.ExecRequest{Shell: "make", DetachAfterMS: 45_000}, 0},
		{"long", `{"sandbox":"s","shell":"make","timeout_ms":600000}`, sandbox.ExecRequest{Shell: "make", TimeoutMS: 600_000, DetachAfterMS: 45_000}, 0},
		{"as the server says", `{"sandbox":"s","shell":"make"}`, sandbox.ExecRequest{Shell: "make", DetachAfterMS: 2000}, 2 * time.Second},
		{"background", `{"sandbox":"s","shell":"make","background":true}`, sandbox.ExecRequest{Shell: "make", Background: true}, 0},
		{"background with a limit", `{"sandbox":"s","shell":"make","background":true,"timeout_ms":5}`, sandbox.ExecRequest{Shell: "make", Background: true, TimeoutMS: 5}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := &slow{}
			var status []string
			c := &dialect.Call{Service: svc, Args: json.RawMessage(tt.args), DetachAfter: tt.detachAfter, Status: func(s string) { status = append(status, s) }, Output: func(dialect.Output) {}, Log: slog.New(slog.DiscardHandler)}
			res, err := dialect.Invoke(t.Context(), New(), named("sandbox_exec"), c)
			if err != nil || res.IsError {
				t.Fatal(res, err)
			}
			if len(svc.got.Stdin) == 0 {
				svc.got.Stdin = nil
			}
			if diff := cmp.Diff(tt.want, svc.got); diff != "" {
				t.Error(diff)
			}
			got := res.StructuredContent.(execResult)
			if got.State != sandbox.JobRunning || got.JobID != "job-9" || got.Stdout != "so far\n" || got.ExitCode != nil || !strings.Contains(got.Hint, "job_get") {
				t.Errorf("%+v", got)
			}
			if killed := strings.Contains(got.Hint, "it is killed"); killed != (tt.want.TimeoutMS > 0 || !tt.want.Background) {
				t.Errorf("hint %q of a command with a timeout of %d ms", got.Hint, tt.want.TimeoutMS)
			}
			if hour := strings.Contains(got.Hint, "3600.0 s"); hour != (tt.want.TimeoutMS == 0 && !tt.want.Background) {
				t.Errorf("hint %q of a command with a timeout of %d ms", got.Hint, tt.want.TimeoutMS)
			}
			if diff := cmp.Diff([]string{"running", "running; 7 bytes of output"}, status); diff != "" {
				t.Error(diff)
			}
		})
	}
}
