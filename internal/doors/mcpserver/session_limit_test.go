package mcpserver

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSessionsAreBounded(t *testing.T) {
	w := serve(t, Config{Service: newFake(), MaxSessions: 3, MaxSessionsPerKey: 2})
	ping := func(headers []string) int {
		status, _ := w.post("/mcp", `{"jsonrpc":"2.0","id":5,"method":"ping"}`, headers...)
		return status
	}
	a1 := w.session("/mcp", "X-Test-Key", "a")
	a2 := w.session("/mcp", "X-Test-Key", "a")
	if s := ping(a1); s != http.StatusOK {
		t.Fatal(s)
	}
	a3 := w.session("/mcp", "X-Test-Key", "a") // a2 was idle longest
	if s1, s2, s3 := ping(a1), ping(a2), ping(a3); s1 != 200 || s2 != 404 || s3 != 200 {
		t.Errorf("of a key: %d %d %d", s1, s2, s3)
	}
	b1 := w.session("/mcp", "X-Test-Key", "b")
	c1 := w.session("/mcp", "X-Test-Key", "c") // a1 was idle longest
	if s1, s3, sb, sc := ping(a1), ping(a3), ping(b1), ping(c1); s1 != 404 || s3 != 200 || sb != 200 || sc != 200 {
		t.Errorf("of all: %d %d %d %d", s1, s3, sb, sc)
	}
}

func TestSessionInUseIsNotEnded(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f, MaxSessions: 1})
	headers := w.session("/mcp")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/mcp", strings.NewReader(call(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`)))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set(headerSession, headers[1])
		req.Header.Set(headerProtocol, headers[3])
		if res, err := w.client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	waitFor(t, f.started, "start")
	res := w.do(t.Context(), http.MethodPost, "/mcp", initialize)
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("status %d", res.StatusCode)
	}
	cancel()
	waitFor(t, f.ended, "end of the work")
	waitFor(t, done, "end of the call")
}

// watched calls a function before each part of an answer.
type watched struct {
	*httptest.ResponseRecorder
	write func()
}

func (w *watched) Write(p []byte) (int, error) {
	w.write()
	return w.ResponseRecorder.Write(p)
}

// A client can use its session as soon as it has the answer.
func TestSessionIsKnownBeforeAnswer(t *testing.T) {
	h, err := NewHTTP(Config{Service: newFake(), Version: "0.0.1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(initialize))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := &watched{ResponseRecorder: httptest.NewRecorder()}
	wrote := false
	w.write = func() {
		h.limit.mu.Lock()
		defer h.limit.mu.Unlock()
		if id := w.Header().Get(headerSession); h.limit.sessions[id] == nil || h.limit.starting != 0 {
			t.Errorf("session %q is not counted as its answer is written", id)
		}
		wrote = true
	}
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || !wrote {
		t.Errorf("status %d, written %v", w.Code, wrote)
	}
}

// direct is a way to a handler without a network, for tests whose time is not
// the machine's.
type direct struct{ http.Handler }

// RoundTrip implements [http.RoundTripper].
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, r)
	return rec.Result(), nil
}

func TestIdleSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := NewHTTP(Config{Service: newFake(), SessionIdle: time.Hour, Version: "0.0.1", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		w := &web{t: t, url: "http://localhost", handler: h, client: &http.Client{Transport: direct{h}}}
		ping := func(headers []string) int {
			status, _ := w.post("/mcp", `{"jsonrpc":"2.0","id":5,"method":"ping"}`, headers...)
			return status
		}
		headers := w.session("/mcp")
		for range 3 {
			time.Sleep(59 * time.Minute)
			if status := ping(headers); status != http.StatusOK {
				t.Fatalf("after 59 minutes: status %d", status)
			}
		}
		time.Sleep(61 * time.Minute)
		if status := ping(headers); status != http.StatusNotFound {
			t.Errorf("after 61 minutes: status %d", status)
		}
	})
}
