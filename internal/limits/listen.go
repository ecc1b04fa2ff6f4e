package limits

import (
	"net"
	"sync"
	"time"
)

// ListenConfig says what a listener's connections may do. All are required.
type ListenConfig struct {
	// Most is how many connections there are at once; more are closed as they
	// come.
	Most int
	// Patience is how long a client may take nothing of what is sent to it. A
	// connection on which nothing is sent may be silent for ever.
	Patience time.Duration
	// Full is called when a connection was refused.
	Full func()
}

// DefaultPatience is as long as Linux waits for a client that is gone without a
// word: one that is there and does not read is not waited for any longer.
const DefaultPatience = 15 * time.Minute

// piece is the most that is sent under one deadline.
const piece = 64 << 10

// Listen bounds the connections of a listener.
func Listen(l net.Listener, cfg ListenConfig) net.Listener {
	return &listener{Listener: l, cfg: cfg, slots: make(chan struct{}, cfg.Most)}
}

type listener struct {
	net.Listener
	cfg   ListenConfig
	slots chan struct{}
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &conn{Conn: c, patience: l.cfg.Patience, leave: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			// It is known before the client knows.
			l.cfg.Full()
			_ = c.Close()
		}
	}
}

type conn struct {
	net.Conn
	patience time.Duration
	leave    func()

	mu  sync.Mutex
	own time.Time // guarded by mu; a deadline for writing that the server has set
}

// push sets the deadline of a write.
func (c *conn) push() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now().Add(c.patience)
	if !c.own.IsZero() && c.own.Before(end) {
		end = c.own
	}
	return c.Conn.SetWriteDeadline(end)
}

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.own = t
	c.mu.Unlock()
	return c.push()
}

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (written int, err error) {
	for {
		now := p[:min(len(p), piece)]
		if err := c.push(); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(now)
		written += n
		if p = p[len(now):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// CloseWrite is how the HTTP server ends a connection whose client still sends
// and has an answer to read.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.leave() // first: who sees the end has the place for the next connection
	return c.Conn.Close()
}
