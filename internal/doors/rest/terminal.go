package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// firstMessageTime is how long a client may take to say what to run.
	firstMessageTime = 30 * time.Second
	// keepAlive is how often the server writes to an idle connection. While it waits
	// for room for the client's input, only a write shows that the client is gone.
	keepAlive = 15 * time.Second
	// maxInputMessage bounds a message of input, in bytes.
	maxInputMessage = 1 << 20
	// terminalKeep is how much output a command can write before the terminal is
	// attached without losing any, in bytes.
	terminalKeep = 4 << 20
	// killTime bounds the killing of a command whose client is gone.
	killTime = 10 * time.Second
)

// The first byte of a binary message from the server.
const (
	tagStdout = 1
	tagStderr = 2
)

// TerminalControl is a text message of a terminal's client.
type TerminalControl struct {
	Resize     *sandbox.TerminalSize `json:"resize,omitempty"`
	Signal     string                `json:"signal,omitempty"`
	CloseStdin bool                  `json:"close_stdin,omitempty"`
}

func (h *handlers) registerTerminal(a huma.API) {
	registerSocket(a, operation.OpenTerminal, func(w http.ResponseWriter, r *http.Request, in *operation.SandboxPath) {
		h.terminal(w, r, in.Sandbox)
	})
}

// registerSocket registers an operation whose answer is a WebSocket.
func registerSocket[In any](a huma.API, op operation.Op[In, operation.Empty], serve func(http.ResponseWriter, *http.Request, *In)) {
	o := describeRoute(op.Info)
	o.Responses = map[string]*huma.Response{"101": {Description: "The protocol changes to WebSocket."}}
	o.DefaultStatus = http.StatusSwitchingProtocols
	huma.Register(a, o, func(_ context.Context, in *In) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hctx huma.Context) {
			r, w := humago.Unwrap(hctx)
			serve(w, r, in)
		}}, nil
	})
}

// terminal is one connection.
type terminal struct {
	h       *handlers
	conn    *websocket.Conn
	sandbox string
	// workers end when the connection is closed and the command has ended.
	workers sync.WaitGroup
	job     string
	input   *stdin.Queue
	frame   []byte
	offsets [2]int64
}

func (h *handlers) terminal(w http.ResponseWriter, r *http.Request, name string) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		// Accept has answered.
		return
	}
	t := h.newTerminal(conn, name)
	defer t.workers.Wait()
	defer conn.CloseNow()
	job, err := t.run(r.Context())
	last := operation.JobLine{JobEvent: sandbox.JobEvent{Job: job}, End: operation.Final}
	if err != nil {
		last = operation.JobLine{End: operation.End{Error: lineError(h.fail(r.Context(), err))}}
	}
	if t.sendText(r.Context(), last) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

func (h *handlers) newTerminal(conn *websocket.Conn, name string) *terminal {
	t := &terminal{h: h, conn: conn, sandbox: name}
	t.input = stdin.New(func(ctx context.Context, data []byte, end bool) error {
		return h.svc.WriteInput(ctx, name, t.job, data, end)
	})
	return t
}

// run runs the command that the first message describes. It runs in the
// background, where nothing bounds its time, and is killed when the client is
// gone.
func (t *terminal) run(parent context.Context) (*sandbox.Job, error) {
	req, err := t.readRequest(parent)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	started, err := t.h.svc.Exec(sandbox.WithFollowed(ctx), t.sandbox, req, nil)
	if err != nil {
		return nil, err
	}
	t.job = started.ID
	if err := t.sendText(ctx, operation.JobLine{JobEvent: sandbox.JobEvent{Job: started}}); err != nil {
		t.kill(ctx)
		return nil, err
	}
	// Their writes must not end with ctx: a cancelled write closes the connection
	// before the final message is sent.
	t.workers.Go(func() { t.keepAlive(ctx, parent, cancel) })
	t.workers.Go(func() { t.input.Run(ctx) })
	t.workers.Go(func() { t.readInput(ctx, parent, cancel) })
	job, err := t.h.svc.Attach(ctx, t.sandbox, t.job, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error { return t.send(ctx, ev) })
	if err != nil {
		t.kill(ctx)
	}
	return job, err
}

func (t *terminal) kill(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if _, err := t.h.svc.SignalJob(ctx, t.sandbox, t.job, "KILL", 0); err != nil {
		t.h.log.DebugContext(ctx, "kill a command whose client is gone", "sandbox", t.sandbox, "job", t.job, "error", err)
	}
}

func (t *terminal) readRequest(parent context.Context) (sandbox.ExecRequest, error) {
	ctx, cancel := context.WithTimeout(parent, firstMessageTime)
	defer cancel()
	var req sandbox.ExecRequest
	t.conn.SetReadLimit(operation.MaxExecBody)
	kind, data, err := t.conn.Read(ctx)
	if err != nil {
		return req, gone(err)
	}
	if kind != websocket.MessageText {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "the first message is binary; send the command as a JSON text first")
	}
	if err := decodeStrict(data, &req); err != nil {
		return req, err
	}
	if req.Background || req.DetachAfterMS != 0 {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "a terminal's command ends with its connection; leave out background and detach_after_ms")
	}
	req.Background = true
	if req.KeepBytes == 0 {
		req.KeepBytes = terminalKeep
	}
	t.conn.SetReadLimit(maxInputMessage)
	return req, nil
}

// decodeStrict decodes one JSON value without unknown members.
func decodeStrict(data []byte, v any) error {
	err := decodeJSON(data, new(any))
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		err = dec.Decode(v)
	}
	if err != nil {
		return sandbox.Wrap(sandbox.CodeInvalid, err, "the message is not valid: "+err.Error())
	}
	return nil
}

func (t *terminal) send(ctx context.Context, ev sandbox.JobEvent) error {
	if ev.Job != nil {
		// The first event is known already, and Attach returns the last one.
		return nil
	}
	tag := byte(tagStdout)
	if ev.Stream == sandbox.Stderr {
		tag = tagStderr
	}
	offset := &t.offsets[tag-tagStdout]
	if ev.Offset > *offset {
		gap := operation.JobLine{JobEvent: sandbox.JobEvent{Stream: ev.Stream, Offset: ev.Offset}}
		if err := t.sendText(ctx, gap); err != nil {
			return err
		}
	}
	*offset = ev.Offset + int64(len(ev.Data))
	t.frame = append(append(t.frame[:0], tag), ev.Data...)
	if err := t.conn.Write(ctx, websocket.MessageBinary, t.frame); err != nil {
		return gone(err)
	}
	return nil
}

func (t *terminal) sendText(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := t.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return gone(err)
	}
	return nil
}

func (t *terminal) keepAlive(ctx, conn context.Context, cancel context.CancelFunc) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if t.sendText(conn, struct{}{}) != nil {
				cancel()
				return
			}
		}
	}
}

// readInput passes the client's messages to the command, and calls cancel when the
// client goes away.
func (t *terminal) readInput(ctx, conn context.Context, cancel context.CancelFunc) {
	defer cancel()
	for {
		// A cancelled read closes the connection before the final message is sent, so
		// only the end of the connection ends this read.
		kind, data, err := t.conn.Read(context.WithoutCancel(ctx))
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			t.input.Put(ctx, data)
			continue
		}
		if err := t.control(ctx, data); err != nil {
			t.h.log.DebugContext(ctx, "terminal control refused", "sandbox", t.sandbox, "error", err)
			_ = t.sendText(conn, operation.JobLine{End: operation.End{Error: lineError(problemOf(err))}})
			return
		}
	}
}

// control executes a text message. Only a malformed message is an error, since a
// command may end before a signal reaches it.
func (t *terminal) control(ctx context.Context, data []byte) error {
	var c TerminalControl
	if err := decodeStrict(data, &c); err != nil {
		return err
	}
	if c.Resize != nil {
		_ = t.h.svc.ResizeTerminal(ctx, t.sandbox, t.job, *c.Resize)
	}
	if c.Signal != "" {
		_, _ = t.h.svc.SignalJob(ctx, t.sandbox, t.job, c.Signal, 0)
	}
	if c.CloseStdin {
		t.input.End()
	}
	return nil
}
