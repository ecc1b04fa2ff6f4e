package internet

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// What is served at every address but the resolver's. The ports are TCP unless
// they say otherwise.
const (
	// PortEcho gives back what it gets, over TCP and UDP.
	PortEcho = 7
	// PortSSH greets first, as servers of SSH do.
	PortSSH = 22
	// PortHTTP and PortHTTPS answer with what they were asked; see [Request].
	PortHTTP  = 80
	PortHTTPS = 443
	// PortDoT is TLS that is no HTTP.
	PortDoT = 853
)

// TokenPause is how long a stream of events pauses after its first.
const TokenPause = 50 * time.Millisecond

// Request is what servers of HTTP answer, as JSON. Some paths do otherwise:
// /bytes?n=N is N bytes, /sink answers how many bytes came, /redirect?to=URL
// leads there, and /tokens is a stream of events as models answer with, whose
// second comes [TokenPause] after the first.
type Request struct {
	Method  string              `json:"method"`
	Host    string              `json:"host"`
	Path    string              `json:"path"`
	Query   string              `json:"query,omitempty"`
	Proto   string              `json:"proto"`
	Address string              `json:"address"` // of the server
	TLSName string              `json:"tls_name,omitempty"`
	Header  map[string][]string `json:"header"`
	Body    string              `json:"body,omitempty"`
}

func (n *Internet) serve() error {
	quiet := log.New(io.Discard, "", 0)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	web := &http.Server{Handler: http.HandlerFunc(n.answer), ErrorLog: quiet, Protocols: &protocols, TLSConfig: &tls.Config{GetCertificate: n.ca.certificate}}
	n.close = append(n.close, func() { web.Close() })
	serveWeb := func(l net.Listener) { _ = web.Serve(l) }
	serveTLS := func(l net.Listener) { _ = web.ServeTLS(l, "", "") }
	for port, serve := range map[int]func(net.Listener){
		PortEcho: each(echo), PortSSH: each(greet), PortHTTP: serveWeb, 8080: serveWeb, PortHTTPS: serveTLS, 8443: serveTLS, PortDoT: serveTLS,
		53: each(n.dns.serveStream),
	} {
		l, err := n.Listen("0.0.0.0:" + strconv.Itoa(port))
		if err != nil {
			return err
		}
		n.close = append(n.close, func() { l.Close() })
		n.wg.Go(func() { serve(l) })
	}
	for _, a := range slices.Concat([]netip.Addr{Resolver}, Public, Private) {
		if err := n.servePackets(a); err != nil {
			return err
		}
	}
	return nil
}

// servePackets serves UDP at one address.
func (n *Internet) servePackets(a netip.Addr) error {
	mirror := func(b []byte) []byte { return b }
	for port, reply := range map[uint16]func([]byte) []byte{PortEcho: mirror, 53: n.dns.answer, 123: mirror, 443: mirror} {
		where := netip.AddrPortFrom(a, port).String()
		pc, err := n.ListenPacket(where)
		if err != nil {
			return err
		}
		n.close = append(n.close, func() { pc.Close() })
		n.wg.Go(func() {
			b := make([]byte, 64<<10)
			for {
				size, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				n.visit("udp " + where)
				if out := reply(b[:size]); out != nil {
					_, _ = pc.WriteTo(out, from)
				}
			}
		})
	}
	return nil
}

// each serves the connections of a listener.
func each(serve func(net.Conn)) func(net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // the next may have more luck
				fmt.Fprintln(os.Stderr, "internet:", err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}
}

// echo copies by itself: the kernel's help costs two more descriptors for each of
// many connections.
func echo(c net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 4<<10))
}

func greet(c net.Conn) {
	_, _ = io.WriteString(c, "SSH-2.0-test\r\n")
	_, _ = io.Copy(io.Discard, c)
}

// Serve has requests to a host answered by another handler, over HTTP and HTTPS,
// until the test ends. The name must be one that the Internet knows.
func (n *Internet) Serve(t testing.TB, host string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sites[host] != nil {
		t.Fatalf("two tests serve %s at once", host)
	}
	n.sites[host] = h
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.sites, host)
	})
}

// site returns the handler of a host, or nil.
func (n *Internet) site(host string) http.Handler {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sites[host]
}

// answer is the server of HTTP.
func (n *Internet) answer(w http.ResponseWriter, r *http.Request) {
	if h := n.site(r.Host); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case "/bytes":
		size, _ := strconv.ParseInt(r.FormValue("n"), 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = io.CopyN(w, zeros{}, size)
		return
	case "/sink":
		size, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "{\"bytes\": %d}\n", size)
		return
	case "/redirect":
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
		return
	case "/tokens":
		streamTokens(w, r)
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	said := Request{
		Method: r.Method, Host: r.Host, Path: r.URL.Path, Query: r.URL.RawQuery, Proto: r.Proto, Header: r.Header, Body: string(body),
	}
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		said.Address = a.String()
	}
	if r.TLS != nil {
		said.TLSName = r.TLS.ServerName
	}
	n.mu.Lock()
	n.asked[r.URL.Path] = said
	n.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(said)
}

// streamTokens says a first word, and the last one after a pause.
func streamTokens(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-time.After(TokenPause):
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	case <-r.Context().Done():
	}
}

// Request returns the last request for a path that was answered with itself.
func (n *Internet) Request(path string) Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[path]
}

// zeros is without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Certificate writes a certificate of this Internet's authority for names, or an
// address, into a directory, and its key, and returns the paths.
func (n *Internet) Certificate(t testing.TB, dir string, names ...string) (cert, key string) {
	t.Helper()
	c, err := n.ca.leaf(strings.Join(names, ","))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// authority certifies whatever name it is asked for.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu
}

// newAuthority makes one, and writes its certificate to a file.
func newAuthority(file string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test Internet"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &authority{cert: cert, key: key, leaves: map[string]*tls.Certificate{}}, os.WriteFile(file, text, 0o644)
}

// certificate returns that of a server, for the name or the address at which it
// is asked.
func (a *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := hello.ServerName
	if name == "" {
		name, _, _ = net.SplitHostPort(hello.Conn.LocalAddr().String())
	}
	return a.leaf(name)
}

// leaf returns the certificate of names with commas between them, or of an address.
func (a *authority) leaf(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[name]; c != nil {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = strings.Split(name, ",")
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	a.leaves[name] = c
	return c, nil
}
