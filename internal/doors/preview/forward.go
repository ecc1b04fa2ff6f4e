package preview

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// trip is one request on its way to a sandbox.
type trip struct {
	preview *sandbox.Preview
	at      place
	// neighbor is the origin of the sandbox's own page that the request comes
	// from, which may frame the answer; "" is none.
	neighbor string
}

type tripKey struct{}

func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// newForward returns what carries admitted requests.
func (p *Proxy) newForward() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			// Whatever the request says: there is one place to go to.
			Proxy:                 nil,
			DialContext:           p.dial,
			DisableCompression:    true,
			ResponseHeaderTimeout: answerTimeout,
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   32,
			MaxIdleConns:          1024,
			// Servers close idle connections after as little as two seconds, and
			// a POST that meets one of those cannot be tried again.
			IdleConnTimeout:        time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			ReadBufferSize:         32 << 10,
			WriteBufferSize:        32 << 10,
		},
		// Each piece goes on as it comes: server-sent events, long polls.
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ModifyResponse: cleanResponse,
		ErrorHandler:   p.broken,
		// What visitors and sandboxes do wrong is no event of the server's.
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

// dialError is a failure to reach the port.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

func (p *Proxy) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	t := tripOf(ctx)
	if t == nil {
		return nil, errors.New("a request that was not admitted")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := p.previews.DialPreview(ctx, t.preview)
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

// rewrite makes the request that the sandbox gets.
func rewrite(r *httputil.ProxyRequest) {
	in, out := r.In, r.Out
	t := tripOf(in.Context())
	// The host is only the name under which connections are kept for reuse;
	// dial does not look at it. One preview's must not serve another's.
	out.URL = &url.URL{Scheme: "http", Host: t.preview.ID + ".preview", Path: in.URL.Path, RawPath: in.URL.RawPath, RawQuery: cleanQuery(in.URL.RawQuery), ForceQuery: in.URL.ForceQuery}
	out.Host = in.Host

	for name := range out.Header {
		if proxyHeader(name) {
			delete(out.Header, name)
		}
	}
	cleanCookies(out.Header)
	if slices.ContainsFunc(out.Header.Values("Referer"), namesCredential) {
		out.Header.Del("Referer")
	}
	if !isWebSocket(in) {
		// Any other protocol would be carried on unseen.
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	r.SetXForwarded()
	if in.TLS != nil || strings.HasPrefix(t.preview.URL, "https:") {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
}

// proxyHeader reports whether a header is one that only a proxy may set. Many
// servers inside take an underscore for a dash.
func proxyHeader(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return strings.HasPrefix(name, "x-forwarded") || name == "forwarded" || name == "x-real-ip" || strings.HasPrefix(name, "cove-preview-")
}

// cleanResponse takes from a sandbox's response what reaches beyond its host.
func cleanResponse(res *http.Response) error {
	h := res.Header
	if cookies := h["Set-Cookie"]; len(cookies) > 0 {
		kept := make([]string, 0, len(cookies))
		for _, c := range cookies {
			if c, ok := cleanSetCookie(c); ok {
				kept = append(kept, c)
			}
		}
		h["Set-Cookie"] = kept
	}
	// Alt-Svc moves visitors to another server, Clear-Site-Data takes away the
	// cookies of all hosts of the domain, and the last tells the proxy's own
	// answers from a sandbox's.
	h.Del("Alt-Svc")
	h.Del("Clear-Site-Data")
	h.Del(errorHeader)
	if t := tripOf(res.Request.Context()); t != nil && t.preview.Access != sandbox.PreviewPublic {
		// Beside a policy of the application's own, which may be stricter. Over
		// plain HTTP browsers send no Sec-Fetch-Dest, and go by this alone.
		h.Add("Content-Security-Policy", strings.TrimSpace("frame-ancestors 'self' "+t.neighbor))
		// A browser that keeps the response may not give it to another visit.
		h.Add("Vary", "Origin, Referer, Sec-Fetch-Dest, Sec-Fetch-Mode, Sec-Fetch-Site")
	}
	return nil
}

// cleanSetCookie keeps a cookie on the host that sets it, and refuses ours.
func cleanSetCookie(line string) (string, bool) {
	parts := strings.Split(line, ";")
	name, _, _ := strings.Cut(parts[0], "=")
	if ourCookie(name) {
		return "", false
	}
	kept := parts[:1]
	for _, part := range parts[1:] {
		if attribute, _, _ := strings.Cut(part, "="); !strings.EqualFold(strings.TrimSpace(attribute), "domain") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ";"), true
}

// broken answers when the sandbox has not.
func (p *Proxy) broken(w http.ResponseWriter, r *http.Request, err error) {
	t := tripOf(r.Context())
	if dial, ok := errors.AsType[*dialError](err); ok {
		p.refuse(w, r, t.at, dial.err, false)
		return
	}
	p.log.Debug("preview: request failed", "label", t.at.label, "error", err)
	var network net.Error
	switch {
	case r.Context().Err() != nil:
		// Nobody reads it, or nobody may.
		p.fail(w, r, t.at, gone)
	case errors.As(err, &network) && network.Timeout():
		p.fail(w, r, t.at, slow)
	default:
		p.fail(w, r, t.at, garbled)
	}
}

// finalWriter passes on final responses only: the header of an informational
// one would go out as the sandbox wrote it.
type finalWriter struct{ http.ResponseWriter }

// Unwrap serves [http.ResponseController].
func (w *finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader leaves out informational responses.
func (w *finalWriter) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// buffers lends memory for copying.
type buffers struct{ pool sync.Pool }

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return *buf
	}
	return make([]byte, 32<<10)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }

// counter bounds what goes on at the same time, by name.
type counter struct {
	most int
	mu   sync.Mutex
	now  map[string]int
}

func (c *counter) enter(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[name] >= c.most {
		return false
	}
	if c.now == nil {
		c.now = make(map[string]int)
	}
	c.now[name]++
	return true
}

// full reports whether no more may enter.
func (c *counter) full(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now[name] >= c.most
}

func (c *counter) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[name]--; c.now[name] == 0 {
		delete(c.now, name)
	}
}
