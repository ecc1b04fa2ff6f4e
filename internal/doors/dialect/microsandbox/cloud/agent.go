package cloud

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

// Bounds of one connection. When maxWaiting bytes wait for a session that accepts no input,
// the whole connection is held up, and so is the client.
const (
	// maxSessions bounds the concurrent sessions of a connection.
	maxSessions = 64
	// maxHandles bounds the open files and directories of a connection.
	maxHandles = 256
	// maxWaiting bounds a session's waiting input, in bytes. It is as much as a pipe holds,
	// since a connection has many sessions.
	maxWaiting = 64 << 10
)

const (
	// pingEvery is how often a client is pinged.
	pingEvery = 30 * time.Second
	// killTime bounds the killing of a command whose client is gone.
	killTime = 10 * time.Second
	// readSize is the size of one read from a connection, in bytes.
	readSize = 64 << 10
)

// conn is a WebSocket that carries the guest protocol of one sandbox.
type conn struct {
	d       *Door
	ws      *websocket.Conn
	sandbox string
	// again authenticates the client again: a key may be revoked while it is connected.
	again func() (context.Context, error)
	// ctx ends with the connection, and with it everything that was begun on the
	// connection.
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup
	// done is closed when everything of the connection has ended.
	done chan struct{}

	waits   stdin.Waits // for a session
	sending sync.Mutex  // held while a frame is written
	frame   []byte      // guarded by sending
	listing sync.Mutex  // held from reading a directory until the client has the answer

	mu         sync.Mutex
	sessions   map[uint32]session // guarded by mu
	handles    map[uint64]*handle // guarded by mu
	lastHandle uint64             // guarded by mu
	touches    uint64             // guarded by mu
}

// session is the work in progress under an id.
type session interface {
	// receive accepts a frame from the client, and may wait until there is space for it. It
	// reports whether the session knows the frame's type.
	receive(f *wire.Frame) (known bool, err error)
}

// agent serves the guest protocol of a running sandbox.
func (d *Door) agent(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error {
	if s.State != sandbox.StateRunning {
		return sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s; start it first", statusOf(s))
	}
	if !mayWrite(r.Context()) {
		return sandbox.Errorf(sandbox.CodeForbidden, "the key has no %s, which this connection is for", sandbox.ScopeSandboxesWrite)
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil // Accept has answered
	}
	ws.SetReadLimit(-1) // messages are parts of a stream, whose frames are bounded
	c := &conn{
		d: d, ws: ws, sandbox: s.ID, again: func() (context.Context, error) { return d.authenticate(r) }, done: make(chan struct{}),
		sessions: map[uint32]session{}, handles: map[uint64]*handle{},
	}
	c.ctx, c.cancel = context.WithCancel(r.Context())
	d.add(c)
	defer d.drop(c)
	defer c.workers.Wait()
	defer c.cancel()
	defer ws.CloseNow()
	c.workers.Go(func() {
		defer c.cancel() // a client that does not answer the ping is gone
		_ = c.waits.Watch(c.ctx, pingEvery, c.ws.Ping)
	})
	c.workers.Go(func() { // a read ends with the connection
		<-c.ctx.Done()
		_ = ws.CloseNow()
	})
	if err := c.serve(); c.ctx.Err() == nil && !errors.Is(err, io.EOF) {
		d.cfg.Log.DebugContext(c.ctx, "a connection of the guest protocol has ended", "sandbox", s.ID, "error", err)
	}
	return nil
}

func (d *Door) add(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[c.sandbox] == nil {
		d.conns[c.sandbox] = map[*conn]struct{}{}
	}
	d.conns[c.sandbox][c] = struct{}{}
}

func (d *Door) drop(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns[c.sandbox], c)
	if len(d.conns[c.sandbox]) == 0 {
		delete(d.conns, c.sandbox)
	}
	close(c.done)
}

// endConnections ends the connections to a sandbox, and what runs on them, before the
// sandbox is paused: killing it later would resume the sandbox.
func (d *Door) endConnections(ctx context.Context, id string) {
	d.mu.Lock()
	var all []*conn
	for c := range d.conns[id] {
		all = append(all, c)
	}
	d.mu.Unlock()
	for _, c := range all {
		c.cancel()
	}
	for _, c := range all {
		select {
		case <-c.done:
		case <-ctx.Done():
			return
		}
	}
}

// serve sends the greeting and handles the client's frames until the client is gone. The
// error says why it ended.
func (c *conn) serve() error {
	now := uint64(time.Now().UnixNano())
	hello, err := wire.Hello(wire.Ready{BootTime: now, InitTime: now, ReadyTime: now, Version: "cove"})
	if err != nil {
		return err
	}
	if err := c.ws.Write(c.ctx, websocket.MessageBinary, hello); err != nil {
		return err
	}
	in := bufio.NewReaderSize(&messages{c: c}, readSize)
	for {
		f, err := wire.Read(in)
		if _, bad := errors.AsType[wire.Malformed](err); bad {
			c.refuse(&f, wire.ErrorMalformed, err.Error())
			continue
		}
		if err != nil {
			return err
		}
		c.take(&f)
	}
}

// messages reads the binary messages of a connection as one stream.
type messages struct {
	c   *conn
	now io.Reader
}

// Read implements [io.Reader].
func (m *messages) Read(p []byte) (int, error) {
	for {
		if m.now != nil {
			n, err := m.now.Read(p)
			if errors.Is(err, io.EOF) {
				m.now, err = nil, nil
			}
			if n > 0 || err != nil {
				return n, err
			}
		}
		kind, r, err := m.c.ws.Reader(m.c.ctx)
		if err != nil {
			return 0, err
		}
		if kind != websocket.MessageBinary {
			if _, err := io.Copy(io.Discard, r); err != nil {
				return 0, err
			}
			continue
		}
		m.now = r
	}
}

// send sends a frame. Any error except [wire.ErrLength] means that the connection has
// ended.
func (c *conn) send(id uint32, flags uint8, kind string, payload any) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	frame, err := wire.Append(c.frame[:0], id, flags, kind, payload)
	if err != nil {
		return err
	}
	c.frame = frame
	if cap(frame) > 2*wire.MaxData {
		c.frame = nil
	}
	if err := c.ws.Write(c.ctx, websocket.MessageBinary, frame); err != nil {
		c.cancel()
		return err
	}
	return nil
}

// end sends the last frame of a session. The client then no longer knows the session.
func (c *conn) end(id uint32, kind string, payload any) {
	c.mu.Lock()
	delete(c.sessions, id)
	c.mu.Unlock()
	_ = c.send(id, wire.FlagTerminal, kind, payload) // the client may be gone
}

// refuse reports an error in a frame. For the client, that ends the frame's session.
func (c *conn) refuse(f *wire.Frame, kind, message string) {
	_ = c.send(f.ID, wire.FlagTerminal, wire.TypeError, wire.Error{Kind: kind, Message: message, Offending: f.Type})
}

// begins maps the types that begin a session to the functions that do so.
var begins = map[string]func(*conn, *wire.Frame) error{
	wire.TypeExec:       (*conn).exec,
	wire.TypeFS:         (*conn).files,
	wire.TypeTCPConnect: (*conn).connect,
}

// continues are the types of frames that belong to a session.
var continues = map[string]bool{
	wire.TypeStdin: true, wire.TypeResize: true, wire.TypeSignal: true, wire.TypeFSData: true,
	wire.TypeTCPData: true, wire.TypeTCPEOF: true, wire.TypeTCPClose: true,
}

// take handles a frame.
func (c *conn) take(f *wire.Frame) {
	begin := begins[f.Type]
	switch {
	case f.ID < wire.MinID || f.ID >= wire.MaxID:
		c.refuse(f, wire.ErrorSession, "the id is outside of the range that the server has given")
	case f.Type == wire.TypePing:
		_ = c.send(f.ID, wire.FlagTerminal, wire.TypePong, nil)
	case f.Type == wire.TypeTouch:
		c.touch(f)
	case begin != nil && f.Flags&wire.FlagStart == 0:
		c.refuse(f, wire.ErrorFlags, f.Type+" begins a session and has the flag for it")
	case begin != nil:
		if kind, message := c.admit(f.ID); kind != "" {
			c.refuse(f, kind, message)
		} else if err := begin(c, f); err != nil {
			c.refuse(f, wire.ErrorPayload, err.Error())
		}
	case continues[f.Type]:
		c.deliver(f)
	default:
		c.refuse(f, wire.ErrorUnsupported, "Cove does not serve this type of message")
	}
}

// admit returns why there can be no session with an id, or "".
func (c *conn) admit(id uint32) (kind, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sessions[id] != nil:
		return wire.ErrorSession, "the id has a session already"
	case len(c.sessions) >= maxSessions:
		return wire.ErrorSession, "too much is under way on this connection; wait, or open another"
	}
	return "", ""
}

// begin registers a session and runs it. Only the reader calls it, after admit.
func (c *conn) begin(id uint32, s session, run func()) {
	c.mu.Lock()
	c.sessions[id] = s
	c.mu.Unlock()
	c.workers.Go(run)
}

// deliver passes a frame to its session. A frame for a session that has ended is dropped.
func (c *conn) deliver(f *wire.Frame) {
	c.mu.Lock()
	s := c.sessions[f.ID]
	c.mu.Unlock()
	if s == nil {
		return
	}
	c.waits.Set(true)
	known, err := s.receive(f)
	c.waits.Set(false)
	switch {
	case err != nil:
		c.refuse(f, wire.ErrorPayload, err.Error())
	case !known:
		c.refuse(f, wire.ErrorSession, "the session of this id takes no such message")
	}
}

// touch restarts the idle time of the sandbox, as any call into it does.
func (c *conn) touch(f *wire.Frame) {
	id := f.ID
	if kind, message := c.admit(id); kind != "" {
		c.refuse(f, kind, message)
		return
	}
	c.begin(id, quiet{}, func() {
		ctx, err := c.alive(c.ctx)
		if err == nil {
			_, err = c.d.cfg.Service.StatFile(ctx, c.sandbox, "/")
		}
		if err != nil {
			c.end(id, wire.TypeError, wire.Error{Kind: wire.ErrorSession, Message: sandbox.MessageOf(err)})
			return
		}
		c.mu.Lock()
		c.touches++
		n := c.touches
		c.mu.Unlock()
		c.end(id, wire.TypeTouched, wire.Touched{Seq: n})
	})
}

// quiet is a session that accepts no frames.
type quiet struct{}

func (quiet) receive(*wire.Frame) (bool, error) { return false, nil }

// alive returns the context of a new session with its caller, whose key is still valid. It
// checks that the sandbox is running, since a call would otherwise resume it.
func (c *conn) alive(ctx context.Context) (context.Context, error) {
	now, err := c.again()
	if err != nil {
		return nil, err
	}
	caller, _ := sandbox.CallerOf(now)
	ctx = sandbox.WithCaller(ctx, caller)
	s, err := c.d.cfg.Service.Get(ctx, c.sandbox)
	if err == nil && s.State != sandbox.StateRunning {
		err = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s; start it first", statusOf(s))
	}
	return ctx, err
}
