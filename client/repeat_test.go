package client

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// A creating call is sent again, with the same key, to a server that says to come again, and
// not to one that only refuses.
func TestRefusedForAMoment(t *testing.T) {
	for _, c := range []struct {
		retryAfter string
		want       int // requests
		code       sandbox.Code
	}{{"1", 2, ""}, {"", 1, sandbox.CodeUnavailable}} {
		var mu sync.Mutex
		keys := map[string]int{}
		n := 0
		cl := capture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			n++
			keys[r.Header.Get("Idempotency-Key")]++
			if n == 1 {
				if c.retryAfter != "" {
					w.Header().Set("Retry-After", c.retryAfter)
				}
				http.Error(w, "on standby", http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"id":"sbx-a"}`))
		})
		began := time.Now()
		_, err := cl.Create(t.Context(), sandbox.CreateRequest{})
		if code := sandbox.CodeOf(err); err != nil && code != c.code || err == nil && c.code != "" {
			t.Errorf("Retry-After %q: %v", c.retryAfter, err)
		}
		if n != c.want || len(keys) != 1 || keys[""] > 0 {
			t.Errorf("Retry-After %q: %d requests with the keys %v, want %d with one", c.retryAfter, n, keys, c.want)
		}
		if took := time.Since(began); c.want > 1 && took < time.Second {
			t.Errorf("it was sent again after %s", took)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A takeover takes longer than a few refusals of a server on standby: the call is sent again
// for takeover, however often, and not for longer.
func TestRefusedDuringTakeover(t *testing.T) {
	for _, c := range []struct {
		lasts time.Duration
		code  sandbox.Code
	}{{takeover - time.Second, ""}, {time.Hour, sandbox.CodeUnavailable}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			cl, err := New(Config{URL: "http://cove.example", HTTPClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				res := &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r, Body: io.NopCloser(strings.NewReader(`{"id":"sbx-a"}`))}
				if time.Since(began) < c.lasts {
					res.StatusCode, res.Header = http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}
				}
				return res, nil
			})}})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			_, err = cl.Create(t.Context(), sandbox.CreateRequest{})
			if sandbox.CodeOf(err) != c.code {
				t.Errorf("a takeover of %s: %v", c.lasts, err)
			}
			if took := time.Since(began); took > takeover+time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
