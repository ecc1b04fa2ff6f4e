package preview

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const goodKey = "cpk_0123456789abcdefghijklmnop"

const goodLink = "v1.1893456000.c2lnbmF0dXJlLW9mLXRoZS1saW5r"

// harness is previews of two sandboxes, whose ports are listeners of the test.
type harness struct {
	sandbox.Previews // nil: verbs that are not needed panic

	mu      sync.Mutex
	visits  map[string]error // by label, in place of the right
	public  map[string]bool
	ports   map[string]string // by label: an address
	removed map[string]bool
	dials   int
	hold    chan struct{}
}

func (w *harness) VisitPreview(ctx context.Context, v sandbox.PreviewVisit) (*sandbox.Preview, error) {
	w.mu.Lock()
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.visits[v.Label]; err != nil {
		return nil, err
	}
	if _, ok := w.ports[v.Label]; !ok || w.removed[v.Label] {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such preview")
	}
	access := sandbox.PreviewPrivate
	if w.public[v.Label] {
		access = sandbox.PreviewPublic
	} else if v.Key != goodKey && v.Link != goodLink {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "the preview is private")
	}
	return &sandbox.Preview{ID: "prv-" + v.Label, SandboxID: v.Label[strings.IndexByte(v.Label, '-')+1:], Access: access, URL: "http://" + v.Label + ".localhost"}, nil
}

func (w *harness) DialPreview(ctx context.Context, p *sandbox.Preview) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	addr := w.ports[strings.TrimPrefix(p.ID, "prv-")]
	w.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "nothing listens on the port")
	}
	return conn, nil
}

const label = "3000-sbx-abc"

// newHarness serves a handler as the port of a private preview, label, and as
// that of a public one, 3001-sbx-abc, and everything at front.
func newHarness(t *testing.T, inside http.Handler) (*harness, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(inside)
	t.Cleanup(server.Close)
	addr := server.Listener.Addr().String()
	w := &harness{
		visits: map[string]error{}, removed: map[string]bool{},
		public: map[string]bool{"3001-sbx-abc": true, "3001-sbx-evil": true},
		ports:  map[string]string{label: addr, "3001-sbx-abc": addr, "3001-sbx-evil": addr, "3002-sbx-abc": addr},
	}
	return w, serve(t, w, nil)
}

// serve serves previews as the daemon does, next to an API that identifies itself.
func serve(t *testing.T, w *harness, change func(*Proxy)) *httptest.Server {
	t.Helper()
	return serveFor(t, w, change, time.Minute)
}

// serveFor is serve with the time that a client has for a request's header.
func serveFor(t *testing.T, w *harness, change func(*Proxy), header time.Duration) *httptest.Server {
	t.Helper()
	p := New(Config{Previews: w, Names: []string{"api.localhost"}, Log: slog.New(slog.DiscardHandler)})
	p.recheck = 50 * time.Millisecond
	if change != nil {
		change(p)
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if p.Claims(r) {
			p.ServeHTTP(rw, r)
			return
		}
		_, _ = io.WriteString(rw, "the API")
	}))
	front.Config.ReadHeaderTimeout = header
	front.Config.MaxHeaderBytes = 64 << 10
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	front.Start()
	t.Cleanup(front.Close)
	return front
}

// browser is a client with cookies to which every name is the front.
func browser(t *testing.T, front *httptest.Server) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", front.Listener.Addr().String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func get(t *testing.T, c *http.Client, target string, header ...string) answer {
	t.Helper()
	return send(t, c, http.MethodGet, target, "", header...)
}

func send(t *testing.T, c *http.Client, method, target, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(data)}
}

// raw sends bytes to the front and returns all that comes back until the
// connection is closed, as it must be.
func raw(t *testing.T, front *httptest.Server, text string) string {
	t.Helper()
	got, closed := rawFor(t, front, text, time.Minute)
	if !closed {
		t.Errorf("%.60q is answered with %q, and the connection stays open", text, got)
	}
	return got
}

// rawFor sends bytes to the front and returns all that comes back for a while,
// and whether the connection was closed.
func rawFor(t *testing.T, front *httptest.Server, text string, d time.Duration) (got string, closed bool) {
	t.Helper()
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return "", true
	}
	_ = conn.SetReadDeadline(time.Now().Add(d))
	data, err := io.ReadAll(bufio.NewReader(conn))
	return string(data), !errors.Is(err, os.ErrDeadlineExceeded)
}

// seen is what a sandbox saw of each request.
type seen struct {
	mu       sync.Mutex
	requests []string
	last     *http.Request
	body     string
}

func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.RequestURI)
	s.last, s.body = r, string(body)
	s.mu.Unlock()
	_, _ = io.WriteString(w, "inside")
}

// request is the last one.
func (s *seen) request(t *testing.T) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		t.Fatal("the sandbox saw no request")
	}
	return s.last
}

func (s *seen) list() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.requests, ", ")
}

func mustParse(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
