package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/sandbox"
)

// RunStdio serves one client on in and out, one JSON message a line, until in
// ends or ctx is cancelled; neither is an error. Running calls are then cancelled,
// when in has ended after some time for their answers.
// The caller is the one that ctx carries, or else [sandbox.LocalCaller].
//
// Nothing but messages is written to out.
func RunStdio(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	cfg = cfg.withDefaults()
	d, err := all.Find(cfg.Dialect)
	if err != nil {
		return err
	}
	caller, ok := sandbox.CallerOf(ctx)
	if !ok {
		caller = sandbox.LocalCaller()
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	kept := newSessions(false)
	works := newTasks()
	defer works.close()
	lot := newParking()
	defer lot.close()
	told := newWatches(0, listQuiet)
	b := &builder{cfg: cfg, dialect: d, sessions: kept, tasks: works, watches: told, parking: lot, maxResult: maxResult, join: func(ctx context.Context, _ mcp.Request) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(sandbox.WithCaller(ctx, caller))
		unhook := context.AfterFunc(run, cancel)
		return ctx, func() { unhook(); cancel() }
	}}
	server, err := b.build(cfg.selection())
	if err != nil {
		return err
	}
	defer told.open(sandbox.WithCaller(run, caller), "")()
	lines := newLines(in, out)
	session, err := server.Connect(ctx, &mcp.IOTransport{Reader: lines, Writer: lines, MaxLineLength: -1}, nil)
	if err != nil {
		return fmt.Errorf("serve on standard input and output: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer unhook()
	err = session.Wait()
	stop()
	works.close()
	lot.close()
	kept.wait()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) && ctx.Err() == nil {
		return fmt.Errorf("serve on standard input and output: %w", err)
	}
	return nil
}
