package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// smallBuffer is what an idle direction holds, largeBuffer one whose reads
	// come full.
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}

// byteLimiter bounds bytes a second.
func byteLimiter(perSecond int64) *rate.Limiter {
	if perSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(min(max(perSecond, smallBuffer), 4<<20)))
}

// guestConn is the sandbox's end of a connection: it counts and bounds bytes,
// and its first bytes can be looked at before they are read.
type guestConn struct {
	net.Conn
	f *flow
	// peeked are bytes that were read ahead; only the reader uses it.
	peeked []byte
	err    error // that came after peeked

	once   sync.Once
	closed chan struct{}
}

func newGuestConn(f *flow, c net.Conn) *guestConn {
	return &guestConn{Conn: c, f: f, closed: make(chan struct{})}
}

// Read implements [net.Conn].
func (c *guestConn) Read(p []byte) (int, error) {
	if len(c.peeked) > 0 {
		n := copy(p, c.peeked)
		if c.peeked = c.peeked[n:]; len(c.peeked) == 0 {
			c.peeked = nil
		}
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.read(p)
}

func (c *guestConn) read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.f.sent.Add(int64(n))
	if l := c.f.g.state.Load().out; l != nil && n > 0 {
		if werr := wait(c.f.ctx, l, n); werr != nil {
			return n, werr
		}
	}
	return n, err
}

// Write implements [net.Conn].
func (c *guestConn) Write(p []byte) (int, error) {
	done := 0
	for {
		part := p[done:]
		if l := c.f.g.state.Load().in; l != nil {
			part = part[:min(len(part), l.Burst())]
			if err := wait(c.f.ctx, l, len(part)); err != nil {
				return done, err
			}
		}
		n, err := c.Conn.Write(part)
		c.f.received.Add(int64(n))
		done += n
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

// wait takes n bytes of a limiter, which may be more than its burst.
func wait(ctx context.Context, l *rate.Limiter, n int) error {
	for n > 0 {
		part := min(n, l.Burst())
		if err := l.WaitN(ctx, part); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// more reads ahead until there are more bytes than before. It returns false at
// the end, or when the deadline of reading has passed, which leaves the
// connection as it was.
func (c *guestConn) more() bool {
	if c.err != nil {
		return false
	}
	buf := make([]byte, smallBuffer)
	n, err := c.read(buf)
	c.peeked = append(c.peeked, buf[:n]...)
	if err != nil && !timedOut(err) {
		c.err = err
	}
	return n > 0
}

func timedOut(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// CloseWrite tells the sandbox that no more will come.
func (c *guestConn) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements [net.Conn].
func (c *guestConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// reset closes the connection so that the other side gets an error.
func (c *guestConn) reset() {
	resetConn(c.Conn)
	c.Close()
}

func resetConn(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0) // a plain close is the fallback
	}
	c.Close()
}

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// relay copies both ways until both are done. The end of one direction is
// passed on and leaves the other open; an error ends both. first, if not nil,
// is run before the sandbox's bytes are read.
func relay(guest *guestConn, remote net.Conn, first func() error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := copyHalf(guest, remote); err != nil {
			remote.Close()
			guest.reset()
		}
	}()
	var err error
	if first != nil {
		err = first()
	}
	if err == nil {
		err = copyHalf(remote, guest)
	}
	if err != nil {
		resetConn(remote)
		guest.Close()
	}
	<-done
}

// copyHalf copies until src ends, then ends dst for writing. Its buffer grows
// with the reads, so that idle connections cost little.
func copyHalf(dst, src net.Conn) error {
	small := make([]byte, smallBuffer)
	var large *[]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		buf := small
		if large != nil {
			buf = *large
		}
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return closeWrite(dst)
		case err != nil:
			return err
		case n == len(small) && large == nil:
			large = largeBuffers.Get().(*[]byte)
		case n < len(small) && large != nil:
			largeBuffers.Put(large)
			large = nil
		}
	}
}

// past is a deadline that makes reading stop.
var past = time.Unix(1, 0)
