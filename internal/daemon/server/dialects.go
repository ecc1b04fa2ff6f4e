package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/sandbox"
)

// dialectListener is an address on which /mcp speaks a dialect. All else is
// there as on every other.
type dialectListener struct {
	net.Listener
	dialect string
}

// dialectConn is a connection to such an address.
type dialectConn struct {
	net.Conn
	dialect string
}

// CloseWrite is for the HTTP server: a client that still sends has an answer to
// read.
func (c *dialectConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Accept implements [net.Listener].
func (l *dialectListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &dialectConn{c, l.dialect}, nil
}

// withDialect gives the requests of a connection the dialect of its address.
func withDialect(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if d, ok := c.(*dialectConn); ok {
		return mcpserver.WithDialect(ctx, d.dialect)
	}
	return ctx
}

// ownPlain reports whether a listener speaks HTTP though others speak HTTPS: a
// dialect's clients on this machine know no certificate for 127.0.0.1.
func ownPlain(l net.Listener) bool {
	d, ok := l.(*dialectListener)
	if !ok {
		return false
	}
	addr, err := netip.ParseAddrPort(d.Addr().String())
	return err == nil && addr.Addr().IsLoopback()
}

// listenDialects opens the addresses that speak a dialect of their own.
func (f *front) listenDialects(ctx context.Context) error {
	for _, s := range f.s.cfg.DialectPorts {
		name, addr, ok := config.ParseDialectPort(s)
		if !ok {
			return sandbox.Errorf(sandbox.CodeInvalid, "%q is not of the form NAME=PORT or NAME=HOST:PORT", s)
		}
		d, err := all.Find(name)
		if err != nil {
			return err
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if err != nil {
			return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on %s for %s (%v); choose another address with --dialect-port", addr, name, err))
		}
		f.listeners = append(f.listeners, &dialectListener{f.s.bounded(l), d.Name()})
	}
	return nil
}

// sayDialects tells which addresses speak a dialect of their own.
func (f *front) sayDialects() {
	for _, l := range f.listeners {
		if d, ok := l.(*dialectListener); ok {
			f.s.log.Info("serving a dialect", "dialect", d.dialect, "tcp", d.Addr().String())
			if f.s.deps.DialectReady != nil {
				f.s.deps.DialectReady(d.dialect, d.Addr())
			}
		}
	}
}

// dialectFronts puts the fronts of dialects before everything else; they ask
// themselves who calls.
func (s *Server) dialectFronts(p *parts, mcp *mcpserver.Handler, keys *auth.Keys, bound *perKey, rest http.Handler) http.Handler {
	byDialect, byPath := map[string]http.Handler{}, map[string]http.Handler{}
	type place struct{ dialect, path string }
	byPort := map[place]http.Handler{}
	for _, d := range all.Dialects() {
		fronted, ok := d.(dialect.Fronted)
		if !ok {
			continue
		}
		h := fronted.Front(dialect.FrontConfig{
			Service: p.service, MCP: bound.handler(mcp), Log: s.log, StateDir: s.cfg.StateDir,
			Trusted:      s.trusted,
			Authenticate: keys.Authenticate,
			Refuse:       hurry,
		})
		byDialect[d.Name()] = h
		for _, at := range fronted.Paths() {
			byPath[at] = h
		}
		if ported, ok := d.(dialect.Ported); ok {
			for _, at := range ported.PortPaths() {
				byPort[place{d.Name(), at}] = h
			}
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := path.Clean("/" + r.URL.Path)
		h := byPath[clean]
		if own := byPort[place{mcpserver.OwnDialect(r.Context()), clean}]; own != nil {
			h = own
		}
		if doorOf(clean) == "mcp" {
			h = byDialect[mcp.Dialect(r)]
		}
		if h == nil {
			h = rest
		}
		h.ServeHTTP(w, r)
	})
}
