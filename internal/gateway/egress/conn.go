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
	// smallBuffer is the buffer of an idle direction, and largeBuffer that of a direction
	// whose reads fill the small one.
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
	// maxAhead is how much is read ahead while a connection waits for an answer.
	maxAhead = 2 * maxSniff
)

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}

// byteLimiter limits bytes per second; 0 means no limit.
func byteLimiter(perSecond int64) *rate.Limiter {
	if perSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(min(max(perSecond, smallBuffer), 4<<20)))
}

// guestConn is the sandbox's end of a connection. It counts bytes, applies the rate
// limits, and can read ahead.
type guestConn struct {
	net.Conn
	f *flow
	// peeked are bytes that were read ahead; only the reader uses it.
	peeked []byte
	err    error // the read error that follows peeked

	mu       sync.Mutex
	readers  int           // callers in Read; guarded by mu
	ahead    chan struct{} // closed when reading ahead ends, and nil then; guarded by mu
	deadline time.Time     // of readers; guarded by mu

	once   sync.Once
	closed chan struct{}
}

func newGuestConn(f *flow, c net.Conn) *guestConn {
	return &guestConn{Conn: c, f: f, closed: make(chan struct{})}
}

func (c *guestConn) Read(p []byte) (int, error) {
	c.begin()
	defer c.done()
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

// begin stops reading ahead, to make way for a reader.
func (c *guestConn) begin() {
	c.mu.Lock()
	c.readers++
	ahead := c.ahead
	c.mu.Unlock()
	c.stop(ahead)
}

func (c *guestConn) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readers--
}

// watch reads ahead until stop is called or a caller reads, and closes gone if the
// sandbox closes the connection. If a caller is reading already, that caller sees it
// instead.
func (c *guestConn) watch() (gone <-chan struct{}, stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers > 0 || c.ahead != nil {
		return over, func() {}
	}
	c.ahead = ended
	_ = c.Conn.SetReadDeadline(time.Time{})
	go func() {
		defer close(ended)
		for len(c.peeked) < maxAhead && c.more() {
		}
		if c.err != nil {
			close(over)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ahead = nil
		_ = c.Conn.SetReadDeadline(c.deadline)
	}()
	return over, func() { c.stop(ended) }
}

// stop ends reading ahead; a nil ahead means that there is none.
func (c *guestConn) stop(ahead chan struct{}) {
	if ahead == nil {
		return
	}
	c.mu.Lock()
	if c.ahead == ahead {
		_ = c.Conn.SetReadDeadline(past)
	}
	c.mu.Unlock()
	<-ahead
}

// SetReadDeadline sets the deadline of readers. It does not affect reading ahead.
func (c *guestConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.ahead != nil {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *guestConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.Conn.SetWriteDeadline(t))
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

// wait takes n bytes from a limiter; n may exceed its burst.
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

// more reads ahead. It returns false if no bytes arrived: at the end of the stream, or
// when the read deadline has passed, after which the connection is still usable.
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
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// CloseWrite closes the sending direction.
func (c *guestConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *guestConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// reset resets the connection.
func (c *guestConn) reset() {
	resetConn(c.Conn)
	c.Close()
}

func resetConn(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0) // if it fails, the connection is closed normally
	}
	c.Close()
}

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// relay copies in both directions until both have ended. When one direction ends, the
// other stays open; an error ends both. first, if not nil, runs before the sandbox's
// bytes are read.
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

// copyHalf copies until src ends, then closes the sending direction of dst. Its buffer
// is large only while reads fill it, so that idle connections cost little.
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

// past is a deadline that interrupts a read.
var past = time.Unix(1, 0)
