package limits

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// TriesConfig says how often strangers may try in vain. All are required.
type TriesConfig struct {
	// Most is how many vain tries in a row somebody has, and Again after what
	// time they have one more.
	Most  int
	Again time.Duration
}

// maxTried bounds what is remembered: of more people and places than that, some
// are forgotten.
const maxTried = 8192

// Tries counts vain tries to get in. It is safe for concurrent use.
type Tries struct {
	cfg TriesConfig

	mu    sync.Mutex
	tried map[Try]tally // guarded by mu
}

// Try is who tries, and where.
type Try struct{ Place, Who string }

// tally is how many tries counted at a time; one is forgotten each Again.
type tally struct {
	n  int
	at time.Time
}

// NewTries returns a count of nothing.
func NewTries(cfg TriesConfig) *Tries {
	return &Tries{cfg: cfg, tried: make(map[Try]tally)}
}

// now is what still counts of a tally.
func (t *Tries) now(was tally, now time.Time) tally {
	gone := int(now.Sub(was.at) / t.cfg.Again)
	if gone >= was.n {
		return tally{at: now}
	}
	return tally{was.n - gone, was.at.Add(time.Duration(gone) * t.cfg.Again)}
}

// Wait returns how long somebody must wait before the next try; 0 is not.
func (t *Tries) Wait(by Try) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	left := t.now(t.tried[by], now)
	if left.n < t.cfg.Most {
		return 0
	}
	return left.at.Add(t.cfg.Again).Sub(now)
}

// Failed counts a vain try.
func (t *Tries) Failed(by Try) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	left := t.now(t.tried[by], now)
	if left.n == 0 && len(t.tried) >= maxTried {
		t.forget(now)
	}
	left.n = min(left.n+1, t.cfg.Most)
	t.tried[by] = left
}

// forget makes room.
//
// Preconditions: t.mu is held.
func (t *Tries) forget(now time.Time) {
	for by, was := range t.tried {
		if t.now(was, now).n == 0 {
			delete(t.tried, by)
		}
	}
	for by := range t.tried {
		if len(t.tried) < maxTried*3/4 {
			return
		}
		delete(t.tried, by)
	}
}

// Address is who is at the other end of a connection, from its remote address:
// an IPv4 address, or the network of an IPv6 address, of which one machine has
// all.
func Address(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}
