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

// trip is an admitted request to a sandbox.
type trip struct {
	preview *sandbox.Preview
	at      place
	// neighbor is the origin of the page of the same sandbox that sent the request, which
	// may frame the response; "" if there is none.
	neighbor string
}

type tripKey struct{}

func tripOf(ctx context.Context) *trip {
	t, _ := ctx.Value(tripKey{}).(*trip)
	return t
}

// newForward returns the proxy for admitted requests.
func (p *Proxy) newForward() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			// The target is the port of the preview, whatever the request says.
			Proxy:                 nil,
			DialContext:           p.dial,
			DisableCompression:    true,
			ResponseHeaderTimeout: answerTimeout,
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   32,
			MaxIdleConns:          1024,
			// Servers close idle connections after as little as two seconds, and a
			// POST on a closed connection cannot be retried.
			IdleConnTimeout:        time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			ReadBufferSize:         32 << 10,
			WriteBufferSize:        32 << 10,
		},
		// Data is forwarded immediately, for server-sent events and long polls.
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ModifyResponse: cleanResponse,
		ErrorHandler:   p.broken,
		// Errors of visitors and sandboxes do not belong in the server's log.
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

// dialError is a failure to reach the port.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

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

// rewrite makes the request to the sandbox.
func rewrite(r *httputil.ProxyRequest) {
	in, out := r.In, r.Out
	t := tripOf(in.Context())
	// The host is only the key for the reuse of connections, which previews must not
	// share; dial ignores it.
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
		// Any other protocol would be relayed without inspection.
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	r.SetXForwarded()
	if in.TLS != nil || strings.HasPrefix(t.preview.URL, "https:") {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
}

// proxyHeader reports whether only a proxy may set a header. Many servers treat an
// underscore like a dash.
func proxyHeader(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return strings.HasPrefix(name, "x-forwarded") || name == "forwarded" || name == "x-real-ip" || strings.HasPrefix(name, "cove-preview-")
}

// cleanResponse removes everything from a sandbox's response that affects other hosts.
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
	// Alt-Svc moves visitors to another server, Clear-Site-Data deletes the cookies of
	// all hosts of the domain, and errorHeader marks the proxy's own responses.
	h.Del("Alt-Svc")
	h.Del("Clear-Site-Data")
	h.Del(errorHeader)
	if t := tripOf(res.Request.Context()); t != nil && t.preview.Access != sandbox.PreviewPublic {
		// In addition to the application's own policy, which may be stricter. Over plain
		// HTTP browsers send no Sec-Fetch-Dest, so this is the only protection.
		h.Add("Content-Security-Policy", strings.TrimSpace("frame-ancestors 'self' "+t.neighbor))
		// A browser must not use a cached response for a different kind of request.
		h.Add("Vary", "Origin, Referer, Sec-Fetch-Dest, Sec-Fetch-Mode, Sec-Fetch-Site")
	}
	return nil
}

// cleanSetCookie restricts a cookie to the host that sets it, and refuses the proxy's own.
func cleanSetCookie(line string) (string, bool) {
	parts := strings.Split(line, ";")
	name, _, _ := strings.Cut(parts[0], "=")
	if ourCookie(name) {
		return "", false
	}
	attributes := slices.DeleteFunc(parts[1:], func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return strings.EqualFold(strings.TrimSpace(name), "domain")
	})
	return strings.Join(parts[:1+len(attributes)], ";"), true
}

// broken answers a request that the sandbox did not answer.
func (p *Proxy) broken(w http.ResponseWriter, r *http.Request, err error) {
	t := tripOf(r.Context())
	if dial, ok := errors.AsType[*dialError](err); ok {
		p.refuse(w, r, t.at, dial.error, false)
		return
	}
	p.log.Debug("preview: request failed", "label", t.at.label, "error", err)
	var network net.Error
	switch {
	case r.Context().Err() != nil:
		// The visitor has disconnected or lost access.
		p.fail(w, r, t.at, gone)
	case errors.As(err, &network) && network.Timeout():
		p.fail(w, r, t.at, slow)
	default:
		p.fail(w, r, t.at, garbled)
	}
}

// finalWriter drops informational responses, whose headers would not be cleaned.
type finalWriter struct{ http.ResponseWriter }

func (w *finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *finalWriter) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// buffers is a pool of buffers for copying.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return *buf
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }

// counter limits concurrent visits per name.
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
