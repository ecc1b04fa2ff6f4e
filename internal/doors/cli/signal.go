package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// signalled is the cause of the end of a context that a signal ended.
type signalled struct{ signal syscall.Signal }

func (s *signalled) Error() string { return s.signal.String() }

// SignalContext returns a context that SIGINT, SIGTERM or SIGHUP ends, once; [Run]
// then knows which. It is [signal.NotifyContext] otherwise.
func SignalContext(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-came:
			cancel(&signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(came)
		cancel(nil)
	}
}

// interrupted is the end of a command whose ctx has ended: 128 and the number of
// the signal.
func interrupted(ctx context.Context) *exit {
	code := 128 + int(syscall.SIGINT)
	if s, ok := errors.AsType[*signalled](context.Cause(ctx)); ok {
		code = 128 + int(s.signal)
	}
	return &exit{code: code, err: errors.New("interrupted")}
}
