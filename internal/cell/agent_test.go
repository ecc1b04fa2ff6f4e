package cell

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"connectrpc.com/connect"
)

// TestStartError checks that a start says whether the sandbox ended, refuses, or is only
// slow.
func TestStartError(t *testing.T) {
	late := connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	for name, test := range map[string]struct {
		err   error
		ended string
		code  connect.Code
		want  string
	}{
		"slow":    {err: late, code: connect.CodeDeadlineExceeded},
		"ended":   {err: late, ended: "gVisor ended", code: connect.CodeInternal},
		"refuses": {err: connect.NewError(connect.CodeInvalidArgument, errors.New("no such user")), code: connect.CodeInvalidArgument, want: "no such user"},
		"broken":  {err: connect.NewError(connect.CodeUnavailable, io.EOF), code: connect.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t.Context())
			c.log = slog.New(slog.DiscardHandler)
			if test.ended != "" {
				c.why = test.ended
				close(c.ended)
			}
			err := c.fail(c.agentError(test.err))
			if <-c.begun == nil {
				t.Error("it did not fail")
			}
			told, ok := errors.AsType[*connect.Error](err)
			if !ok || told.Code() != test.code || test.want != "" && told.Message() != test.want {
				t.Errorf("it says %v", err)
			}
		})
	}
}
