package egress

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// maxPins limits the pairs of name and address that are remembered.
	maxPins = 16384
	// pinGrace is how long a pin outlives the TTL of its answer: programs use addresses for
	// longer than they should.
	pinGrace = 10 * time.Minute
)

// pins remembers which addresses were given out for which names. It is safe for
// concurrent use.
type pins struct {
	mu    sync.Mutex
	names map[netip.Addr]map[string]time.Time // expiry by name; guarded by mu
	count int                                 // pairs of name and address; guarded by mu
}

func newPins() *pins { return &pins{names: map[netip.Addr]map[string]time.Time{}} }

// add records an answer.
func (p *pins) add(name string, addrs []netip.Addr, ttl time.Duration) {
	until := time.Now().Add(ttl + pinGrace)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		of := p.names[a]
		if of == nil {
			of = map[string]time.Time{}
			p.names[a] = of
		}
		if _, ok := of[name]; !ok {
			p.count++
		}
		of[name] = until
	}
	if p.count > maxPins {
		p.shrink()
	}
}

// shrink removes expired pins, then others until there is room. The caller must hold
// p.mu.
func (p *pins) shrink() {
	now := time.Now()
	for _, force := range []bool{false, true} {
		for a, of := range p.names {
			for name, until := range of {
				if force && p.count <= maxPins*3/4 {
					return
				}
				if force || now.After(until) {
					delete(of, name)
					p.count--
				}
			}
			if len(of) == 0 {
				delete(p.names, a)
			}
		}
	}
}

// of returns the names of an address.
func (p *pins) of(a netip.Addr) []string {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, until := range p.names[a] {
		if now.Before(until) {
			names = append(names, name)
		}
	}
	return names
}

// latest returns the name for which the address was last given out, or "".
func (p *pins) latest(a netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var name string
	var at time.Time
	for n, until := range p.names[a] {
		if until.After(at) || until.Equal(at) && n < name {
			name, at = n, until
		}
	}
	return name
}

// has reports whether the address was given out for the name.
func (p *pins) has(a netip.Addr, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.names[a][name]
	return ok && time.Now().Before(until)
}

// synthetic allocates addresses for names that have none the sandbox could use: its
// peers, and names that only a proxy can resolve. Synthetic addresses are never dialled.
// It is safe for concurrent use.
type synthetic struct {
	mu     sync.Mutex
	byName map[string]netip.Addr // guarded by mu
	byAddr map[netip.Addr]string // guarded by mu
	next   uint16                // guarded by mu
}

// syntheticRange contains all synthetic addresses.
var syntheticRange = netip.MustParsePrefix("198.19.0.0/16")

func newSynthetic() *synthetic {
	return &synthetic{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}}
}

// give returns the address of a name. Above 65,535 names, the oldest loses its address.
func (s *synthetic) give(name string) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.byName[name]; ok {
		return a
	}
	if s.next++; s.next == 0 {
		s.next = 1
	}
	a := netip.AddrFrom4([4]byte{198, 19, byte(s.next >> 8), byte(s.next)})
	if old, ok := s.byAddr[a]; ok {
		delete(s.byName, old)
	}
	s.byName[name], s.byAddr[a] = a, name
	return a
}

// nameOf returns the name that has an address.
func (s *synthetic) nameOf(a netip.Addr) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, ok := s.byAddr[a]
	return name, ok
}
