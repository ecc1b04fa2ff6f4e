package server

import (
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// perKey bounds the requests under way by the key that they came with. It is
// safe for concurrent use.
type perKey struct {
	most int

	mu  sync.Mutex
	now map[string]int // guarded by mu
}

func newPerKey(most int) *perKey { return &perKey{most: most, now: make(map[string]int)} }

// handler lets requests through to next as long as their key has not too many.
// The server's own user has no key, and no bound.
func (p *perKey) handler(next http.Handler) http.Handler {
	own := sandbox.LocalCaller()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, ok := sandbox.CallerOf(r.Context())
		if !ok || caller.KeyID == own.KeyID && caller.Team == own.Team {
			next.ServeHTTP(w, r)
			return
		}
		key := caller.Team + "\x00" + caller.KeyID
		if !p.enter(key) {
			hurry(w, r)
			err := sandbox.Errorf(sandbox.CodeQuotaExceeded, "the key has %d requests and streams open, which is the limit; end some, or use another key", p.most)
			err.RetryAfter = time.Second
			rest.WriteError(w, err)
			return
		}
		defer p.leave(key)
		next.ServeHTTP(w, r)
	})
}

func (p *perKey) enter(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key] >= p.most {
		return false
	}
	p.now[key]++
	return true
}

func (p *perKey) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key]--; p.now[key] == 0 {
		delete(p.now, key)
	}
}
