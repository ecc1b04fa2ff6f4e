package door

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// firstMessageTime is how long a client may take to send its first message.
	firstMessageTime = 30 * time.Second
	// keepAlive is how often an idle client is pinged, and answerTime how long it may take
	// to answer.
	keepAlive  = 15 * time.Second
	answerTime = 10 * time.Second
	// frameGap is the time between two frames. The product's client takes only one of those
	// that arrive at once, and loses the others.
	frameGap = 20 * time.Millisecond
	// lastGap is the interval at which the last frame is repeated, for at most lastTime: a
	// busy client may have lost it, and would wait forever.
	lastGap  = 200 * time.Millisecond
	lastTime = time.Minute
	// maxMessage bounds a client's message, and maxFrame the output in one frame, in bytes.
	maxMessage = 4 << 20
	maxFrame   = 64 << 10
	// backlog is how many pieces of output may be queued.
	backlog = 64
)

// connection is a client's WebSocket.
type connection struct {
	*exchange
	conn *websocket.Conn
	// ctx ends when the client is gone.
	ctx    context.Context
	cancel context.CancelFunc
	// received holds messages after the first.
	received chan []byte
	workers  sync.WaitGroup
	// job is the shell of a terminal, and input its keyboard input.
	job   string
	input *stdin.Queue

	mu   sync.Mutex // held while a frame is sent
	last time.Time  // when the last frame was sent; guarded by mu
}

// socket makes a route from a function that serves a connection after its first message.
func socket(serve func(*connection) error) func(*exchange) {
	return func(x *exchange) {
		// Report errors over HTTP while possible, since clients see those.
		if _, err := hopx.Open(x.r.Context(), x.call(), x.at.sandbox); err != nil {
			x.fail(err)
			return
		}
		if !strings.EqualFold(x.r.Header.Get("Upgrade"), "websocket") {
			x.fail(invalid("%s is a WebSocket; ask for an upgrade", x.at.path))
			return
		}
		conn, err := websocket.Accept(x.w, x.r, nil)
		if err != nil {
			return // Accept has answered
		}
		conn.SetReadLimit(maxMessage)
		c := x.connection(conn)
		defer c.workers.Wait()
		defer conn.CloseNow()
		defer c.cancel()
		c.workers.Go(c.read)
		c.workers.Go(c.ask)
		if err := serve(c); err != nil && c.ctx.Err() == nil {
			c.end(hopx.StreamFailed(err, x.id)...)
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

func (x *exchange) connection(conn *websocket.Conn) *connection {
	c := &connection{exchange: x, conn: conn, received: make(chan []byte)}
	c.ctx, c.cancel = context.WithCancel(x.r.Context())
	c.input = stdin.New(func(ctx context.Context, data []byte, end bool) error {
		return x.d.cfg.Service.WriteInput(ctx, x.at.sandbox, c.job, data, end)
	})
	return c
}

// read passes on the client's messages until it is gone.
func (c *connection) read() {
	defer c.cancel()
	for {
		// Cancelling a read would close the connection before the last frames are sent.
		kind, data, err := c.conn.Read(context.WithoutCancel(c.ctx))
		if err != nil {
			return
		}
		if kind != websocket.MessageText || len(data) == 0 {
			continue
		}
		select {
		case c.received <- data:
		case <-c.ctx.Done():
			return
		}
	}
}

// ask pings the client, and ends the connection if there is no answer.
func (c *connection) ask() {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
			if c.ping() != nil {
				c.cancel()
				_ = c.conn.CloseNow() // ends the read too
				return
			}
		}
	}
}

func (c *connection) ping() error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.ctx, answerTime)
	defer cancel()
	return c.input.Answer(began, c.conn.Ping(ctx))
}

// only returns the only message of a client that afterwards just listens. Later messages
// are not read.
func (c *connection) only() (json.RawMessage, error) {
	message, err := c.first()
	c.workers.Go(func() {
		for {
			select {
			case <-c.received:
			case <-c.ctx.Done():
				return
			}
		}
	})
	return message, err
}

// first returns the first message.
func (c *connection) first() (json.RawMessage, error) {
	timer := time.NewTimer(firstMessageTime)
	defer timer.Stop()
	select {
	case data := <-c.received:
		return checked(data)
	case <-timer.C:
		return nil, invalid("no message came within %s; send what to do", firstMessageTime)
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}

func checked(data []byte) (json.RawMessage, error) {
	if err := limits.CheckJSON(data); err != nil {
		return nil, invalid("the message is not valid: %v", err)
	}
	return data, nil
}

// send sends a frame, at least frameGap after the previous one, and waits until the client
// has received it.
func (c *connection) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.pause(frameGap - time.Since(c.last)); err != nil {
		return err
	}
	if err := c.conn.Write(c.ctx, websocket.MessageText, data); err != nil {
		c.cancel()
		return err
	}
	if err = c.ping(); err != nil {
		c.cancel() // do not block others that wait to send
	}
	c.last = time.Now()
	return err
}

func (c *connection) pause(d time.Duration) error {
	if d <= 0 {
		return c.ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// end sends the last frames, and repeats the very last until the client closes the
// connection.
func (c *connection) end(frames ...any) {
	for _, f := range frames {
		if c.send(f) != nil {
			return
		}
	}
	for until := time.Now().Add(lastTime); time.Now().Before(until); {
		if c.pause(lastGap) != nil || c.send(frames[len(frames)-1]) != nil {
			return
		}
	}
}

// piece is a piece of a stream's output.
type piece struct {
	stream sandbox.Stream
	data   []byte
}

// output sends written data as frames, and joins pieces if the client is slow. done waits
// until everything is sent; nothing may be written after it.
func (c *connection) output(frame func(stream sandbox.Stream, text string) any) (write hopx.Output, done func() error) {
	pieces := make(chan piece, backlog)
	sent := make(chan error, 1)
	c.workers.Go(func() { sent <- c.pump(pieces, frame) })
	write = func(stream sandbox.Stream, data []byte) error {
		select {
		case pieces <- piece{stream, append([]byte{}, data...)}:
			return nil
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	return write, func() error {
		close(pieces)
		return <-sent
	}
}

// pump sends pieces until there are no more.
func (c *connection) pump(pieces <-chan piece, frame func(sandbox.Stream, string) any) error {
	var now piece
	held := map[sandbox.Stream][]byte{} // incomplete characters
	flush := func(last bool) error {
		data := append(held[now.stream], now.data...)
		whole := data
		if !last {
			whole = clip.TrimEnd(data)
		}
		held[now.stream] = append([]byte{}, data[len(whole):]...)
		now.data = nil
		if len(whole) == 0 {
			return nil
		}
		return c.send(frame(now.stream, strings.ToValidUTF8(string(whole), "\uFFFD")))
	}
	for p := range pieces {
		if now.stream != p.stream && len(now.data) > 0 {
			if err := flush(false); err != nil {
				return err
			}
		}
		now.stream, now.data = p.stream, append(now.data, p.data...)
		if len(pieces) > 0 && len(now.data) < maxFrame {
			continue // more is there already
		}
		if err := flush(false); err != nil {
			return err
		}
	}
	for _, now.stream = range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
		if err := flush(true); err != nil {
			return err
		}
	}
	return nil
}

// follow runs something, and sends its output as frames named after the streams.
func (c *connection) follow(run func(write hopx.Output) ([]any, error)) error {
	write, done := c.output(func(stream sandbox.Stream, text string) any {
		return map[string]any{"type": stream, "data": text, "timestamp": stamp()}
	})
	last, err := run(write)
	if sent := done(); err == nil {
		err = sent
	}
	if err != nil {
		return err
	}
	c.end(last...)
	return nil
}

func stamp() string { return time.Now().UTC().Format(time.RFC3339Nano) }

func (c *connection) code() error {
	message, err := c.only()
	if err != nil {
		return err
	}
	return c.follow(func(write hopx.Output) ([]any, error) {
		return hopx.StreamCode(c.ctx, c.call(), c.at.sandbox, message, write)
	})
}

func (c *connection) command() error {
	message, err := c.only()
	if err != nil {
		return err
	}
	return c.follow(func(write hopx.Output) ([]any, error) {
		return hopx.StreamCommand(c.ctx, c.call(), c.at.sandbox, message, write)
	})
}

// kinds maps file changes to the product's names. A change of permissions is a
// modification.
var kinds = map[sandbox.WatchKind]string{
	sandbox.WatchCreated: "created", sandbox.WatchModified: "modified", sandbox.WatchAttributes: "modified",
	sandbox.WatchDeleted: "deleted", sandbox.WatchRenamed: "renamed",
}

// watch reports changes below a directory until the client is gone.
func (c *connection) watch() error {
	message, err := c.only()
	if err != nil {
		return err
	}
	dir, err := hopx.Watched(c.ctx, c.call(), c.at.sandbox, message)
	if err != nil {
		return err
	}
	err = c.d.cfg.Service.WatchFiles(c.ctx, c.at.sandbox, sandbox.WatchRequest{Path: dir, Recursive: true}, func(e sandbox.WatchEvent) error {
		switch {
		case e.Kind == sandbox.WatchReady:
			return c.send(map[string]any{"type": "status", "status": "Watching " + dir, "timestamp": stamp()})
		case e.Kind == sandbox.WatchOverflow:
			return sandbox.Errorf(sandbox.CodeUnavailable, "changes came faster than they were read, and some were lost; list the directory, and watch again")
		case kinds[e.Kind] == "":
			return nil
		}
		return c.send(map[string]any{"type": "change", "path": e.Path, "event": kinds[e.Kind], "timestamp": stamp()})
	})
	if err == nil && c.ctx.Err() == nil {
		err = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run any more")
	}
	return err
}

var _ http.Handler = (*Door)(nil)
