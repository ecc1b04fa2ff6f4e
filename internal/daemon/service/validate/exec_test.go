package validate

import (
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// A command that becomes a job is not killed by the default of a command that
// the caller waits for.
func TestExecTimes(t *testing.T) {
	hour := sandbox.DetachedTimeout.Milliseconds()
	longest := sandbox.MaxExecTimeout.Milliseconds()
	for name, tt := range map[string]struct {
		req  sandbox.ExecRequest
		want int64
	}{
		"waited for":                {sandbox.ExecRequest{}, sandbox.DefaultExecTimeout.Milliseconds()},
		"detached":                  {sandbox.ExecRequest{DetachAfterMS: 45_000}, hour},
		"detached late":             {sandbox.ExecRequest{DetachAfterMS: longest}, hour},
		"never detached":            {sandbox.ExecRequest{DetachAfterMS: longest + 1}, sandbox.DefaultExecTimeout.Milliseconds()},
		"detached, with a limit":    {sandbox.ExecRequest{DetachAfterMS: 45_000, TimeoutMS: 70_000}, 70_000},
		"detached, without a limit": {sandbox.ExecRequest{DetachAfterMS: 45_000, TimeoutMS: -1}, 0},
		"detached, with the most":   {sandbox.ExecRequest{DetachAfterMS: 45_000, TimeoutMS: hour}, hour},
		"background":                {sandbox.ExecRequest{Background: true}, 0},
	} {
		if err := execTimes(&tt.req); err != nil || tt.req.TimeoutMS != tt.want {
			t.Errorf("%s: timeout_ms %d, %v; want %d", name, tt.req.TimeoutMS, err, tt.want)
		}
	}
	for name, req := range map[string]sandbox.ExecRequest{
		"waited for": {TimeoutMS: longest + 1},
		"detached":   {DetachAfterMS: 45_000, TimeoutMS: hour + 1},
	} {
		if err := execTimes(&req); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s, with more than the most: %v", name, err)
		}
	}
}
