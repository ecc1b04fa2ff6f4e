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
	conn *notifyConn
	// host is the name or address that the connection is for. Over TLS, requests to other
	// hosts are refused.
	host string

	// handlers counts the requests in progress; begin adds to it.
	handlers sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// ended reports that no further request may start.
	ended bool
	// transport is created by the first request, which determines the version of HTTP.
	transport *http.Transport
	// idle reports whether the client's HTTP/1 connection is between requests. upstreams
	// counts the connections to the host; closed reports whether one was open and has ended.
	idle      bool
	upstreams int
	closed    bool
}

func newSession(ctx context.Context, x *Interceptor, c *egress.Intercepted) *session {
	s := &session{x: x, c: c, host: normalName(c.Name)}
	if s.host == "" {
		s.host = c.Destination.Addr().Unmap().String()
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.conn = &notifyConn{Conn: c.Conn, onClose: s.cancel}
	context.AfterFunc(s.ctx, func() { s.conn.Close() })
	return s
}

// end closes the session's connections and waits for its requests.
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

// begin registers a request, unless the session has ended: the server may read a
// request from a connection that is being closed.
func (s *session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.handlers.Add(1)
	return true
}

// serveHTTP passes a connection to the server and waits until it is closed.
func (s *session) serveHTTP(conn net.Conn) error {
	s.x.sessions.Store(conn, s)
	defer s.x.sessions.Delete(conn)
	if !s.x.conns.pass(conn) {
		return net.ErrClosed
	}
	<-s.ctx.Done()
	return nil
}

// connContext returns a context for requests that contains their session and ends with
// it.
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

// connState closes the sandbox's HTTP/1 connection between requests when the host has
// closed its own, as the sandbox would see it without the gateway. Otherwise the
// sandbox's next request, which may not be repeatable, would fail.
//
// It does not close HTTP/2 connections: they do not correspond to connections to the
// host, and the server reports them as idle before their last frames are written.
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
	s.closeIfStale()
}

// closeIfStale closes the sandbox's connection if it is idle and the host has closed its
// own. The caller must hold s.mu.
func (s *session) closeIfStale() {
	if s.c.TLS && s.idle && s.closed && s.upstreams == 0 {
		s.cancel()
	}
}

// transportFor returns the transport to the host for a client's version of HTTP.
func (s *session) transportFor(r *http.Request) *http.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transport != nil {
		return s.transport
	}
	http2 := r.ProtoMajor == 2
	s.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return s.dial(ctx, host)
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if http2 {
				return s.dialTLS(ctx, "h2", "http/1.1")
			}
			return s.dialTLS(ctx, "http/1.1")
		},
		// The host gets the client's version where it supports that version: an upgrade needs
		// HTTP/1, and gRPC needs HTTP/2.
		Protocols:              protocols(!http2 || s.c.TLS, http2 && s.c.TLS, http2 && !s.c.TLS),
		DisableCompression:     true,
		MaxConnsPerHost:        maxStreams,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: connectionBuffer,
			// The table would retain values for as long as the connection lasts.
			MaxEncoderHeaderTableSize: 1,
		},
	}
	return s.transport
}

// dial opens a connection to a host if the network policy allows it.
func (s *session) dial(ctx context.Context, host string) (net.Conn, error) {
	// The transport may continue to dial after the request has ended.
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
	s.closed = false
	return &notifyConn{Conn: conn, onClose: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.upstreams--
		s.closed = true
		s.closeIfStale()
	}}, nil
}

// dialTLS opens a TLS connection to the session's host and verifies its certificate.
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

// dialError means that a host cannot be reached, or that the policy forbids it.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// trustError means that the certificate of a host cannot be verified.
type trustError struct{ error }

func (e *trustError) Unwrap() error { return e.error }

// notifyConn is a connection that calls onClose when it is closed on this side.
type notifyConn struct {
	net.Conn
	once    sync.Once
	onClose func()
}

func (c *notifyConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.onClose)
	return err
}

func (c *notifyConn) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite closes the sending direction of a connection that supports this.
func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// normalName normalizes a host's name for comparison.
func normalName(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }
