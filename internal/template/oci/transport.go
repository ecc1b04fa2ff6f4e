package oci

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/gateway/egress"
)

var (
	errPrivate = errors.New("it is in the server's own network, which is not allowed")
	errPlain   = errors.New("it uses plain HTTP, which is not allowed")
)

const (
	dialTimeout   = 20 * time.Second
	answerTimeout = 60 * time.Second
)

// guardedTransport sends requests to registries. Redirects and token servers go through
// it too.
type guardedTransport struct {
	internal *egress.InternalAddrs
	private  map[string]bool // hosts that may have addresses of the server's own network
	insecure map[string]bool // hosts that need no valid TLS
	proxy    func(*http.Request) (*url.URL, error)
	stall    time.Duration // how long an answer's body may stand still

	transports              map[route]*http.Transport
	lookup                  func(ctx context.Context, network, host string) ([]netip.Addr, error)
	dialPublic, dialPrivate *net.Dialer
}

// route is how a request is sent.
type route struct {
	proxied  bool // through a proxy
	insecure bool // without verifying certificates
}

func newGuardedTransport(cfg Config, private, insecure map[string]bool) (*guardedTransport, error) {
	w := &guardedTransport{
		internal: egress.NewInternalAddrs(nil), private: private, insecure: insecure, proxy: cfg.Proxy, stall: cfg.Stall,
		lookup: net.DefaultResolver.LookupNetIP,
	}
	if w.proxy == nil {
		w.proxy = http.ProxyFromEnvironment
	}
	w.dialPrivate = &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	w.dialPublic = &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: w.refusePrivate}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(bytes.TrimSpace(cfg.ExtraCA)) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(cfg.ExtraCA) {
			return nil, errors.New("the extra authorities hold no certificate in PEM")
		}
		conf.RootCAs = pool
	}
	lax := conf.Clone()
	lax.InsecureSkipVerify = true // only for hosts that the operator has named
	w.transports = map[route]*http.Transport{}
	for _, proxied := range []bool{false, true} {
		w.transports[route{proxied, false}] = w.httpTransport(conf, proxied)
		w.transports[route{proxied, true}] = w.httpTransport(lax, proxied)
	}
	return w, nil
}

func (w *guardedTransport) httpTransport(conf *tls.Config, proxied bool) *http.Transport {
	t := &http.Transport{
		TLSClientConfig: conf, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout: 30 * time.Second, MaxIdleConns: 16, MaxResponseHeaderBytes: 256 << 10,
		// Layers are already compressed, and their digest is that of the transferred bytes.
		DisableCompression: true,
	}
	if proxied {
		t.Proxy, t.DialContext = w.proxy, w.dialPrivate.DialContext
		return t
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := w.dialPublic
		if w.named(w.private, addr) {
			d = w.dialPrivate
		}
		return d.DialContext(ctx, network, addr)
	}
	return t
}

// named reports whether the operator has listed a host:port, or the host alone if the
// port is the default one.
func (*guardedTransport) named(list map[string]bool, addr string) bool {
	addr = strings.ToLower(addr)
	if list[addr] {
		return true
	}
	host, port, err := net.SplitHostPort(addr)
	return err == nil && (port == "443" || port == "80") && (list[host] || list["["+host+"]"])
}

// address returns the host:port of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (w *guardedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	addr := address(req.URL)
	insecure := w.named(w.insecure, addr)
	switch {
	case req.URL.Scheme != "https" && req.URL.Scheme != "http":
		return nil, fmt.Errorf("the scheme %.20q is not one of registries", req.URL.Scheme)
	case req.URL.Scheme == "http" && !insecure:
		return nil, errPlain
	}
	proxy, err := w.proxy(req)
	if err != nil {
		return nil, err
	}
	if proxy != nil && !w.named(w.private, addr) {
		if err := w.checkBeforeProxy(req.Context(), req.URL.Hostname()); err != nil {
			return nil, err
		}
	}
	return w.watch(w.transports[route{proxy != nil, insecure}], req)
}

// errStalled is the error for a response whose body has stopped arriving.
var errStalled net.Error = stalled{}

type stalled struct{}

func (stalled) Error() string   { return "the server stopped sending in the middle of its answer" }
func (stalled) Timeout() bool   { return true }
func (stalled) Temporary() bool { return true }

// watch sends a request. Reading the response's body fails once it stops arriving.
func (w *guardedTransport) watch(t *http.Transport, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := t.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, stall: w.stall}
	return resp, nil
}

type watchedBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  time.Duration
}

func (b *watchedBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.stall, func() { b.cancel(errStalled) })
	defer timer.Stop()
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && context.Cause(b.ctx) == errStalled {
		err = errStalled
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// checkBeforeProxy checks the destination of a request that goes through a proxy, as far as
// its name can be resolved here.
func (w *guardedTransport) checkBeforeProxy(ctx context.Context, host string) error {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		if w.internal.Has(addr) {
			return errPrivate
		}
		return nil
	}
	// The proxy may accept a number as an address in another notation. No top-level
	// domain begins with a digit.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return errPrivate
	}
	for _, s := range []string{"localhost", "internal", "local"} {
		if host == s || strings.HasSuffix(host, "."+s) {
			return errPrivate
		}
	}
	found, _ := w.lookup(ctx, "ip", host) // only the proxy may be able to resolve the name
	for _, addr := range found {
		if w.internal.Has(addr) {
			return errPrivate
		}
	}
	return nil
}

// refusePrivate is a [net.Dialer.Control]. It sees the address to which a name was
// resolved.
func (w *guardedTransport) refusePrivate(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || w.internal.Has(at.Addr()) {
		return errPrivate
	}
	return nil
}

func (w *guardedTransport) close() {
	for _, t := range w.transports {
		t.CloseIdleConnections()
	}
}
