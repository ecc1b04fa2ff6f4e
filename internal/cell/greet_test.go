package cell

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"connectrpc.com/connect"
)

// Who waits for a sandbox is told whether it ended, refuses, or is only slow.
func TestNotGreeted(t *testing.T) {
	late := connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
	for name, test := range map[string]struct {
		err   error
		ended string
		want  Ready
	}{
		"slow":    {err: late, want: Ready{Silent: true}},
		"ended":   {err: late, ended: "gVisor ended", want: Ready{}},
		"refuses": {err: connect.NewError(connect.CodeInvalidArgument, errors.New("no such user")), want: Ready{Refused: "no such user"}},
		"broken":  {err: connect.NewError(connect.CodeUnavailable, io.EOF), want: Ready{}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cell{log: slog.New(slog.DiscardHandler), ended: make(chan struct{})}
			if test.ended != "" {
				c.why = test.ended
				close(c.ended)
			}
			var got Ready
			if code := c.fail(c.notGreeted(test.err), func(r Ready) { got = r }); code == 0 {
				t.Error("it did not fail")
			}
			if got.Error == "" || got.Silent != test.want.Silent || got.Refused != test.want.Refused {
				t.Errorf("it says %+v", got)
			}
		})
	}
}
