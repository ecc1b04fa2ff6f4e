package door

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// loginShell is the command that a terminal runs.
	loginShell = "command -v bash >/dev/null && exec bash -l; exec sh -l"
	// killTime bounds the killing of a shell whose client is gone.
	killTime = 10 * time.Second
	// terminalKeep is how much a shell may write before its output is followed, in bytes.
	terminalKeep = 1 << 20
)

// The default size of a terminal.
const (
	defaultCols = 80
	defaultRows = 24
)

// keystrokes is a message from a terminal's client.
type keystrokes struct {
	Type string `json:"type"`
	Data string `json:"data"`
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// terminal runs a shell, which is killed when its client is gone.
func (c *connection) terminal() error {
	dir, err := hopx.Open(c.ctx, c.call(), c.at.sandbox)
	if err != nil {
		return err
	}
	job, err := c.d.cfg.Service.Exec(sandbox.WithFollowed(c.ctx), c.at.sandbox, sandbox.ExecRequest{
		Shell: loginShell, WorkDir: dir, Background: true, TimeoutMS: -1, OpenStdin: true, KeepBytes: terminalKeep,
		Terminal: &sandbox.TerminalSize{Cols: defaultCols, Rows: defaultRows}, Env: map[string]string{"TERM": "xterm-256color"},
	}, nil)
	if err != nil {
		return err
	}
	c.job = job.ID
	defer c.kill()
	c.workers.Go(c.typing)
	write, done := c.output(func(_ sandbox.Stream, text string) any { return map[string]any{"type": "output", "data": text} })
	job, err = c.d.cfg.Service.Attach(c.ctx, c.at.sandbox, job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		return write(e.Stream, e.Data)
	})
	if sent := done(); err == nil {
		err = sent
	}
	if err != nil {
		return err
	}
	c.end(map[string]any{"type": "exit", "code": job.ExitCode})
	return nil
}

// kill kills a shell that is still running.
func (c *connection) kill() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), killTime)
	defer cancel()
	if _, err := c.d.cfg.Service.SignalJob(ctx, c.at.sandbox, c.job, "KILL", 0); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		c.d.cfg.Log.DebugContext(ctx, "kill a shell whose client is gone", "sandbox", c.at.sandbox, "job", c.job, "error", err)
	}
}

// typing passes on what the client types, and reports errors to it. Neither may hold up the
// next message: a pong from the client may be behind it.
func (c *connection) typing() {
	wrong := make(chan error, backlog)
	c.workers.Go(func() { c.input.Run(c.ctx) })
	c.workers.Go(func() { c.complain(wrong) })
	for {
		select {
		case <-c.ctx.Done():
			return
		case data := <-c.received:
			err := c.typed(data)
			if err == nil {
				continue
			}
			select {
			case wrong <- err:
			default: // enough errors are queued
			}
		}
	}
}

// complain sends the client the errors in its messages.
func (c *connection) complain(wrong <-chan error) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case err := <-wrong:
			_ = c.send(hopx.StreamFailed(err, c.id)[0]) // the client may be gone
		}
	}
}

// typed handles a message. Only an invalid message is an error.
func (c *connection) typed(data []byte) error {
	message, err := checked(data)
	if err != nil {
		return err
	}
	var k keystrokes
	if json.Unmarshal(message, &k) != nil {
		return invalid("the message is not an object of a terminal; send input or resize")
	}
	switch k.Type {
	case "input":
		c.input.Put(c.ctx, []byte(k.Data))
	case "resize":
		if k.Cols == 0 || k.Rows == 0 {
			return invalid("cols and rows are needed; give the terminal's size")
		}
		_ = c.d.cfg.Service.ResizeTerminal(c.ctx, c.at.sandbox, c.job, sandbox.TerminalSize{Cols: k.Cols, Rows: k.Rows})
	default:
		return invalid("type is not known; send input or resize")
	}
	return nil
}
