package service

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/sandbox"
)

// DialPort implements [sandbox.Previews].
func (s *Service) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesWrite), func(c *call.Call) (net.Conn, error) {
		if err := validate.Port("port", port); err != nil {
			return nil, err
		}
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		return s.dialPort(c.Ctx, h, port, true)
	})
}

// dialPort opens a connection to a port of a running sandbox. Bytes on it count
// as use of the sandbox.
func (s *Service) dialPort(ctx context.Context, h *handle, port int, loopback bool) (net.Conn, error) {
	gateway, ok := h.instance.(engine.Gateway)
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server cannot connect to ports of sandboxes")
	}
	h.Touch(time.Now())
	conn, err := gateway.DialPort(ctx, port, loopback)
	if err != nil {
		return nil, h.explain(ctx, err)
	}
	return &portConn{Conn: conn, h: h}, nil
}

// touchEvery is how exactly the use of a connection is noted.
const touchEvery = time.Second

// portConn is a connection to a port of a sandbox.
type portConn struct {
	net.Conn
	h       *handle
	touched atomic.Int64 // unix nanoseconds
}

// Read implements [net.Conn].
func (c *portConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.used(n)
	return n, err
}

// Write implements [net.Conn].
func (c *portConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.used(n)
	return n, err
}

// CloseWrite ends what is sent, if the connection below can.
func (c *portConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *portConn) used(n int) {
	now := time.Now()
	if last := c.touched.Load(); n > 0 && now.UnixNano()-last > int64(touchEvery) && c.touched.CompareAndSwap(last, now.UnixNano()) {
		c.h.Touch(now)
	}
}

// closeWrite ends one direction of a connection, or all of one that has no
// directions of its own.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// visitors are the connections of previews that are open. Its zero value has
// none.
type visitors struct {
	mu   sync.Mutex
	open map[string]map[*visitConn]bool // by preview; guarded by mu
}

// visitConn is a connection that ends with its preview.
type visitConn struct {
	net.Conn
	once   sync.Once
	gone   func()
	expiry *time.Timer // guarded by the mu of visitors
}

// CloseWrite ends what is sent, if the connection below can.
func (c *visitConn) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements [net.Conn].
func (c *visitConn) Close() error {
	c.once.Do(c.gone)
	return c.Conn.Close()
}

// add notes a connection of a preview that may expire.
func (v *visitors) add(preview string, conn net.Conn, expires *time.Time) net.Conn {
	c := &visitConn{Conn: conn}
	c.gone = func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if c.expiry != nil {
			c.expiry.Stop()
		}
		if delete(v.open[preview], c); len(v.open[preview]) == 0 {
			delete(v.open, preview)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open == nil {
		v.open = map[string]map[*visitConn]bool{}
	}
	if v.open[preview] == nil {
		v.open[preview] = map[*visitConn]bool{}
	}
	v.open[preview][c] = true
	if expires != nil {
		c.expiry = time.AfterFunc(time.Until(*expires), func() { _ = c.Close() })
	}
	return c
}

// end closes the connections of a preview, or of all for "".
func (v *visitors) end(preview string) {
	var all []*visitConn
	v.mu.Lock()
	for id, conns := range v.open {
		for c := range conns {
			if preview == "" || id == preview {
				all = append(all, c)
			}
		}
	}
	v.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}
