package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxHeader  = 256 << 10
	headerWait = 30 * time.Second
	httpIdle   = 5 * time.Minute
	maxStreams = 100
)

// http serves a plain HTTP connection: each request is parsed, judged by its host, and
// rewritten on a connection to that host. Requests that two parsers could read
// differently do not pass.
func (f *flow) http(guest *guestConn, h2 bool) {
	transport := f.transport(h2)
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite:       f.rewrite,
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler:  f.httpError,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	server := &http.Server{
		Handler:           f.judgeRequest(proxy),
		ReadHeaderTimeout: headerWait,
		IdleTimeout:       httpIdle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0),
		BaseContext:       func(net.Listener) context.Context { return f.ctx },
		Protocols:         protocols(h2),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		// The destination answers requests for "OPTIONS *", not the server here.
		DisableGeneralOptionsHandler: true,
	}
	l := &oneConn{conn: guest}
	_ = server.Serve(l) // always io.EOF
	<-guest.closed
	server.Close()
}

func protocols(h2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	return p
}

// transport dials hosts by name, one connection for each host. The port is always that of
// the sandbox's connection, whatever the request says. Requests through the host's proxy
// have a connection each, since a connection to a proxy is not bound to one host.
func (f *flow) transport(h2 bool) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			if p, ok := ctx.Value(viaProxy{}).(proxied); ok {
				return f.dialPlainProxy(ctx, p)
			}
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			c, w, err := f.dialHost(ctx, host, false)
			if err != nil {
				return nil, err
			}
			return &outboundConn{Conn: c, f: f, w: w}, nil
		},
		Proxy: func(r *http.Request) (*url.URL, error) {
			if p, ok := r.Context().Value(viaProxy{}).(proxied); ok {
				return p.proxy, nil
			}
			return nil, nil
		},
		Protocols:           protocols(h2),
		DisableCompression:  true,
		DisableKeepAlives:   f.g.out.any && f.to.Port() == 80,
		MaxIdleConnsPerHost: 2,
		MaxIdleConns:        16,
		IdleConnTimeout:     time.Minute,
	}
}

// viaProxy is the context key for a request's proxied.
type viaProxy struct{}

// proxied is a request that goes through the host's proxy.
type proxied struct {
	proxy *url.URL
	host  string
}

// dialPlainProxy connects to the host's proxy for requests to one host.
func (f *flow) dialPlainProxy(ctx context.Context, p proxied) (net.Conn, error) {
	attempts, err := f.candidates(ctx, p.host, false)
	if err != nil {
		return nil, err
	}
	w, d := f.admit(ctx, attempts[0])
	if w == nil {
		return nil, &RefusedError{d}
	}
	if d.addrOnly && p.host != "" {
		f.leave(w)
		return nil, &RefusedError{Decision{Match: d.Match, Rule: d.Rule, Reason: "its address was allowed, but the host's proxy connects by name"}}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := f.g.out.rawProxy(ctx, p.proxy)
	if err == nil {
		err = f.connected(w, c)
	}
	if err != nil {
		f.leave(w)
		return nil, fmt.Errorf("through the host's proxy: %w", err)
	}
	return &outboundConn{Conn: c, f: f, w: w}, nil
}

// judgeRequest refuses requests whose host cannot be judged, before anything is dialled.
func (f *flow) judgeRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := hostOf(r.Host)
		switch {
		case r.Method == http.MethodConnect:
			f.answerRefused(w, r.Host, Decision{Match: sandbox.MatchProtocol,
				Reason: "a tunnel through another proxy cannot be checked by name; connect directly, or allow the proxy's address in rules"})
			return
		case !ok:
			f.answerRefused(w, clip.Text(r.Host, maxShown), Decision{Match: sandbox.MatchProtocol, Reason: "the request's host is not a name"})
			return
		case name != "":
			f.namedFirst(name)
		}
		to := name
		if to == "" {
			to = f.to.Addr().String()
		}
		if p := f.g.out.plainProxy(to, f.to.Port()); p != nil {
			r = r.WithContext(context.WithValue(r.Context(), viaProxy{}, proxied{p, name}))
		}
		next.ServeHTTP(w, r)
	})
}

// rewrite makes the outgoing request: the same request without the hop-by-hop parts.
func (f *flow) rewrite(pr *httputil.ProxyRequest) {
	name, _ := hostOf(pr.In.Host)
	if name == "" {
		name = f.to.Addr().String()
	}
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = net.JoinHostPort(name, strconv.Itoa(int(f.to.Port())))
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	pr.Out.Host = pr.In.Host
	if _, ok := pr.In.Context().Value(viaProxy{}).(proxied); ok {
		// The proxy connects to this host and port, which are the ones that were judged.
		pr.Out.Host = strings.TrimSuffix(net.JoinHostPort(name, "80"), ":80")
	}
	if !strings.EqualFold(pr.In.Header.Get("Upgrade"), "websocket") {
		// After an upgrade to HTTP/2, further requests would not be judged. Without the
		// header the request is still answered.
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := pr.In.Header[h]; ok {
			pr.Out.Header[h] = v
		}
	}
}

func (f *flow) httpError(w http.ResponseWriter, r *http.Request, err error) {
	host, _ := hostOf(r.Host)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		f.answerRefused(w, host, refused.Decision)
		return
	}
	if r.Context().Err() == nil {
		f.dialFailed(host, true, err)
	}
	answer(w, http.StatusBadGateway, fmt.Sprintf("%s could not be reached: %s", host, Reason(err)))
}

func (f *flow) answerRefused(w http.ResponseWriter, host string, d Decision) {
	f.recordUnreached(host, true, sandbox.NetworkBlocked, d)
	answer(w, http.StatusForbidden, "the sandbox's network policy refuses "+host+": "+d.Reason)
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Cove-Gateway", "refused")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n") // the sandbox may be gone
}

// oneConn is a listener that accepts one connection, for one caller of Accept.
type oneConn struct{ conn net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	c := l.conn
	if l.conn = nil; c == nil {
		return nil, io.EOF
	}
	return c, nil
}

func (*oneConn) Close() error { return nil }

func (*oneConn) Addr() net.Addr { return &net.TCPAddr{} }
