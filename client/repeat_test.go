package client

import (
	"net/http"
	"sync"
	"testing"
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
