// Package expose connects others to the ports of sandboxes: visitors of previews and
// live views, clients of ports that are published on the host, and other sandboxes.
package expose

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Config says what an [Exposer] works with.
type Config struct {
	Gate  *call.Gate
	Store store.Store
	Log   *slog.Logger
	Links Links
	// URL makes the URL of a preview from the first label of its host name.
	URL func(label string) string
	// Open opens a sandbox of a realm by its id or name, and resumes it if it is
	// paused. OpenFor does so for a call, which counts as use. OpenRecord opens a
	// running sandbox by its record.
	Open       func(ctx context.Context, in call.Realm, ref string) (Sandbox, error)
	OpenFor    func(c *call.Call, ref string) (Sandbox, error)
	OpenRecord func(ctx context.Context, r *store.Record) (Sandbox, error)
	// Wake resumes a paused sandbox, once for all concurrent callers.
	Wake func(ctx context.Context, r *store.Record) (store.Record, error)
	// NoScreen returns the error for a sandbox that is not a computer.
	NoScreen func(ctx context.Context, id string) error
}

// Sandbox is a running sandbox.
type Sandbox interface {
	// DialPort opens a connection to a port, on the loopback device or on the device
	// for traffic of other sandboxes. Errors are for the caller.
	DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error)
	// Touch records that the sandbox was in use at the given time.
	Touch(at time.Time)
}

// Exposer implements [sandbox.Previews], and live views. It is safe for
// concurrent use.
type Exposer struct {
	// Ports are the ports of the host that lead to sandboxes.
	Ports    *Publisher
	cfg      Config
	visitors visitors
}

// New returns an exposer.
func New(cfg Config) *Exposer {
	x := &Exposer{cfg: cfg}
	x.Ports = &Publisher{x: x, open: map[string]*Published{}}
	return x
}

// EndConnections ends all published ports and all connections of visitors.
func (x *Exposer) EndConnections() {
	x.Ports.closeAll()
	x.visitors.end("")
}

// DialPort implements [sandbox.Previews].
func (x *Exposer) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	return call.Do(ctx, x.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesWrite), func(c *call.Call) (net.Conn, error) {
		if err := validate.Port("port", port); err != nil {
			return nil, err
		}
		h, err := x.cfg.OpenFor(c, ref)
		if err != nil {
			return nil, err
		}
		return x.dialPort(c.Ctx, h, port, true)
	})
}

// dialPort opens a connection to a port of a running sandbox. Bytes on it count
// as use of the sandbox.
func (x *Exposer) dialPort(ctx context.Context, sbx Sandbox, port int, loopback bool) (net.Conn, error) {
	sbx.Touch(time.Now())
	conn, err := sbx.DialPort(ctx, port, loopback)
	if err != nil {
		return nil, err
	}
	return &portConn{Conn: conn, sbx: sbx}, nil
}

// touchEvery is the resolution with which the use of a connection is recorded.
const touchEvery = time.Second

// portConn is a connection to a port of a sandbox.
type portConn struct {
	net.Conn
	sbx     Sandbox
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

// CloseWrite ends the sending direction; see [closeWrite].
func (c *portConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *portConn) used(n int) {
	now := time.Now()
	if last := c.touched.Load(); n > 0 && now.UnixNano()-last > int64(touchEvery) && c.touched.CompareAndSwap(last, now.UnixNano()) {
		c.sbx.Touch(now)
	}
}

// closeWrite closes the sending direction of a connection, or the whole connection if
// its directions cannot be closed separately.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// visitors has the open connections of previews. Its zero value has none.
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

// CloseWrite ends the sending direction; see [closeWrite].
func (c *visitConn) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements [net.Conn].
func (c *visitConn) Close() error {
	c.once.Do(c.gone)
	return c.Conn.Close()
}

// add registers a connection of a preview, which ends when the preview expires.
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
