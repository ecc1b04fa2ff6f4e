package limits

import (
	"net"
	"sync"
	"time"
)

// ListenConfig limits a listener's connections. All fields are required.
type ListenConfig struct {
	// MaxConns is how many connections may be open at once; further ones are closed as
	// soon as they are accepted.
	MaxConns int
	// WriteTimeout is how long a client may read nothing of the data sent to it. An idle
	// connection, on which nothing is sent, has no timeout.
	WriteTimeout time.Duration
	// Refused is called before a connection over MaxConns is closed.
	Refused func()
}

// DefaultWriteTimeout is as long as Linux retransmits to a client that has vanished: a
// client that is alive but does not read gets no more time than that.
const DefaultWriteTimeout = 15 * time.Minute

// piece is the largest write under one deadline, in bytes.
const piece = 64 << 10

// Listen returns l with its connections limited by cfg.
func Listen(l net.Listener, cfg ListenConfig) net.Listener {
	return &listener{Listener: l, cfg: cfg, slots: make(chan struct{}, cfg.MaxConns)}
}

type listener struct {
	net.Listener
	cfg   ListenConfig
	slots chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &conn{Conn: c, writeTimeout: l.cfg.WriteTimeout, free: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			// Counted before the client can notice the close.
			l.cfg.Refused()
			_ = c.Close()
		}
	}
}

type conn struct {
	net.Conn
	writeTimeout time.Duration
	free         func() // releases the connection's slot

	mu     sync.Mutex
	server time.Time // guarded by mu; the write deadline set by the HTTP server
}

// extend moves the connection's write deadline.
func (c *conn) extend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now().Add(c.writeTimeout)
	if !c.server.IsZero() && c.server.Before(end) {
		end = c.server
	}
	return c.Conn.SetWriteDeadline(end)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.server = t
	c.mu.Unlock()
	return c.extend()
}

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) Write(p []byte) (written int, err error) {
	for {
		head := p[:min(len(p), piece)]
		if err := c.extend(); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(head)
		written += n
		if p = p[len(head):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// CloseWrite closes the sending direction. The HTTP server uses it when the client is
// still sending and has yet to read a response.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *conn) Close() error {
	c.free() // first: a client that sees the close may connect again at once
	return c.Conn.Close()
}
