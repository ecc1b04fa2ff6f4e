package intercept

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

const (
	apiHost     = "api.example.com"
	otherHost   = "other.example.net"
	placeholder = "sk-test-Aa0Bb1Cc2Dd3Ee4Ff5Gg6Hh7Ii8Jj9Kk"
	value       = "sk-live-THE-REAL-VALUE-0123456789-/+x"
)

// patience is how long a test waits for something that must happen.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a sandbox's gateway with hosts behind it.
type harness struct {
	t    *testing.T
	x    *Interceptor
	ca   *Authority // the sandbox's
	web  *Authority // the hosts'
	port uint16

	mu sync.Mutex
	// hosts are the addresses of hosts by name. Guarded by mu.
	hosts  map[string]string
	events []sandbox.NetworkEvent // guarded by mu
	errs   []error                // guarded by mu
	// ask decides whether a secret may be used; nil allows it. Guarded by mu.
	ask func(ctx context.Context, secret, host string) error
	wg  sync.WaitGroup
}

// secret is the binding that most tests use.
func secret() engine.Binding {
	return engine.Binding{
		Placeholder: placeholder, SecretID: "sec_1", Secret: "anthropic", Hosts: []string{apiHost, "*.wild.example"},
		Auth: sandbox.SecretAuth{Type: "header", Name: "x-api-key", User: "me"},
	}
}

// valuesOf returns the values for bindings.
func valuesOf(values map[string]string) engine.Values {
	return func(yield func(string, []byte) error) error {
		for p, v := range values {
			buf := []byte(v)
			if err := yield(p, buf); err != nil {
				return err
			}
			clear(buf)
		}
		return nil
	}
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	w := &harness{t: t, hosts: map[string]string{}, port: 443}
	var err error
	if w.ca, err = LoadAuthority(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if w.web, err = LoadAuthority(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	text, err := w.ca.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := ParseIssuer(text)
	if err != nil {
		t.Fatal(err)
	}
	if w.x, err = New(Config{Issuer: issuer, ExtraCA: w.web.CertificatePEM()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.x.Close(); err != nil {
			t.Error(err)
		}
		w.wg.Wait()
	})
	w.set(secret(), value)
	return w
}

func (w *harness) set(b engine.Binding, v string) {
	w.t.Helper()
	w.setAction(b, v, sandbox.PlaceholderForward)
}

func (w *harness) setAction(b engine.Binding, v string, action sandbox.PlaceholderAction) {
	w.t.Helper()
	if err := w.x.Set(&engine.Network{Bindings: []engine.Binding{b}, Policy: sandbox.NetworkPolicy{Placeholders: action}}, valuesOf(map[string]string{b.Placeholder: v})); err != nil {
		w.t.Fatal(err)
	}
}

// certificate returns a certificate of the hosts' authority.
func (w *harness) certificate(names ...string) tls.Certificate {
	w.t.Helper()
	return certify(w.t, w.web, names...)
}

func certify(t *testing.T, a *Authority, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := template(names[0], time.Hour, nil)
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// host starts a TLS server that answers for names.
func (w *harness) host(h http.Handler, names ...string) *httptest.Server {
	w.t.Helper()
	return w.hostTLS(h, &tls.Config{Certificates: []tls.Certificate{w.certificate(names...)}, NextProtos: []string{"h2", "http/1.1"}}, names...)
}

func (w *harness) hostTLS(h http.Handler, cfg *tls.Config, names ...string) *httptest.Server {
	w.t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = slices.Contains(cfg.NextProtos, "h2")
	srv.TLS = cfg
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	w.t.Cleanup(srv.Close)
	w.at(srv.Listener.Addr().String(), names...)
	return srv
}

// plainHost starts a server without TLS.
func (w *harness) plainHost(h http.Handler, names ...string) *httptest.Server {
	w.t.Helper()
	srv := httptest.NewServer(h)
	w.t.Cleanup(srv.Close)
	w.at(srv.Listener.Addr().String(), names...)
	return srv
}

func (w *harness) at(addr string, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		w.hosts[n] = addr
	}
}

// connect returns a connection of the sandbox to a name.
func (w *harness) connect(name string, isTLS bool) net.Conn {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { client.Close() })
	ours, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.wg.Go(func() { w.intercept(ours, name, isTLS) })
	return client
}

// intercept plays the gateway's part for one connection.
func (w *harness) intercept(conn net.Conn, name string, isTLS bool) {
	defer conn.Close()
	c := &egress.Intercepted{
		Conn: conn, TLS: isTLS, Name: name, Destination: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), w.port),
		Dial:   w.dial,
		MayUse: w.mayUse,
		Record: func(e sandbox.NetworkEvent) { w.mu.Lock(); w.events = append(w.events, e); w.mu.Unlock() },
	}
	if ip := net.ParseIP(name); ip != nil {
		c.Name, c.Destination = "", netip.AddrPortFrom(netip.MustParseAddr(name), w.port)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := w.x.Intercept(ctx, c); err != nil {
		w.mu.Lock()
		w.errs = append(w.errs, err)
		w.mu.Unlock()
	}
}

func (w *harness) mayUse(ctx context.Context, secret, host string) (bool, error) {
	w.mu.Lock()
	ask := w.ask
	w.mu.Unlock()
	if ask == nil {
		return false, nil
	}
	return true, ask(ctx, secret, host)
}

func (w *harness) dial(ctx context.Context, host string) (net.Conn, error) {
	w.mu.Lock()
	addr := w.hosts[host]
	w.mu.Unlock()
	switch addr {
	case "":
		return nil, &egress.RefusedError{Decision: egress.Decision{Reason: "no rule allows it"}}
	case "down":
		return nil, errors.New("connection refused")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// roots are the authorities that the sandbox trusts.
func (w *harness) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.CertificatePEM())
	return pool
}

// client returns a Go client in the sandbox that speaks one version of HTTP.
func (w *harness) client(version int) *http.Client {
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.roots()},
		Protocols:       protocols(version == 1, version == 2, false),
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			return w.connect(host, port != "80"), nil
		},
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// proxy starts a CONNECT proxy for programs, and returns its URL.
func (w *harness) proxy() string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	w.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() {
				br := bufio.NewReader(conn)
				r, err := http.ReadRequest(br)
				if err != nil || r.Method != http.MethodConnect {
					conn.Close()
					return
				}
				fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
				host, _, _ := net.SplitHostPort(r.Host)
				w.intercept(conn, host, true)
			})
		}
	})
	return "http://" + l.Addr().String()
}

// caFile writes the authority that the sandbox trusts to a file.
func (w *harness) caFile() string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, w.ca.CertificatePEM(), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// requests waits for n events of kind request and returns them.
func (w *harness) requests(n int) []sandbox.NetworkEvent {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		list := slices.Clone(w.events)
		w.mu.Unlock()
		if len(list) >= n {
			return list
		}
	}
	w.t.Fatalf("there are fewer than %d events", n)
	return nil
}

// reason waits for an error of the interceptor that contains words.
func (w *harness) reason(words string) {
	w.t.Helper()
	var last []error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		last = slices.Clone(w.errs)
		w.mu.Unlock()
		if slices.ContainsFunc(last, func(err error) bool { return strings.Contains(err.Error(), words) }) {
			return
		}
	}
	w.t.Fatalf("no error with %q: %v", words, last)
}

// got is what a host received.
type got struct {
	mu   sync.Mutex
	last *http.Request
	body string
	n    int
}

// ServeHTTP keeps the request and answers "fine".
func (g *got) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	g.mu.Lock()
	g.last, g.body, g.n = r, string(b), g.n+1
	g.mu.Unlock()
	_, _ = io.WriteString(w, "fine")
}

func (g *got) request() (*http.Request, string, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last, g.body, g.n
}

// do sends a request and returns the response with its body.
func do(t *testing.T, c *http.Client, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		r.Body, r.ContentLength = nil, 0
	}
	for _, h := range header {
		name, v, _ := strings.Cut(h, ": ")
		r.Header.Add(name, v)
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return res, string(b)
}

func itoa(n int) string { return strconv.Itoa(n) }
