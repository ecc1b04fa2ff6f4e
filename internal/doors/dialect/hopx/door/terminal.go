package door

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// loginShell is what a terminal runs.
	loginShell = "command -v bash >/dev/null && exec bash -l; exec sh -l"
	// killTime bounds the killing of a shell whose client is gone.
	killTime = 10 * time.Second
	// terminalKeep is how much a shell may write before it is attached to, in bytes.
	terminalKeep = 1 << 20
)

// The size of a terminal until the client says another.
const (
	defaultCols = 80
	defaultRows = 24
)

// keystrokes is a message of a terminal's client.
type keystrokes struct {
	Type string `json:"type"`
	Data string `json:"data"`
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// terminal runs a shell, which ends with its client.
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
	defer c.kill(job.ID)
	c.workers.Go(func() { c.typing(job.ID) })
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

// kill ends a shell that still runs.
func (c *connection) kill(job string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), killTime)
	defer cancel()
	if _, err := c.d.cfg.Service.SignalJob(ctx, c.at.sandbox, job, "KILL", 0); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		c.d.cfg.Log.DebugContext(ctx, "kill a shell whose client is gone", "sandbox", c.at.sandbox, "job", job, "error", err)
	}
}

// typing passes on what the client types. What a shell does not take is lost, as it is
// for one that has ended.
func (c *connection) typing(job string) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case data := <-c.received:
			if err := c.typed(c.ctx, job, data); err != nil {
				_ = c.send(hopx.StreamFailed(err, c.id)[0])
			}
		}
	}
}

// typed does what a message says. Only one that is wrong is an error.
func (c *connection) typed(ctx context.Context, job string, data []byte) error {
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
		_ = c.d.cfg.Service.WriteInput(ctx, c.at.sandbox, job, []byte(k.Data), false)
	case "resize":
		if k.Cols == 0 || k.Rows == 0 {
			return invalid("cols and rows are needed; give the terminal's size")
		}
		_ = c.d.cfg.Service.ResizeTerminal(ctx, c.at.sandbox, job, sandbox.TerminalSize{Cols: k.Cols, Rows: k.Rows})
	default:
		return invalid("type is not known; send input or resize")
	}
	return nil
}
