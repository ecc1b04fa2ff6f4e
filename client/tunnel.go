package client

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// tunnelEOF is the text that ends one direction of a tunnel.
	tunnelEOF = "eof"
	// tunnelChunk is the largest message, in bytes.
	tunnelChunk = 32 << 10
)

// DialPort implements [sandbox.Previews]. The connection has CloseWrite. A deadline
// that passes during a read or write breaks the connection.
func (c *Client) DialPort(ctx context.Context, name string, port int) (net.Conn, error) {
	conn, err := c.socket(ctx, operation.DialPort.Info, name, strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	return &tunnel{conn: conn, where: tunnelAddr(net.JoinHostPort(name, strconv.Itoa(port)))}, nil
}

// tunnel is a connection over a WebSocket.
type tunnel struct {
	conn  *websocket.Conn
	where tunnelAddr

	reading sync.Mutex
	message io.Reader // guarded by reading
	ended   bool      // guarded by reading

	writing sync.Mutex
	closed  bool // guarded by writing; nothing more is sent

	mu            sync.Mutex
	readDeadline  time.Time // guarded by mu
	writeDeadline time.Time // guarded by mu
}

// until returns a context that ends at a deadline.
func (t *tunnel) until(deadline *time.Time) (context.Context, context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if deadline.IsZero() {
		return context.Background(), func() {}
	}
	return context.WithDeadline(context.Background(), *deadline)
}

// broken returns the error of an operation on a broken connection.
func broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return os.ErrDeadlineExceeded
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
		return io.EOF
	case errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the connection to the port was lost; connect again")
}

// Read implements [net.Conn].
func (t *tunnel) Read(p []byte) (int, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	ctx, cancel := t.until(&t.readDeadline)
	defer cancel()
	if ctx.Err() != nil {
		return 0, os.ErrDeadlineExceeded
	}
	for {
		if t.ended {
			return 0, io.EOF
		}
		if t.message == nil {
			kind, message, err := t.conn.Reader(ctx)
			if err != nil {
				return 0, broken(ctx, err)
			}
			if kind == websocket.MessageText {
				t.ended = true
				continue
			}
			t.message = message
		}
		n, err := t.message.Read(p)
		if err == io.EOF {
			t.message, err = nil, nil
		}
		if err != nil {
			return n, broken(ctx, err)
		}
		if n > 0 || len(p) == 0 {
			return n, nil
		}
	}
}

// Write implements [net.Conn].
func (t *tunnel) Write(p []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.closed {
		return 0, net.ErrClosed
	}
	written := 0
	for chunk := range slices.Chunk(p, tunnelChunk) {
		if err := t.send(websocket.MessageBinary, chunk); err != nil {
			return written, err
		}
		written += len(chunk)
	}
	return written, nil
}

func (t *tunnel) send(kind websocket.MessageType, p []byte) error {
	ctx, cancel := t.until(&t.writeDeadline)
	defer cancel()
	if ctx.Err() != nil {
		return os.ErrDeadlineExceeded
	}
	if err := t.conn.Write(ctx, kind, p); err != nil {
		return broken(ctx, err)
	}
	return nil
}

// CloseWrite ends the sending direction. The other one can still be read.
func (t *tunnel) CloseWrite() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	return t.send(websocket.MessageText, []byte(tunnelEOF))
}

// Close implements [net.Conn].
func (t *tunnel) Close() error {
	if err := t.conn.CloseNow(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// SetDeadline implements [net.Conn]. It applies to operations that begin after it.
func (t *tunnel) SetDeadline(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readDeadline, t.writeDeadline = at, at
	return nil
}

// SetReadDeadline implements [net.Conn]. It applies to reads that begin after it.
func (t *tunnel) SetReadDeadline(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readDeadline = at
	return nil
}

// SetWriteDeadline implements [net.Conn]. It applies to writes that begin after it.
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeDeadline = at
	return nil
}

// tunnelAddr is SANDBOX:PORT.
type tunnelAddr string

// Network implements [net.Addr].
func (tunnelAddr) Network() string { return "cove" }

// String implements [net.Addr].
func (a tunnelAddr) String() string { return string(a) }

// LocalAddr implements [net.Conn].
func (t *tunnel) LocalAddr() net.Addr { return tunnelAddr("local") }

// RemoteAddr implements [net.Conn].
func (t *tunnel) RemoteAddr() net.Addr { return t.where }
