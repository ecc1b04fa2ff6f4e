package remote

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// conn is a connection whose bytes are the frames of a stream. It can be closed for
// writing alone.
type conn struct {
	f *frames
	// end ends the stream at once. It may be called more than once.
	end  func()
	once sync.Once
	done chan struct{} // closed by Close

	reading sync.Mutex
	rest    int   // of the present frame, guarded by reading
	readErr error // guarded by reading

	readBy, writeBy deadline
}

func newConn(f *frames, end func()) *conn {
	c := &conn{f: f, end: end, done: make(chan struct{})}
	// A stream cannot be read or written in part and then continued: a deadline that
	// passes during a call ends it. This is what deadlines of our users are for.
	c.readBy.init(c.abort)
	c.writeBy.init(c.abort)
	return c
}

func (c *conn) abort() { c.end() }

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.readErr != nil {
		return 0, c.readErr
	}
	if !c.readBy.begin() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.read(p)
	if c.readBy.finish() && err != nil {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		c.readErr = err
	}
	return n, err
}

func (c *conn) read(p []byte) (int, error) {
	for c.rest == 0 {
		kind, size, err := c.f.next()
		switch {
		case err != nil:
			return 0, c.explain(whole(err))
		case kind == frameEnd:
			return 0, io.EOF
		case kind != frameData:
			return 0, fmt.Errorf("%w: frame %q among bytes", errFrame, kind)
		}
		c.rest = size
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.f.r.Read(p[:min(len(p), c.rest)])
	c.rest -= n
	if n > 0 {
		return n, nil
	}
	return 0, c.explain(whole(err))
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (n int, err error) {
	if !c.writeBy.begin() {
		return 0, os.ErrDeadlineExceeded
	}
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), maxData)]
		if err = c.f.write(frameData, part); err == nil {
			n, p = n+len(part), p[len(part):]
		}
	}
	if c.writeBy.finish() && err != nil {
		err = os.ErrDeadlineExceeded
	}
	return n, c.explain(err)
}

// CloseWrite tells the other end that no more bytes come.
func (c *conn) CloseWrite() error { return c.explain(c.f.write(frameEnd, nil)) }

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.readBy.set(time.Time{})
		c.writeBy.set(time.Time{})
		c.end()
	})
	return nil
}

// explain replaces errors of a stream that was closed here.
func (c *conn) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.done:
		return net.ErrClosed
	default:
		return err
	}
}

// SetDeadline implements [net.Conn]. A deadline that passes during a call breaks the
// connection.
func (c *conn) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return nil
}

// SetReadDeadline implements [net.Conn]; see SetDeadline.
func (c *conn) SetReadDeadline(t time.Time) error { c.readBy.set(t); return nil }

// SetWriteDeadline implements [net.Conn]; see SetDeadline.
func (c *conn) SetWriteDeadline(t time.Time) error { c.writeBy.set(t); return nil }

func (c *conn) LocalAddr() net.Addr  { return addr{} }
func (c *conn) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "cove-node" }
func (addr) String() string  { return "node" }

// deadline calls late if a call is in progress when the time has come.
type deadline struct {
	late func()

	mu     sync.Mutex
	at     time.Time
	timer  *time.Timer
	calls  int  // in progress
	passed bool // during a call
}

func (d *deadline) init(late func()) { d.late = late }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() { d.check(t) })
	}
}

func (d *deadline) check(t time.Time) {
	d.mu.Lock()
	late := d.at.Equal(t) && d.calls > 0
	d.passed = d.passed || late
	d.mu.Unlock()
	if late {
		d.late()
	}
}

// begin reports whether a call may begin.
func (d *deadline) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !time.Now().Before(d.at) {
		return false
	}
	d.calls++
	return true
}

// finish ends a call and reports whether the deadline passed during one.
func (d *deadline) finish() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	return d.passed
}

// closeWrite closes the sending direction of a connection, or all of it if it has no
// directions.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// join copies in both directions until both have ended, or one has failed.
func join(a, b net.Conn) {
	defer b.Close()
	defer a.Close()
	ended := make(chan error, 2)
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, err := io.CopyBuffer(struct{ io.Writer }{p[0]}, struct{ io.Reader }{p[1]}, make([]byte, maxData))
			if err == nil && errors.Is(closeWrite(p[0]), net.ErrClosed) {
				err = net.ErrClosed
			}
			ended <- err
		}()
	}
	if <-ended == nil {
		<-ended
	}
}
