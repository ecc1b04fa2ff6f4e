package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

const (
	protoExec  = "superserve.exec.v1"
	protoToken = "token."
	// firstMessageTime is how long a client may take to send the command.
	firstMessageTime = 10 * time.Second
	// maxMessage bounds a message of input, in bytes; clients send 32 KiB.
	maxMessage = 4 << 20
	// pingEvery is how often a client is pinged.
	pingEvery = 30 * time.Second
)

// The first byte of a binary message.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
)

// session is a command with a connection of its own.
type session struct {
	d       *Door
	conn    *websocket.Conn
	sandbox string
	job     string
	input   *stdin.Queue
	frame   []byte
	workers sync.WaitGroup
}

// spawn runs a command over a WebSocket. It kills the command when the connection ends.
func (d *Door) spawn(w http.ResponseWriter, r *http.Request, _ []string) error {
	box, _ := gate.SandboxOf(r.Context())
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protoExec}})
	if err != nil {
		return nil // Accept has answered
	}
	s := d.session(conn, box.ID)
	defer s.workers.Wait()
	defer conn.CloseNow()
	if conn.Subprotocol() != protoExec {
		_ = conn.Close(websocket.StatusPolicyViolation, "offer the subprotocol "+protoExec)
		return nil
	}
	job, err := s.run(r.Context())
	if err != nil && r.Context().Err() == nil {
		d.cfg.Log.DebugContext(r.Context(), "a command over a connection has failed", "sandbox", box.ID, "error", err)
	}
	if s.sendText(r.Context(), lastEvent(job, err)) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
	return nil
}

func (d *Door) session(conn *websocket.Conn, id string) *session {
	s := &session{d: d, conn: conn, sandbox: id}
	s.input = stdin.New(func(ctx context.Context, data []byte, end bool) error {
		return d.cfg.Service.WriteInput(ctx, id, s.job, data, end)
	})
	return s
}

// run runs the command that the first message describes, in the background, where only the
// client's timeout bounds its time.
func (s *session) run(parent context.Context) (*sandbox.Job, error) {
	req, err := s.readRequest(parent)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	started, err := s.d.cfg.Service.Exec(sandbox.WithFollowed(ctx), s.sandbox, req, nil)
	if err != nil {
		return nil, err
	}
	s.job = started.ID
	s.workers.Go(func() {
		defer cancel() // a client that does not answer the ping is gone
		_ = s.input.Watch(ctx, pingEvery, s.conn.Ping)
	})
	s.workers.Go(func() { s.input.Run(ctx) })
	s.workers.Go(func() { s.readInput(ctx, cancel) })
	var offsets [2]int64
	job, err := s.d.cfg.Service.Attach(ctx, s.sandbox, s.job, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		next := &offsets[streamIndex(e.Stream)]
		if e.Offset > *next {
			return sandbox.Errorf(sandbox.CodeUnavailable, "output of the command was lost: it was read too slowly")
		}
		*next = e.Offset + int64(len(e.Data))
		s.frame = append(append(s.frame[:0], byte(channelStdout+streamIndex(e.Stream))), e.Data...)
		return s.conn.Write(ctx, websocket.MessageBinary, s.frame)
	})
	if err != nil {
		s.d.killJob(ctx, s.sandbox, s.job)
	}
	return job, err
}

func (s *session) readRequest(parent context.Context) (sandbox.ExecRequest, error) {
	ctx, cancel := context.WithTimeout(parent, firstMessageTime)
	defer cancel()
	s.conn.SetReadLimit(maxBody)
	kind, data, err := s.conn.Read(ctx)
	if err != nil {
		return sandbox.ExecRequest{}, err
	}
	if kind != websocket.MessageText {
		return sandbox.ExecRequest{}, invalid("the first message is binary; send the command as a JSON text first")
	}
	var body execBody
	if err := decodeJSON(data, &body); err != nil {
		return sandbox.ExecRequest{}, err
	}
	req, err := body.request(0)
	req.Background, req.OpenStdin, req.KeepBytes = true, true, keepOutput
	s.conn.SetReadLimit(maxMessage)
	return req, err
}

func (s *session) sendText(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.conn.Write(ctx, websocket.MessageText, data)
}

// readInput passes the client's messages to the command, and cancels it when the client is
// gone.
func (s *session) readInput(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	for {
		// Cancelling a read would close the connection before the last messages are sent,
		// so only the end of the connection ends this.
		kind, data, err := s.conn.Read(context.WithoutCancel(ctx))
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(data) > 1 && data[0] == channelStdin {
				s.input.Put(ctx, data[1:])
			}
			continue
		}
		s.control(ctx, data)
	}
}

// control handles a text message. A command may end before a signal reaches it. Unknown
// messages are ignored, as by the product.
func (s *session) control(ctx context.Context, data []byte) {
	var c struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(data, &c) != nil {
		return
	}
	switch c.Type {
	case "stdin_close":
		s.input.End()
	case "signal":
		_, _ = s.d.cfg.Service.SignalJob(ctx, s.sandbox, s.job, strings.TrimPrefix(c.Name, "SIG"), 0)
	}
}
