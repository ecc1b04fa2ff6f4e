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
	"github.com/cove-sh/cove/sandbox"
)

const (
	// helloTimeout is for a client to say hello and finish the handshake,
	// headerTimeout to send the header of a request, idleTimeout to begin the
	// next one.
	helloTimeout  = 30 * time.Second
	headerTimeout = 30 * time.Second
	idleTimeout   = 90 * time.Second
	// quiet is how long a client that did not say that it speaks HTTP may be
	// silent before the other side is asked whether it speaks first.
	quiet = time.Second

	maxHeader         = 64 << 10
	maxResponseHeader = 1 << 20
	maxStreams        = 250
	// streamBuffer and connectionBuffer bound what is kept of HTTP/2 for one
	// side that reads slowly.
	streamBuffer     = 512 << 10
	connectionBuffer = 4 << 20
	// maxBodies bounds the bodies together that are read to look into them.
	maxBodies = 64 << 20
)

// Config is what an [Interceptor] is made of.
type Config struct {
	// Issuer certifies names to the sandbox. Required.
	Issuer *Issuer
	// ExtraCA are further authorities, as PEM, that upstream certificates may
	// chain to, beside the system's.
	ExtraCA []byte
	// Logger takes the interceptor's own troubles; nil drops them. Values are
	// never in them.
	Logger *slog.Logger
}

// Interceptor puts secrets into the requests of one sandbox. It knows none
// until [Interceptor.Set]. It is safe for concurrent use.
type Interceptor struct {
	issuer *Issuer
	log    *slog.Logger
	roots  func() (*x509.CertPool, error)
	proxy  *httputil.ReverseProxy
	server *http.Server
	conns  *connListener
	served chan struct{}
	bodies *semaphore.Weighted // in bytes
	// sessions holds the session of each connection that the server has.
	sessions sync.Map // of net.Conn: *session

	// setting lets one caller change bindings at a time.
	setting  sync.Mutex
	bindings atomic.Pointer[bindings]
}

var _ egress.Interceptor = (*Interceptor)(nil)

// New makes an interceptor. It must be closed.
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
		// The system's are read when they are needed first.
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
		Transport:      upstream{x},
		ModifyResponse: endWithHost,
		BufferPool:     &buffers{},
		ErrorHandler:   answerFailure,
		// What goes wrong is answered and recorded; the proxy's own words may
		// hold what a request does.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	x.server = &http.Server{
		Handler:           http.HandlerFunc(x.serveHTTP),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(panics{x.log}, "", 0),
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

// Set replaces the bindings, with their values, and what becomes of
// placeholders on their way to other hosts. Requests that began before keep
// the values that they have, until they are over; then the old values are
// wiped. If values fails, nothing is changed.
func (x *Interceptor) Set(list []engine.Binding, values engine.Values, action sandbox.PlaceholderAction) error {
	x.setting.Lock()
	defer x.setting.Unlock()
	bs, err := newBindings(list, values, action)
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

// panics is told what the server would log, and passes on the stacks of
// panics. The rest tells of clients that misbehave.
type panics struct{ log *slog.Logger }

func (p panics) Write(b []byte) (int, error) {
	if first, stack, ok := bytes.Cut(b, []byte("\n")); ok && bytes.Contains(first, []byte("panic serving")) {
		// The first line has the panic's value, which may be anything.
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

// pass hands a connection to the server and reports whether the server took it.
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

// Put implements [httputil.BufferPool]. What went through is overwritten, for
// a body may have had what should not stay.
func (b *buffers) Put(p []byte) {
	clear(p)
	b.pool.Put(&p)
}
