package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// talk runs a command with its output, and its input if requested, connected to
// those of cove.
func (a *app) talk(ctx context.Context, c *client.Client, name string, req sandbox.ExecRequest, opts commandOptions) (*sandbox.Job, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var console *os.File
	if opts.Terminal {
		if !isTerminal(a.Stdin) {
			return nil, errors.New("standard input is not a terminal; run the command without -t")
		}
		console = a.Stdin.(*os.File)
		req.Terminal = terminalSize(console)
	}
	req.OpenStdin = opts.Interactive
	t, err := c.OpenTerminal(ctx, name, req)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(t)
	if console != nil {
		restore, err := rawMode(console)
		if err != nil {
			return nil, err
		}
		defer restore()
		defer watchSize(ctx, console, t)()
	}
	if opts.Interactive {
		// Reading a terminal or a pipe cannot be interrupted: the goroutine ends
		// with the program at the latest.
		go passInput(t, a.Stdin)
	}
	return t.Run(a.outputSink())
}

func passInput(t *client.Terminal, in io.Reader) {
	// A command that has ended takes no more input; Run reports its end.
	if _, err := io.CopyBuffer(struct{ io.Writer }{t}, struct{ io.Reader }{in}, make([]byte, 32<<10)); err != nil {
		return
	}
	_ = t.CloseInput()
}

// outputSink writes a job's output to that of cove.
func (a *app) outputSink() sandbox.JobSink {
	seen := map[sandbox.Stream]int64{}
	return func(ev sandbox.JobEvent) error {
		if len(ev.Data) == 0 {
			return nil
		}
		if gap := ev.Offset - seen[ev.Stream]; gap > 0 {
			a.say("%d bytes of %s were not kept and are missing here", gap, ev.Stream)
		}
		seen[ev.Stream] = ev.Offset + int64(len(ev.Data))
		out := a.Stdout
		if ev.Stream == sandbox.Stderr {
			out = a.Stderr
		}
		_, err := out.Write(ev.Data)
		return err
	}
}

func terminalSize(console *os.File) *sandbox.TerminalSize {
	cols, rows, err := term.GetSize(int(console.Fd()))
	if err != nil || cols <= 0 || rows <= 0 || cols > 0xffff || rows > 0xffff {
		return &sandbox.TerminalSize{Cols: 80, Rows: 24}
	}
	return &sandbox.TerminalSize{Cols: uint16(cols), Rows: uint16(rows)}
}

// rawMode passes every key to the command; restore undoes that.
func rawMode(console *os.File) (restore func(), err error) {
	state, err := term.MakeRaw(int(console.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(console.Fd()), state) }, nil
}

// watchSize passes on changes of the terminal's size until stop is called.
func watchSize(ctx context.Context, console *os.File, t *client.Terminal) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changes:
				if t.Resize(*terminalSize(console)) != nil {
					return
				}
			}
		}
	}()
	return func() {
		signal.Stop(changes)
		cancel()
		<-done
	}
}
