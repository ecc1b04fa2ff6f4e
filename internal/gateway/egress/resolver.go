package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/singleflight"
)

const (
	// minTTL and maxTTL bound how long answers are cached, and the TTL that the sandbox
	// sees.
	minTTL = 5 * time.Second
	maxTTL = 10 * time.Minute
	// deadTTL is how long the resolver remembers that a name does not exist, and failTTL
	// that no resolver answered.
	deadTTL = 10 * time.Second
	failTTL = time.Second

	maxCached    = 4096
	maxChain     = 16
	maxAddresses = 32
)

// errNoName means that a name does not exist.
var errNoName = errors.New("no such name")

// resolver looks names up, caches the answers, and answers the sandbox's queries. It is
// safe for concurrent use.
type resolver struct {
	g         *Gateway
	up        *upstream
	pins      *pins
	synthetic *synthetic
	flights   singleflight.Group
	// slots limits how many queries are processed at the same time.
	slots chan struct{}

	mu    sync.Mutex
	cache map[lookupKey]lookup // guarded by mu
}

type lookupKey struct {
	name string
	typ  dnsmessage.Type
}

// lookup is the answer to a query for addresses.
type lookup struct {
	addrs []netip.Addr
	// chain is the chain of CNAMEs; the last one has the addresses.
	chain []string
	until time.Time
	err   error
}

func newResolver(g *Gateway) *resolver {
	return &resolver{g: g, up: &upstream{dialer: g.cfg.Dialer, servers: g.cfg.Resolvers}, pins: newPins(),
		synthetic: newSynthetic(), slots: make(chan struct{}, 256), cache: map[lookupKey]lookup{}}
}

// nameOf returns a name for an address, for the log.
func (r *resolver) nameOf(a netip.Addr) string {
	if name, ok := r.synthetic.nameOf(a); ok {
		return name
	}
	return r.pins.latest(a)
}

// pinned reports whether an address is pinned to a name.
func (r *resolver) pinned(a netip.Addr, name string) bool { return r.pins.has(a, name) }

// addresses resolves a name, IPv4 first, without judging it.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	l, err := r.lookup(ctx, name, dnsmessage.TypeA)
	if err != nil && !errors.Is(err, errNoName) {
		return nil, err
	}
	addrs := l.addrs
	if r.g.cfg.IPv6 {
		if l6, err6 := r.lookup(ctx, name, dnsmessage.TypeAAAA); err6 == nil {
			addrs = append(addrs[:len(addrs):len(addrs)], l6.addrs...)
			err = nil
		}
	}
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("%s has no address", name)
	}
	return addrs, err
}

// lookup returns a name's addresses of one type, from the cache or by asking.
func (r *resolver) lookup(ctx context.Context, name string, typ dnsmessage.Type) (lookup, error) {
	key := lookupKey{name, typ}
	r.mu.Lock()
	l, ok := r.cache[key]
	r.mu.Unlock()
	if ok && time.Now().Before(l.until) {
		return l, l.err
	}
	// The query continues if the caller goes away, since others may wait for it too.
	result := r.flights.DoChan(name+"/"+typ.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		l := r.resolve(ctx, name, typ)
		r.remember(key, l)
		return l, nil
	})
	select {
	case res := <-result:
		l, _ := res.Val.(lookup)
		return l, l.err
	case <-ctx.Done():
		return lookup{}, ctx.Err()
	}
}

func (r *resolver) remember(key lookupKey, l lookup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		now := time.Now()
		for k, old := range r.cache {
			if now.After(old.until) || len(r.cache) > maxCached*3/4 {
				delete(r.cache, k)
			}
		}
	}
	r.cache[key] = l
}

// resolve asks for the addresses of a name, and follows CNAMEs that the upstream resolver
// did not follow.
func (r *resolver) resolve(ctx context.Context, name string, typ dnsmessage.Type) lookup {
	l := lookup{}
	ttl := maxTTL
	at := name
	for range maxChain {
		n, err := dnsmessage.NewName(at + ".")
		if err != nil {
			return failed(err, failTTL)
		}
		m, err := r.up.ask(ctx, dnsmessage.Question{Name: n, Type: typ, Class: dnsmessage.ClassINET})
		switch {
		case err != nil:
			return failed(err, failTTL)
		case m.RCode == dnsmessage.RCodeNameError:
			return failed(errNoName, deadTTL)
		case m.RCode != dnsmessage.RCodeSuccess:
			return failed(fmt.Errorf("the resolver answers %s", strings.TrimPrefix(m.RCode.String(), "RCode")), failTTL)
		}
		end, found, left := follow(m.Answers, at, typ, &l.chain)
		ttl = min(ttl, left)
		if len(found) > 0 {
			l.addrs = found
			l.until = time.Now().Add(max(ttl, minTTL))
			return l
		}
		if end == at {
			l.until = time.Now().Add(deadTTL)
			return l // the name exists, but has no address of this type
		}
		at = end
		if len(l.chain) > maxChain {
			break
		}
	}
	return failed(errors.New("the name stands for too many others"), failTTL)
}

func failed(err error, ttl time.Duration) lookup {
	return lookup{err: err, until: time.Now().Add(ttl)}
}

// follow follows the CNAMEs in answers from a name to the addresses at their end. It
// returns the last name, its addresses, and how long the chain is valid.
func follow(answers []dnsmessage.Resource, name string, typ dnsmessage.Type, chain *[]string) (string, []netip.Addr, time.Duration) {
	ttl := maxTTL
	for range maxChain {
		var addrs []netip.Addr
		next := ""
		for _, a := range answers {
			if a.Header.Class != dnsmessage.ClassINET || !strings.EqualFold(a.Header.Name.String(), name+".") {
				continue
			}
			left := time.Duration(a.Header.TTL) * time.Second
			switch body := a.Body.(type) {
			case *dnsmessage.AResource:
				if typ == dnsmessage.TypeA && len(addrs) < maxAddresses {
					addrs, ttl = append(addrs, netip.AddrFrom4(body.A)), min(ttl, left)
				}
			case *dnsmessage.AAAAResource:
				if typ == dnsmessage.TypeAAAA && len(addrs) < maxAddresses {
					addrs, ttl = append(addrs, netip.AddrFrom16(body.AAAA)), min(ttl, left)
				}
			case *dnsmessage.CNAMEResource:
				if host, ok := hostname(body.CNAME.String()); ok && next == "" {
					next, ttl = host, min(ttl, left)
				}
			}
		}
		if len(addrs) > 0 || next == "" {
			return name, addrs, ttl
		}
		*chain = append(*chain, next)
		name = next
	}
	return name, nil, ttl
}
