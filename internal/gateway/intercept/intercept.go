package intercept

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
)

const (
	// helloTimeout limits a client's TLS handshake, headerTimeout the header of a request,
	// and idleTimeout the wait for the next request.
	helloTimeout  = 30 * time.Second
	headerTimeout = 30 * time.Second
	idleTimeout   = 90 * time.Second
	// quiet is how long a client that did not negotiate HTTP may send nothing before the
	// gateway connects to the host, which may send first.
	quiet = time.Second

	maxHeader         = 64 << 10
	maxResponseHeader = 1 << 20
	maxStreams        = 250
	// streamBuffer and connectionBuffer bound the data that HTTP/2 buffers for a client
	// that reads slowly.
	streamBuffer     = 512 << 10
	connectionBuffer = 4 << 20
	// maxBodies bounds the total size of bodies searched at the same time.
	maxBodies = 64 << 20
)

// Config configures an [Interceptor].
type Config struct {
	// Issuer certifies names to the sandbox. Required.
	Issuer *Issuer
	// ExtraCA are further authorities, in PEM, that upstream certificates may chain to, in
	// addition to the system's.
	ExtraCA []byte
	// Logger receives the interceptor's own errors, which never contain values; if nil, they
	// are discarded.
	Logger *slog.Logger
}

// Interceptor puts secrets and headers into the requests of one sandbox. It has none until
// [Interceptor.Set] is called. It is safe for concurrent use.
type Interceptor struct {
	issuer *Issuer
	log    *slog.Logger
	roots  func() (*x509.CertPool, error)
	proxy  *httputil.ReverseProxy
	server *http.Server
	conns  *connListener
	served chan struct{}
	bodies *semaphore.Weighted // in bytes
	// sessions holds the session of each of the server's connections.
	sessions sync.Map // net.Conn to *session

	// setting is held while bindings are replaced.
	setting  sync.Mutex
	bindings atomic.Pointer[bindings]
}

var _ egress.Interceptor = (*Interceptor)(nil)

// New returns an interceptor, which must be closed.
func New(cfg Config) (*Interceptor, error) {
	if cfg.Issuer == nil {
		return nil, errors.New("intercept: no issuer of certificates")
	}
	extra := x509.NewCertPool()
	if len(cfg.ExtraCA) > 0 && !extra.AppendCertsFromPEM(cfg.ExtraCA) {
		return nil, errors.New("intercept: there is no certificate in the file of further authorities")
	}
	x := &Interceptor{
		issuer: cfg.Issuer,
		log:    cfg.Logger,
		conns:  newConnListener(),
		served: make(chan struct{}),
		bodies: semaphore.NewWeighted(maxBodies),
		// The system's authorities are read when they are first needed.
		roots: sync.OnceValues(func() (*x509.CertPool, error) {
			pool, err := x509.SystemCertPool()
			if err != nil {
				pool = x509.NewCertPool()
			}
			if len(cfg.ExtraCA) > 0 {
				pool.AppendCertsFromPEM(cfg.ExtraCA)
			} else if err != nil {
				return nil, fmt.Errorf("read the system's certificate authorities: %w", err)
			}
			return pool, nil
		}),
	}
	if x.log == nil {
		x.log = slog.New(slog.DiscardHandler)
	}
	x.bindings.Store(&bindings{})
	x.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      upstream{},
		ModifyResponse: endWithHost,
		BufferPool:     &buffers{},
		ErrorHandler:   answerFailure,
		// Errors are answered and recorded; the proxy's own messages might quote
		// requests.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	x.server = &http.Server{
		Handler:           http.HandlerFunc(x.serveHTTP),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(panicLog{x.log}, "", 0),
		ConnContext:       x.connContext,
		ConnState:         x.connState,
		Protocols:         protocols(true, true, true),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	go func() {
		defer close(x.served)
		_ = x.server.Serve(x.conns) // ends with Close
	}()
	return x, nil
}

// Set replaces the bindings, their values, the headers, and the action for placeholders
// that are sent to other hosts. Requests in progress keep their values until they end;
// then the old values are wiped. If values fails, nothing changes.
func (x *Interceptor) Set(n *engine.Network, values engine.Values) error {
	x.setting.Lock()
	defer x.setting.Unlock()
	bs, err := newBindings(n, values)
	if err != nil {
		return fmt.Errorf("intercept: %w", err)
	}
	x.bindings.Swap(bs).release()
	return nil
}

// Close ends all connections and wipes the values.
func (x *Interceptor) Close() error {
	err := x.server.Close()
	<-x.served
	x.setting.Lock()
	defer x.setting.Unlock()
	x.bindings.Swap(&bindings{}).release()
	return err
}

// Intercept implements [egress.Interceptor].
func (x *Interceptor) Intercept(ctx context.Context, c *egress.Intercepted) error {
	s := newSession(ctx, x, c)
	defer s.end()
	if c.TLS {
		return s.serveTLS()
	}
	return s.serveHTTP(s.conn)
}

// panicLog is the server's error log. It logs the stacks of panics and drops the rest,
// which is about misbehaving clients.
type panicLog struct{ log *slog.Logger }

func (p panicLog) Write(b []byte) (int, error) {
	if first, stack, ok := bytes.Cut(b, []byte("\n")); ok && bytes.Contains(first, []byte("panic serving")) {
		// The first line contains the panic's value, which may contain a secret.
		p.log.Error("a request made the interceptor panic", "stack", string(stack))
	}
	return len(b), nil
}

// protocols returns a set of versions of HTTP.
func protocols(http1, http2, cleartext2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetHTTP2(http2)
	p.SetUnencryptedHTTP2(cleartext2)
	return p
}

// connListener is a listener whose connections come from [connListener.pass].
type connListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newConnListener() *connListener {
	return &connListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// pass hands a connection to the server and reports whether the server accepted it.
func (l *connListener) pass(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.done:
		return false
	}
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *connListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *connListener) Addr() net.Addr { return &net.UnixAddr{Name: "intercept", Net: "unix"} }

// buffers are for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

// Put overwrites the buffer, which may hold a part of a body with a value.
func (b *buffers) Put(p []byte) {
	clear(p)
	b.pool.Put(&p)
}
