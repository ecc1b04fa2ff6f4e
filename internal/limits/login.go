package limits

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// LoginLimiterConfig is a token bucket for failed logins. All fields are required.
type LoginLimiterConfig struct {
	// Burst is how many logins in a row may fail. Refill is the time after which one
	// more may.
	Burst  int
	Refill time.Duration
}

// maxSources is how many sources are remembered; beyond that, some are forgotten.
const maxSources = 8192

// LoginLimiter limits the rate of failed logins per source. It is safe for
// concurrent use.
type LoginLimiter struct {
	cfg LoginLimiterConfig

	mu     sync.Mutex
	failed map[Source]tally // guarded by mu
}

// Source is the address from which logins come, and the target they are for.
type Source struct{ Target, Address string }

// tally is the number of failures that counted at a time. One expires each Refill.
type tally struct {
	n  int
	at time.Time
}

// NewLoginLimiter returns a limiter without failures.
func NewLoginLimiter(cfg LoginLimiterConfig) *LoginLimiter {
	return &LoginLimiter{cfg: cfg, failed: make(map[Source]tally)}
}

// refill returns a tally without the failures that have expired.
func (t *LoginLimiter) refill(old tally, now time.Time) tally {
	expired := int(now.Sub(old.at) / t.cfg.Refill)
	if expired >= old.n {
		return tally{at: now}
	}
	return tally{old.n - expired, old.at.Add(time.Duration(expired) * t.cfg.Refill)}
}

// Wait returns how long the source must wait before its next login; 0 means that it
// may log in now.
func (t *LoginLimiter) Wait(by Source) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	left := t.refill(t.failed[by], now)
	if left.n < t.cfg.Burst {
		return 0
	}
	return left.at.Add(t.cfg.Refill).Sub(now)
}

// Failed counts a failed login.
func (t *LoginLimiter) Failed(by Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	left := t.refill(t.failed[by], now)
	if left.n == 0 && len(t.failed) >= maxSources {
		t.forget(now)
	}
	left.n = min(left.n+1, t.cfg.Burst)
	t.failed[by] = left
}

// forget removes expired sources, and arbitrary ones until there is room. The caller must
// hold t.mu.
func (t *LoginLimiter) forget(now time.Time) {
	maps.DeleteFunc(t.failed, func(_ Source, old tally) bool { return t.refill(old, now).n == 0 })
	for by := range t.failed {
		if len(t.failed) < maxSources*3/4 {
			return
		}
		delete(t.failed, by)
	}
}

// Address identifies the client at a remote address: the IPv4 address itself, or the /64
// network of an IPv6 address, since one machine usually owns that entire network.
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
