package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/gateway/egress"
)

// session is one connection of the sandbox.
type session struct {
	x *Interceptor
	c *egress.Intercepted
	// ctx ends when the connection does.
	ctx    context.Context
	cancel context.CancelFunc
	// conn is c.Conn; closing it ends the session.
	conn *watched
	// host is what the connection is to, a name or an address. Over TLS only
	// requests to it are taken.
	host string

	// handlers counts the requests under way; begin adds to it.
	handlers sync.WaitGroup

	mu sync.Mutex
	// ended says that no further request begins. Guarded by mu.
	ended bool
	// transport is made for the first request, which tells the version of
	// HTTP. Guarded by mu.
	transport *http.Transport
	// idle says that the client's connection, of HTTP/1, is between requests,
	// upstreams counts connections to the host, and left says that the host
	// has closed the last. Guarded by mu.
	idle      bool
	upstreams int
	left      bool
}

func newSession(ctx context.Context, x *Interceptor, c *egress.Intercepted) *session {
	s := &session{x: x, c: c, host: normalName(c.Name)}
	if s.host == "" {
		s.host = c.Destination.Addr().Unmap().String()
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.conn = &watched{Conn: c.Conn, closed: s.cancel}
	context.AfterFunc(s.ctx, func() { s.conn.Close() })
	return s
}

// end closes what the session has opened and waits for its requests.
func (s *session) end() {
	s.cancel()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.handlers.Wait()
	s.mu.Lock()
	transport := s.transport
	s.mu.Unlock()
	if transport != nil {
		transport.CloseIdleConnections()
	}
}

// begin counts a request in, unless the session is over: the server may read
// one from a connection as it is closed.
func (s *session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.handlers.Add(1)
	return true
}

// serveHTTP gives a connection to the server and waits until it is closed.
func (s *session) serveHTTP(conn net.Conn) error {
	s.x.sessions.Store(conn, s)
	defer s.x.sessions.Delete(conn)
	if !s.x.conns.hand(conn) {
		return net.ErrClosed
	}
	<-s.ctx.Done()
	return nil
}

// connContext gives requests their session, and ends them with it.
func (x *Interceptor) connContext(ctx context.Context, conn net.Conn) context.Context {
	found, ok := x.sessions.Load(conn)
	if !ok {
		return ctx
	}
	s := found.(*session)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, sessionKey{}, s))
	context.AfterFunc(s.ctx, cancel)
	return ctx
}

type sessionKey struct{}

// connState follows a connection of HTTP/1 between requests: when the host
// has closed its end, the sandbox's is closed too, as it would see it without
// us. Otherwise its next request, which may not be repeatable, would fail.
//
// HTTP/2 is left alone: its connections do not stand for the host's, and the
// server calls one idle before its last frames are written.
func (x *Interceptor) connState(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*tls.Conn); ok && c.ConnectionState().NegotiatedProtocol == "h2" {
		return
	}
	found, ok := x.sessions.Load(conn)
	if !ok {
		return
	}
	s := found.(*session)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = state == http.StateIdle
	s.follow()
}

// follow closes the sandbox's connection if it idles and the host's is closed.
// Preconditions: s.mu is held.
func (s *session) follow() {
	if s.c.TLS && s.idle && s.left && s.upstreams == 0 {
		s.cancel()
	}
}

// transportFor returns the way to the host for a client's version of HTTP.
func (s *session) transportFor(r *http.Request) *http.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transport != nil {
		return s.transport
	}
	two := r.ProtoMajor == 2
	s.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return s.dial(ctx, host)
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if two {
				return s.dialTLS(ctx, "h2", "http/1.1")
			}
			return s.dialTLS(ctx, "http/1.1")
		},
		// What the client speaks, the host is spoken to in, where it can: an
		// upgrade needs HTTP/1, and gRPC needs HTTP/2.
		Protocols:              protocols(!two || s.c.TLS, two && s.c.TLS, two && !s.c.TLS),
		DisableCompression:     true,
		MaxConnsPerHost:        maxStreams,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: connectionBuffer,
			// The table would keep values for as long as the connection lasts.
			MaxEncoderHeaderTableSize: 1,
		},
	}
	return s.transport
}

// dial opens a connection to a host as the policy says.
func (s *session) dial(ctx context.Context, host string) (net.Conn, error) {
	// The transport may dial on after the request that it dialled for.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	conn, err := s.c.Dial(ctx, host)
	if err != nil {
		return nil, &dialError{err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upstreams++
	s.left = false
	return &watched{Conn: conn, closed: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.upstreams--
		s.left = true
		s.follow()
	}}, nil
}

// dialTLS opens a connection to the session's host and verifies that it is
// the host.
func (s *session) dialTLS(ctx context.Context, alpn ...string) (*tls.Conn, error) {
	roots, err := s.x.roots()
	if err != nil {
		return nil, &trustError{err}
	}
	raw, err := s.dial(ctx, s.c.Name)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{ServerName: s.host, RootCAs: roots, NextProtos: alpn, MinVersion: tls.VersionTLS12})
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return nil, &trustError{err}
		}
		return nil, &dialError{fmt.Errorf("TLS with %s: %w", s.host, err)}
	}
	return conn, nil
}

// dialError is of a host that cannot be reached, or may not be.
type dialError struct{ cause error }

func (e *dialError) Error() string { return e.cause.Error() }
func (e *dialError) Unwrap() error { return e.cause }

// trustError is of a host that cannot prove that it is the host.
type trustError struct{ cause error }

func (e *trustError) Error() string { return e.cause.Error() }
func (e *trustError) Unwrap() error { return e.cause }

// watched is a connection that tells when it is closed here.
type watched struct {
	net.Conn
	once   sync.Once
	closed func()
}

// Close implements [net.Conn].
func (w *watched) Close() error {
	err := w.Conn.Close()
	w.once.Do(w.closed)
	return err
}

// CloseWrite ends the direction out, if the connection can do that.
func (w *watched) CloseWrite() error {
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// normalName returns a host's name in the form in which names are compared.
func normalName(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }
