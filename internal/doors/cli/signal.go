package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// signalled is the cause of a context that a signal has cancelled.
type signalled struct{ signal syscall.Signal }

func (s *signalled) Error() string { return s.signal.String() }

// SignalContext is [signal.NotifyContext] for SIGINT, SIGTERM and SIGHUP, except that
// [Run] learns which signal it was.
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

// heedSignals has the next signal end the process at once, as if [SignalContext] had not
// been called.
func heedSignals() { signal.Reset(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) }

// interrupted returns the exit for a command whose ctx has ended: 128 plus the number
// of the signal.
func interrupted(ctx context.Context) *exit {
	code := 128 + int(syscall.SIGINT)
	if s, ok := errors.AsType[*signalled](context.Cause(ctx)); ok {
		code = 128 + int(s.signal)
	}
	return &exit{code: code, err: errors.New("interrupted")}
}
