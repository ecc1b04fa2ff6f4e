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
	"sync"
	"time"
)

// maxHello bounds a ClientHello with its records.
const maxHello = 64 << 10

// serveTLS ends the sandbox's TLS and serves what is in it.
func (s *session) serveTLS() error {
	// For all until the client has spoken inside of TLS.
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
	replayed := &replay{Conn: s.conn, first: raw}
	if !hello.mayBeHTTP() {
		if len(s.x.bindings.Load().of(s.host)) > 0 {
			return fmt.Errorf("the client offers no HTTP in TLS (%q), and a secret is for %s", hello.alpn, s.host)
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

// hello is what matters of a ClientHello.
type hello struct {
	name string
	alpn []string
}

// mayBeHTTP tells whether the client may speak HTTP: one that offers nothing
// may.
func (h hello) mayBeHTTP() bool {
	return len(h.alpn) == 0 || slices.Contains(h.alpn, "h2") || slices.Contains(h.alpn, "http/1.1")
}

var errHelloRead = errors.New("hello read")

// readHello reads a ClientHello, and returns with it all bytes that it has
// read.
func readHello(conn net.Conn) (hello, []byte, error) {
	var h *hello
	var raw bytes.Buffer
	// The standard library parses it: whoever ends the TLS must not see
	// another name than whoever judged it.
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

// readOnly is a connection that swallows what is written.
type readOnly struct {
	net.Conn // nil: nothing else is called
	r        io.Reader
}

func (c readOnly) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (c readOnly) Close() error                     { return nil }
func (c readOnly) SetDeadline(time.Time) error      { return nil }
func (c readOnly) SetReadDeadline(time.Time) error  { return nil }
func (c readOnly) SetWriteDeadline(time.Time) error { return nil }

// replay is a connection whose first bytes were read already.
type replay struct {
	net.Conn
	first []byte
}

// Read implements [io.Reader].
func (c *replay) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends the direction out, if the connection can do that.
func (c *replay) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// passThrough connects the client to the host as it is.
func (s *session) passThrough(client *replay) error {
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	host, err := s.dial(s.ctx, s.c.Name)
	if err != nil {
		return err
	}
	s.carry(client, host)
	return nil
}

// serveUnknown serves a client that did not say what it will speak in TLS. It
// may speak HTTP, or something else, or wait for the host to speak first.
func (s *session) serveUnknown(client *tls.Conn) error {
	spoke := make(chan sniffed, 1)
	go func() { spoke <- sniff(client) }()
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	select {
	case said := <-spoke:
		return s.serveSniffed(client, said)
	case <-timer.C:
	}
	host, err := s.dialTLS(s.ctx)
	if err != nil {
		s.cancel()
		<-spoke
		return err
	}
	answered := make(chan sniffed, 1)
	go func() {
		b := make([]byte, 4096)
		n, err := host.Read(b)
		answered <- sniffed{first: b[:n], err: err}
	}()
	select {
	case said := <-spoke:
		if said.http || said.err != nil {
			host.Close()
			<-answered
			return s.serveSniffed(client, said)
		}
		s.tunnel(&replay{client, said.first}, &late{Conn: host, first: answered})
	case said := <-answered:
		if said.err != nil {
			host.Close()
			s.cancel()
			<-spoke
			return nil
		}
		s.tunnel(&late{Conn: client, first: spoke}, &replay{host, said.first})
	}
	return nil
}

func (s *session) serveSniffed(client *tls.Conn, said sniffed) error {
	if said.err != nil {
		return nil // the client went away
	}
	conn := &replay{client, said.first}
	if said.http {
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

// tunnel carries bytes between two ends of TLS.
func (s *session) tunnel(client, host net.Conn) {
	_ = s.conn.SetDeadline(time.Time{})
	s.carry(client, host)
}

// carry copies bytes both ways until both have ended, or one fails.
func (s *session) carry(client, host net.Conn) {
	stop := context.AfterFunc(s.ctx, func() { host.Close() })
	defer stop()
	var wg sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			err = w.CloseWrite()
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

// sniffed is what one side has said first.
type sniffed struct {
	first []byte
	http  bool
	err   error
}

// late is a connection whose first bytes somebody else is still reading.
type late struct {
	net.Conn
	first <-chan sniffed
	rest  []byte
}

// Read implements [io.Reader].
func (c *late) Read(p []byte) (int, error) {
	if c.first != nil {
		said := <-c.first
		c.first, c.rest = nil, said.first
		if len(said.first) == 0 && said.err != nil {
			return 0, said.err
		}
	}
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends the direction out.
func (c *late) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
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

// looksLikeHTTP tells whether what a client has sent is the beginning of an
// HTTP request, once that can be told. In doubt it is: the server then refuses
// what it cannot parse, and nothing that a lenient host takes for a request
// passes unread.
func looksLikeHTTP(b []byte) (is, decided bool) {
	trimmed := bytes.TrimLeft(b, "\r\n\t ")
	if len(trimmed) < len(b) {
		return true, true
	}
	i := bytes.IndexFunc(b, func(r rune) bool { return !isTokenChar(r) })
	if i < 0 {
		return false, len(b) > 64 // a long word is no method
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
		return false, false // wait for the rest of it
	}
	// A request's target that is none of these, such as "GET host/path".
	return bytes.Contains(bytes.ToUpper(firstLine(target)), []byte(" HTTP/")), bytes.ContainsRune(target, '\n') || len(target) > 8<<10
}

func firstLine(b []byte) []byte {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return line
}

func isTokenChar(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return true
	}
	return r < 0x80 && bytes.ContainsRune([]byte("!#$%&'*+-.^_`|~"), r)
}
