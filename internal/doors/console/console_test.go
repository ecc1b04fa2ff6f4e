package console

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

var large = strings.Repeat("console.log('large');\n", 1000)

// site is what a build of the front end looks like.
var site = fstest.MapFS{
	"index.html":             {Data: []byte("<!doctype html>the console")},
	"favicon.svg":            {Data: []byte("<svg/>")},
	"odd.bin":                {Data: []byte{1, 2, 3}},
	"assets/main-abc123.js":  {Data: []byte(large)},
	"assets/main-abc123.css": {Data: []byte("p{}")},
}

func door(dist fs.FS) *Door {
	cfg := Config{
		Sessions: auth.NewSessions(nil, nil, nil), Links: auth.NewLinks(), Trusted: func(*http.Request) bool { return false },
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) { rest.WriteError(w, err) }, Log: slog.New(slog.DiscardHandler),
	}
	return newDoor(cfg, dist)
}

func ask(t *testing.T, d *Door, method, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://localhost"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// A program that was built with the console includes the licences of everything in it.
func TestLicences(t *testing.T) {
	if !Built() {
		needs.NoError(t, errors.New("the console: make build"))
	}
	var npm struct{ Dependencies map[string]string }
	data, err := os.ReadFile("../../../console/package.json")
	if err == nil {
		err = json.Unmarshal(data, &npm)
	}
	if err != nil || len(npm.Dependencies) == 0 {
		t.Fatalf("%v: %v", err, npm)
	}
	_, text := ask(t, door(built()), "GET", "/console/licences.txt")
	for name, version := range npm.Dependencies {
		if !strings.Contains(text, "\n## "+name+" - "+version+" (") {
			t.Errorf("the licence of %s %s is not there", name, version)
		}
	}
}

func TestPages(t *testing.T) {
	d := door(site)
	for _, q := range []struct {
		method, path string
		status       int
		kind, cache  string
		says         string
	}{
		{"GET", "/console/", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/index.html", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/sandboxes/sbx-abc/files", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/a.js", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"HEAD", "/console/", 200, "text/html; charset=utf-8", "no-store", ""},
		{"GET", "/console/favicon.svg", 200, "image/svg+xml", "no-cache", "<svg/>"},
		{"GET", "/console/odd.bin", 200, "application/octet-stream", "no-cache", "\x01\x02\x03"},
		{"GET", "/console/assets/main-abc123.js", 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "large"},
		{"GET", "/console/assets/main-abc123.css", 200, "text/css; charset=utf-8", "public, max-age=31536000, immutable", "p{}"},
		{"GET", "/console/assets/main-old.js", 404, "text/plain; charset=utf-8", "no-store", "load the page again"},
		{"GET", "/console/assets/", 404, "text/plain; charset=utf-8", "no-store", "no such file"},
		{"GET", "/console/frame", 200, "text/html; charset=utf-8", "no-store", "postMessage"},
		{"POST", "/console/", 405, "text/plain; charset=utf-8", "no-store", "use GET"},
		{"PUT", "/console/session", 405, "text/plain; charset=utf-8", "no-store", "use GET"},
		{"GET", "/console/links", 405, "text/plain; charset=utf-8", "no-store", "use POST"},
		{"GET", "/console/session", 403, "application/problem+json", "no-store", "own pages"},
		// Nothing leads out of the console's files.
		{"GET", "/console/%2e%2e/%2e%2e/etc/passwd", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/..%2f..%2fetc%2fpasswd", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/assets/../../../etc/passwd", 307, "text/html; charset=utf-8", "no-store", "/etc/passwd"},
		{"GET", "/console/assets/..%5c..%5cconsole.go", 404, "text/plain; charset=utf-8", "no-store", "no such file"},
		{"GET", "/console/dist/index.html", 200, "text/html; charset=utf-8", "no-store", "the console"},
		{"GET", "/console/pages.go", 200, "text/html; charset=utf-8", "no-store", "the console"},
	} {
		resp, body := ask(t, d, q.method, q.path)
		if resp.StatusCode != q.status || resp.Header.Get("Content-Type") != q.kind || resp.Header.Get("Cache-Control") != q.cache || !strings.Contains(body, q.says) {
			t.Errorf("%s %s: %s %q %q %.60q, want %d %q %q with %q", q.method, q.path, resp.Status, resp.Header.Get("Content-Type"), resp.Header.Get("Cache-Control"), body, q.status, q.kind, q.cache, q.says)
		}
	}
	if resp, _ := ask(t, d, "GET", "/console"); resp.Header.Get("Location") != "/console/" {
		t.Errorf("/console: %s to %q", resp.Status, resp.Header.Get("Location"))
	}
}

// Every answer has the headers that isolate the page.
func TestHeaders(t *testing.T) {
	for name, d := range map[string]*Door{"built": door(site), "not built": door(nil)} {
		for _, path := range []string{"/console", "/console/", "/console/x", "/console/assets/main-abc123.js", "/console/assets/none.js", "/console/session", "/console/sessions", "/console/links", "/console/frame"} {
			resp, _ := ask(t, d, "GET", path)
			h := resp.Header
			csp := h.Get("Content-Security-Policy")
			want := []string{"default-src 'none'", "script-src 'self'", "style-src 'self' 'unsafe-inline'", "img-src 'self' data: blob:", "connect-src 'self'", "font-src 'self'", "frame-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"}
			framed := "DENY"
			if path == framePath {
				framed = "SAMEORIGIN"
				want = []string{"sandbox allow-scripts;", "default-src 'none'", "script-src 'unsafe-inline' 'unsafe-eval'", "style-src 'unsafe-inline'", "img-src data: blob:", "frame-ancestors 'self'", "base-uri 'none'", "form-action 'none'"}
				if strings.Contains(csp, "allow-same-origin") || strings.Contains(csp, "connect-src") || strings.Contains(csp, "'self' ") {
					t.Errorf("the frame's policy %q lets it reach more than it may", csp)
				}
			} else if strings.Contains(csp, "unsafe-eval") || strings.Contains(csp, "script-src 'self' 'unsafe") || strings.Contains(csp, "http") {
				t.Errorf("%s: %s: policy %q lets scripts of others run", name, path, csp)
			}
			for _, part := range want {
				if !strings.Contains(csp, part) {
					t.Errorf("%s: %s: policy %q is without %q", name, path, csp, part)
				}
			}
			for header, value := range map[string]string{
				"X-Frame-Options": framed, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			} {
				if got := h.Get(header); got != value {
					t.Errorf("%s: %s: %s is %q, want %q", name, path, header, got, value)
				}
			}
		}
	}
}

func TestUnbuilt(t *testing.T) {
	d := door(nil)
	for _, path := range []string{"/console/", "/console/sandboxes", "/console/assets/main-abc123.js"} {
		resp, body := ask(t, d, "GET", path)
		if resp.StatusCode != 501 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.Contains(body, "make build") || strings.Contains(body, "<script") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if resp, _ := ask(t, d, "POST", "/console/"); resp.StatusCode != 405 {
		t.Errorf("POST: %s", resp.Status)
	}
	if resp, _ := ask(t, d, "GET", "/console/frame"); resp.StatusCode != 200 {
		t.Errorf("the frame: %s", resp.Status)
	}
}

func TestCompression(t *testing.T) {
	d := door(site)
	const path = "/console/assets/main-abc123.js"
	resp, body := ask(t, d, "GET", path, "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || len(body) > len(large)/10 || !strings.Contains(resp.Header.Get("Vary"), "Accept-Encoding") {
		t.Fatalf("%d bytes of %d, %v", len(body), len(large), resp.Header)
	}
	r, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != large {
		t.Errorf("unpacks to %d bytes, %v", len(got), err)
	}
	if resp, body := ask(t, d, "GET", path); resp.Header.Get("Content-Encoding") != "" || body != large {
		t.Errorf("for a client that takes none: %v", resp.Header)
	}
	if resp, _ := ask(t, d, "GET", path, "Accept-Encoding", "gzip", "If-None-Match", resp.Header.Get("Etag")); resp.StatusCode != 304 {
		t.Errorf("what the browser has already: %s", resp.Status)
	}
	if resp, _ := ask(t, d, "GET", "/console/favicon.svg", "Accept-Encoding", "gzip"); resp.Header.Get("Content-Encoding") != "" {
		t.Error("a few bytes are compressed")
	}
}

func TestClaims(t *testing.T) {
	for path, want := range map[string]bool{
		"/console": true, "/console/": true, "/console/x": true, "/console/../v1/sandboxes": true,
		"/consoles": false, "/": false, "/v1/console/": false, "/Console/": false, "": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if r.URL.Path = path; Claims(r) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
