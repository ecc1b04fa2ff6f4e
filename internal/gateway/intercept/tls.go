package intercept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// maxHello bounds a ClientHello with its record headers, in bytes.
const maxHello = 64 << 10

// serveTLS terminates the sandbox's TLS and serves the protocol inside.
func (s *session) serveTLS() error {
	// The deadline covers everything until the client has sent data inside TLS.
	if err := s.conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	hello, raw, err := readHello(s.conn)
	if err != nil {
		return err
	}
	if name := normalName(hello.name); name != normalName(s.c.Name) {
		return fmt.Errorf("the ClientHello names %q, the connection was judged as %q", name, s.c.Name)
	}
	replayed := &replayConn{Conn: s.conn, first: raw}
	if !hello.mayBeHTTP() {
		if s.x.bindings.Load().changeRequestsTo(s.host) {
			return fmt.Errorf("the client offers no HTTP in TLS (%q), and a secret or headers are for %s", hello.alpn, s.host)
		}
		return s.passThrough(replayed)
	}
	conn := tls.Server(replayed, &tls.Config{
		NextProtos: []string{"h2", "http/1.1"},
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.x.issuer.certificate(s.host)
		},
	})
	if err := conn.HandshakeContext(s.ctx); err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // an alert
			return fmt.Errorf("the client in the sandbox does not trust the gateway's certificate: %w", err)
		}
		return fmt.Errorf("TLS with the sandbox: %w", err)
	}
	if conn.ConnectionState().NegotiatedProtocol != "" {
		if err := s.conn.SetDeadline(time.Time{}); err != nil {
			return err
		}
		return s.serveHTTP(conn)
	}
	return s.serveUnknown(conn)
}

// hello holds the relevant fields of a ClientHello.
type hello struct {
	name string
	alpn []string
}

// mayBeHTTP reports whether the client may speak HTTP: it offers HTTP, or no protocol at
// all.
func (h hello) mayBeHTTP() bool {
	return len(h.alpn) == 0 || slices.Contains(h.alpn, "h2") || slices.Contains(h.alpn, "http/1.1")
}

var errHelloRead = errors.New("hello read")

// readHello reads a ClientHello and returns it with all bytes read.
func readHello(conn net.Conn) (hello, []byte, error) {
	var h *hello
	var raw bytes.Buffer
	// The standard library parses it here, as in the later handshake: both must see the same
	// name.
	r := io.TeeReader(io.LimitReader(conn, maxHello), &raw)
	err := tls.Server(readOnly{r: r}, &tls.Config{
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			h = &hello{name: info.ServerName, alpn: slices.Clone(info.SupportedProtos)}
			return nil, errHelloRead
		},
	}).HandshakeContext(context.Background())
	if h == nil {
		return hello{}, nil, fmt.Errorf("no ClientHello from the sandbox: %w", err)
	}
	return *h, raw.Bytes(), nil
}

// readOnly is a connection that discards writes.
type readOnly struct {
	net.Conn // nil, because nothing else is called
	r        io.Reader
}

func (c readOnly) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (c readOnly) Close() error                     { return nil }
func (c readOnly) SetDeadline(time.Time) error      { return nil }
func (c readOnly) SetReadDeadline(time.Time) error  { return nil }
func (c readOnly) SetWriteDeadline(time.Time) error { return nil }

// replayConn is a connection whose first bytes have already been read.
type replayConn struct {
	net.Conn
	first []byte
	// pending, if not nil, comes first: another goroutine is still reading it.
	pending <-chan sniffed
}

func (c *replayConn) Read(p []byte) (int, error) {
	if c.pending != nil {
		got := <-c.pending
		c.pending, c.first = nil, got.first
		if len(got.first) == 0 && got.err != nil {
			return 0, got.err
		}
	}
	if len(c.first) > 0 {
		n := copy(p, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *replayConn) CloseWrite() error { return closeWrite(c.Conn) }

// passThrough connects the client to the host without terminating TLS.
func (s *session) passThrough(client *replayConn) error {
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	host, err := s.dial(s.ctx, s.c.Name)
	if err != nil {
		return err
	}
	s.relay(client, host)
	return nil
}

// serveUnknown serves a client that negotiated no protocol in TLS. It may send HTTP or
// something else, or wait for the host to send first.
func (s *session) serveUnknown(client *tls.Conn) error {
	fromClient := make(chan sniffed, 1)
	go func() { fromClient <- sniff(client) }()
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	select {
	case got := <-fromClient:
		return s.serveSniffed(client, got)
	case <-timer.C:
	}
	host, err := s.dialTLS(s.ctx)
	if err != nil {
		s.cancel()
		<-fromClient
		return err
	}
	fromHost := make(chan sniffed, 1)
	go func() {
		b := make([]byte, 4096)
		n, err := host.Read(b)
		fromHost <- sniffed{first: b[:n], err: err}
	}()
	select {
	case got := <-fromClient:
		if got.http || got.err != nil {
			host.Close()
			<-fromHost
			return s.serveSniffed(client, got)
		}
		s.tunnel(&replayConn{Conn: client, first: got.first}, &replayConn{Conn: host, pending: fromHost})
	case got := <-fromHost:
		if got.err != nil {
			host.Close()
			s.cancel()
			<-fromClient
			return nil
		}
		s.tunnel(&replayConn{Conn: client, pending: fromClient}, &replayConn{Conn: host, first: got.first})
	}
	return nil
}

func (s *session) serveSniffed(client *tls.Conn, got sniffed) error {
	if got.err != nil {
		return nil // the client disconnected
	}
	conn := &replayConn{Conn: client, first: got.first}
	if got.http {
		if err := s.conn.SetDeadline(time.Time{}); err != nil {
			return err
		}
		return s.serveHTTP(conn)
	}
	host, err := s.dialTLS(s.ctx)
	if err != nil {
		return err
	}
	s.tunnel(conn, host)
	return nil
}

// tunnel relays the bytes of an unknown protocol between two TLS connections.
func (s *session) tunnel(client, host net.Conn) {
	_ = s.conn.SetDeadline(time.Time{})
	s.relay(client, host)
}

// relay copies bytes in both directions until both have ended, or one fails.
func (s *session) relay(client, host net.Conn) {
	stop := context.AfterFunc(s.ctx, func() { host.Close() })
	defer stop()
	var wg sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = closeWrite(to)
		}
		if err != nil {
			to.Close()
			from.Close()
		}
	}
	wg.Go(func() { pass(host, client) })
	pass(client, host)
	wg.Wait()
	client.Close()
	host.Close()
}

// sniffed is the first data from one side of a connection.
type sniffed struct {
	first []byte
	http  bool
	err   error
}

// sniff reads until it is clear whether a client speaks HTTP.
func sniff(conn net.Conn) sniffed {
	var first []byte
	b := make([]byte, 4096)
	for {
		n, err := conn.Read(b)
		first = append(first, b[:n]...)
		if isHTTP, decided := looksLikeHTTP(first); decided || err != nil {
			if len(first) > 0 {
				err = nil
			}
			return sniffed{first: first, http: isHTTP, err: err}
		}
	}
}

// looksLikeHTTP reports whether the data from a client is the start of an HTTP request,
// once that can be decided. In case of doubt it is: the server then refuses data that it
// cannot parse, so that nothing that a lenient host would accept as a request passes
// unchecked.
func looksLikeHTTP(b []byte) (is, decided bool) {
	trimmed := bytes.TrimLeft(b, "\r\n\t ")
	if len(trimmed) < len(b) {
		return true, true
	}
	i := bytes.IndexFunc(b, func(r rune) bool { return !isTokenChar(r) })
	if i < 0 {
		return false, len(b) > 64 // no method is that long
	}
	if i == 0 || b[i] != ' ' && b[i] != '\t' {
		return false, true
	}
	method, target := bytes.ToUpper(b[:i]), bytes.TrimLeft(b[i:], " \t")
	if string(method) == "CONNECT" || bytes.HasPrefix(target, []byte("/")) || bytes.HasPrefix(target, []byte("*")) {
		return true, true
	}
	for _, scheme := range []string{"http://", "https://"} {
		n := min(len(scheme), len(target))
		if !bytes.EqualFold(target[:n], []byte(scheme)[:n]) {
			continue
		}
		if n == len(scheme) {
			return true, true
		}
		return false, false // more data is needed
	}
	// Any other target, such as in "GET host/path".
	line, _, whole := bytes.Cut(target, []byte("\n"))
	return bytes.Contains(bytes.ToUpper(line), []byte(" HTTP/")), whole || len(target) > 8<<10
}

func isTokenChar(r rune) bool {
	return r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}
