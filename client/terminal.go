package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Terminal is a command on one connection: standard input, signals and changes of the
// terminal's size go in while output comes out. [Terminal.Run] can be called from one
// goroutine while another calls the other methods, one at a time.
type Terminal struct {
	c    *Client
	ctx  context.Context
	conn *websocket.Conn
}

// maxTerminalMessage bounds a message from the server, in bytes.
const maxTerminalMessage = 4 << 20

// inputChunk is the largest message of input, in bytes.
const inputChunk = 64 << 10

// OpenTerminal starts a command over a connection of its own. For input, set
// OpenStdin; the command gets a terminal only if the request gives its size. A
// timeout of 0 is none. The command is killed when ctx is cancelled or the
// Terminal is closed. Call Run next, and always Close.
func (c *Client) OpenTerminal(ctx context.Context, name string, req sandbox.ExecRequest) (*Terminal, error) {
	first, err := encode(req)
	if err != nil {
		return nil, err
	}
	conn, err := c.socket(ctx, operation.OpenTerminal.Info, name)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxTerminalMessage)
	if err := conn.Write(ctx, websocket.MessageText, first); err != nil {
		conn.CloseNow()
		return nil, c.connectionError(ctx, err)
	}
	return &Terminal{c: c, ctx: ctx, conn: conn}, nil
}

// socket opens the WebSocket of an operation.
func (c *Client) socket(ctx context.Context, info operation.Info, names ...string) (*websocket.Conn, error) {
	where, err := c.url(info, nil, names)
	if err != nil {
		return nil, err
	}
	options := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: map[string][]string{}}
	c.identify(options.HTTPHeader)
	conn, resp, err := websocket.Dial(ctx, where, options)
	if err == nil {
		return conn, nil
	}
	if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
		return nil, errorOf(resp)
	}
	return nil, c.connectionError(ctx, err)
}

// Run passes events to sink until the command has ended. Call it once. Output that was
// lost because sink was too slow shows as a gap between the offsets of events.
func (t *Terminal) Run(sink sandbox.JobSink) (*sandbox.Job, error) {
	defer t.conn.CloseNow()
	var offsets [2]int64
	for {
		kind, data, err := t.conn.Read(t.ctx)
		if err != nil {
			return nil, t.c.connectionError(t.ctx, err)
		}
		if kind == websocket.MessageBinary {
			ev, err := output(data, &offsets)
			if err == nil && sink != nil {
				err = sink(ev)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		var line operation.JobLine
		if err := json.Unmarshal(data, &line); err != nil {
			return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "the server sent a message that is not in Cove's format; check the URL")
		}
		switch {
		case line.Error != nil:
			return nil, errorOfLine(line.Error)
		case line.Final:
			_ = t.conn.Close(websocket.StatusNormalClosure, "")
			return line.Job, nil
		case line.Stream == sandbox.Stdout:
			offsets[0] = line.Offset
		case line.Stream == sandbox.Stderr:
			offsets[1] = line.Offset
		case line.Job != nil && sink != nil:
			if err := sink(line.JobEvent); err != nil {
				return nil, err
			}
		}
	}
}

// output makes an event of a binary message.
func output(data []byte, offsets *[2]int64) (sandbox.JobEvent, error) {
	if len(data) == 0 || data[0] < 1 || data[0] > 2 {
		return sandbox.JobEvent{}, sandbox.Errorf(sandbox.CodeUnavailable, "the server sent a message that is not in Cove's format; check the URL")
	}
	which := data[0] - 1
	ev := sandbox.JobEvent{Stream: sandbox.Stdout, Offset: offsets[which], Data: data[1:]}
	if which == 1 {
		ev.Stream = sandbox.Stderr
	}
	offsets[which] += int64(len(ev.Data))
	return ev, nil
}

// Write sends p to the command's standard input.
func (t *Terminal) Write(p []byte) (int, error) {
	written := 0
	for chunk := range slices.Chunk(p, inputChunk) {
		if err := t.conn.Write(t.ctx, websocket.MessageBinary, chunk); err != nil {
			return written, t.inputError(err)
		}
		written += len(chunk)
	}
	return written, nil
}

// CloseInput ends the command's standard input.
func (t *Terminal) CloseInput() error { return t.control(map[string]any{"close_stdin": true}) }

// Resize changes the size of the command's terminal.
func (t *Terminal) Resize(size sandbox.TerminalSize) error {
	return t.control(map[string]any{"resize": size})
}

// Signal sends a signal, such as "INT", to the command's process group.
func (t *Terminal) Signal(name string) error { return t.control(map[string]any{"signal": name}) }

func (t *Terminal) control(v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	if err := t.conn.Write(t.ctx, websocket.MessageText, data); err != nil {
		return t.inputError(err)
	}
	return nil
}

// inputError is io.ErrClosedPipe for input to a command that has ended.
func (t *Terminal) inputError(err error) error {
	if t.ctx.Err() == nil && (websocket.CloseStatus(err) != -1 || errors.Is(err, io.EOF)) {
		return fmt.Errorf("write to the command: %w", io.ErrClosedPipe)
	}
	return t.c.connectionError(t.ctx, err)
}

// Close kills the command if it still runs, and closes the connection.
func (t *Terminal) Close() error { return t.conn.CloseNow() }
