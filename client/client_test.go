package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		says string
	}{
		{Config{}, "either"},
		{Config{URL: "http://x", UnixSocket: "/x"}, "either"},
		{Config{URL: "x.example"}, "http"},
		{Config{URL: "ftp://x.example"}, "http"},
		{Config{URL: "http://"}, "http"},
		{Config{URL: "http://user:secret@x.example"}, "only a host and a path"},
		{Config{URL: "http://x.example?key=secret"}, "only a host and a path"},
		{Config{URL: "http://x.example/#f"}, "only a host and a path"},
		{Config{URL: "http://%zz"}, "malformed"},
	} {
		_, err := New(c.cfg)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: got %v, want an invalid that says %q", c.cfg, err, c.says)
		}
	}
}

func TestSecretDoesNotShow(t *testing.T) {
	cfg := Config{URL: "http://x.example", Key: "cove_TOPSECRET"}
	var out strings.Builder
	fmt.Fprintf(&out, "%v %+v %#v %s", cfg, cfg, cfg, cfg.Key)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", cfg.Key)
	if strings.Contains(out.String(), "TOPSECRET") {
		t.Errorf("shows in %s", out.String())
	}
}

// capture returns a client of a server that notes the requests and answers
// them with answer.
func capture(t *testing.T, cfg Config, answer http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(answer)
	t.Cleanup(srv.Close)
	cfg.URL = srv.URL + cfg.URL
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRequestsSayWhoAsks(t *testing.T) {
	c := capture(t, Config{URL: "/base/", Key: "cove_K", UserAgent: "me/1", Namespace: "claude"}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"version":"%s|%s|%s|%s"}`, r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("User-Agent"), r.Header.Get("Cove-Namespace"))
	})
	got, err := c.Version(t.Context())
	if want := "/base/v1/version|Bearer cove_K|me/1|claude"; got != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, mine := range []*http.Client{nil, {}} {
		asked := 0
		c := capture(t, Config{Key: "cove_K", HTTPClient: mine}, func(w http.ResponseWriter, r *http.Request) {
			asked++
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		})
		if err := c.Ping(t.Context()); err == nil || asked != 1 {
			t.Errorf("asked %d times, %v", asked, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestForeignAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		header string
		code   sandbox.Code
		retry  time.Duration
	}{
		{401, "", sandbox.CodeUnauthenticated, 0},
		{403, "", sandbox.CodeForbidden, 0},
		{404, "", sandbox.CodeNotFound, 0},
		{413, "", sandbox.CodeTooLarge, 0},
		{418, "", sandbox.CodeInvalid, 0},
		{429, "7", sandbox.CodeQuotaExceeded, 7 * time.Second},
		{500, "", sandbox.CodeInternal, 0},
		{502, "", sandbox.CodeUnavailable, 0},
		{503, "x", sandbox.CodeUnavailable, 0},
	} {
		cl := capture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.header)
			http.Error(w, "<html>a proxy</html>", c.status)
		})
		_, err := cl.Get(t.Context(), "x")
		e, ok := errors.AsType[*sandbox.Error](err)
		if !ok || e.Code != c.code || e.RetryAfter != c.retry || strings.Contains(e.Message, "<html>") {
			t.Errorf("%d: got %v, want %s, retry after %s", c.status, err, c.code, c.retry)
		}
	}
	cl := capture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>a portal</html>") })
	if _, err := cl.Get(t.Context(), "x"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a page: %v", err)
	}
	if _, err := cl.ReadFile(t.Context(), "x", sandbox.ReadFileRequest{Path: "p"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a page for a file: %v", err)
	}
}

func TestContextSpeaksFirst(t *testing.T) {
	c := capture(t, Config{}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Ping(ctx); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); sandbox.CodeOf(err) != sandbox.CodeTimeout {
		t.Errorf("timed out: %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	c, err := New(Config{UnixSocket: filepath.Join(t.TempDir(), "none.sock")})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Ping(t.Context())
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "none.sock") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}

func TestUnixSocketUsesNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	path := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	c, err := New(Config{UnixSocket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNamesThatNoPathCarries(t *testing.T) {
	c := capture(t, Config{}, func(http.ResponseWriter, *http.Request) { t.Error("a request was made") })
	for _, name := range []string{"", ".", ".."} {
		if _, err := c.Get(t.Context(), name); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("get %q: %v", name, err)
		}
		if _, err := c.OpenTerminal(t.Context(), name, sandbox.ExecRequest{}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("terminal of %q: %v", name, err)
		}
		if _, err := c.GetSnapshot(t.Context(), name); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("snapshot %q: %v", name, err)
		}
		if _, err := c.Diff(t.Context(), name, sandbox.DiffRequest{}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("diff of %q: %v", name, err)
		}
	}
}

func TestEncodeRefusesWhatJSONWouldAlter(t *testing.T) {
	for text, ok := range map[string]bool{
		"":                 true,
		"plain":            true,
		"\ufffd":           true, // the character itself
		`\ufffd`:           true, // text that looks like an escape
		`\\ufffd`:          true,
		"\xff":             false,
		"ok \xc3":          false,
		`\` + "\xff":       false,
		`\\ufffd` + "\xff": false,
	} {
		data, err := encode(sandbox.ExecRequest{Shell: text})
		if ok != (err == nil) || err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: got %s, %v; want accepted %v", text, data, err, ok)
		}
	}
}

func FuzzStreamLine(f *testing.F) {
	f.Add([]byte(`{"job":{"id":"job-1"},"final":true}`))
	f.Add([]byte(`{"error":{"code":"invalid","message":"m"}}`))
	f.Add([]byte(`{"stream":"stdout","data":"eA=="}` + "\n" + `{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Client{where: "there", http: &http.Client{Transport: canned(data)}, base: mustBase(t)}
		job, err := c.Exec(t.Context(), "x", sandbox.ExecRequest{}, func(sandbox.JobEvent) error { return nil })
		if err != nil {
			if _, ok := errors.AsType[*sandbox.Error](err); !ok {
				t.Fatalf("%q: %v is no domain error", data, err)
			}
		}
		_ = job
	})
}

// An answer without a result, from a server that may not be Cove, must not make a
// caller panic.
func TestTryNeedsAResult(t *testing.T) {
	for _, body := range []string{`{"final":true}`, `{"attempt":{},"final":true,"result":null}`, `[]`, `{"result":{}}`} {
		c := &Client{where: "there", http: &http.Client{Transport: canned(body)}, base: mustBase(t)}
		got, err := c.Try(t.Context(), "x", sandbox.TryRequest{}, nil)
		if got != nil || sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v, %v; want unavailable", body, got, err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	c := capture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"changes":[`+strings.Repeat(" ", maxAnswer)+`]}`)
	})
	if _, err := c.Diff(t.Context(), "x", sandbox.DiffRequest{}); sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Errorf("got %v, want too_large", err)
	}
}

func FuzzTryLine(f *testing.F) {
	f.Add([]byte(`{"attempt":{"index":1},"done":1,"total":2}` + "\n" + `{"result":{"attempts":[]},"final":true}`))
	f.Add([]byte(`{"error":{"code":"invalid","message":"m"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Client{where: "there", http: &http.Client{Transport: canned(data)}, base: mustBase(t)}
		result, err := c.Try(t.Context(), "x", sandbox.TryRequest{}, func(sandbox.TryEvent) error { return nil })
		if _, ok := errors.AsType[*sandbox.Error](err); (result == nil) != ok {
			t.Fatalf("%q: %v, %v", data, result, err)
		}
	})
}

func FuzzProblem(f *testing.F) {
	f.Add([]byte(`{"code":"invalid","detail":"d","retry_after_ms":5}`), "application/problem+json")
	f.Fuzz(func(t *testing.T, data []byte, contentType string) {
		resp := &http.Response{StatusCode: 400, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(string(data)))}
		if e, ok := errors.AsType[*sandbox.Error](errorOf(resp)); !ok || e.Code == "" {
			t.Fatalf("%q: %v", data, e)
		}
	})
}

func mustBase(t *testing.T) *url.URL {
	t.Helper()
	base, err := parseBase("http://there.example")
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// canned answers every request with the same bytes.
type canned []byte

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(c))), Request: r}, nil
}

func FuzzTerminalOutput(f *testing.F) {
	f.Add([]byte{1, 'x'})
	f.Add([]byte{2})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var offsets [2]int64
		ev, err := output(data, &offsets)
		if err == nil && (len(ev.Data) != len(data)-1 || offsets[0]+offsets[1] != int64(len(ev.Data))) {
			t.Fatalf("%q gives %+v at %v", data, ev, offsets)
		}
	})
}

// Requests that make something take another path through the client, and are often the
// first ones.
func TestVersionToldOfCreation(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cove-Version", "1.2.3")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"sbx-1"}`)
	}))
	defer srv.Close()
	var told []string
	c, err := New(Config{URL: srv.URL, OnVersion: func(v string) { told = append(told, v) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if _, err := c.Create(t.Context(), sandbox.CreateRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 1 || told[0] != "1.2.3" {
		t.Errorf("told of %q, want 1.2.3 once", told)
	}
}
