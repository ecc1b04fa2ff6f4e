package egress

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// world are the addresses of the host's own world: what a machine on the
// Internet could not reach, and what only has a meaning on a cloud's host.
// TEST-NETs, which nobody has, count as public.
var world = prefixes(
	"0.0.0.0/8",        // this host
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared, also Alibaba's metadata
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // Azure's host agent
	"169.254.0.0/16",   // link-local, metadata of most clouds
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments, Oracle's metadata
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarks; the gateway's synthetic addresses
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, broadcast
	"::/96",            // unspecified, loopback, IPv4 in a form that nobody routes
	"::ffff:0:0:0/96",  // translated IPv4
	"64:ff9b:1::/48",   // local translation to IPv4
	"100::/64",         // discard
	"2001::/32",        // Teredo, whose clients hide IPv4 addresses
	"5f00::/16",        // segments of a router's own network
	"fc00::/7",         // unique local, metadata of AWS and Google
	"fe80::/10",        // link-local
	"fec0::/10",        // site-local
	"ff00::/8",         // multicast
)

var (
	everyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(all ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(all))
	for i, s := range all {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// plain returns an address in the one form that is compared: an IPv4 address
// as such, not mapped into IPv6, and without a zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// embedded returns the IPv4 address to which an IPv6 address of a transition
// mechanism leads, or an invalid one.
func embedded(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}

// HostWorld knows which addresses are the host's own world: what neither a
// sandbox nor the server on a caller's behalf shall reach unasked. It is safe
// for concurrent use.
type HostWorld struct {
	list func() []netip.Addr
	own  atomic.Pointer[ownAddrs]
}

type ownAddrs struct {
	addrs map[netip.Addr]bool
	at    time.Time
}

// ownRefresh is how old the list of the host's own addresses may become.
const ownRefresh = 5 * time.Second

// NewHostWorld takes the host's own addresses from list, now and then; nil asks
// the system.
func NewHostWorld(list func() []netip.Addr) *HostWorld {
	if list == nil {
		list = interfaceAddrs
	}
	return &HostWorld{list: list}
}

func interfaceAddrs() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

func (w *HostWorld) ownAddrs() map[netip.Addr]bool {
	old := w.own.Load()
	if old != nil && time.Since(old.at) < ownRefresh {
		return old.addrs
	}
	own := &ownAddrs{addrs: map[netip.Addr]bool{}, at: time.Now()}
	for _, a := range w.list() {
		own.addrs[plain(a)] = true
	}
	if len(own.addrs) == 0 && old != nil {
		own.addrs = old.addrs // better the old ones than none
	}
	w.own.Store(own)
	return own.addrs
}

// Has tells whether an address belongs to the host's world, by itself or by
// what it leads to.
func (w *HostWorld) Has(a netip.Addr) bool {
	a = plain(a)
	if !a.IsValid() {
		return true
	}
	for _, p := range world {
		if p.Contains(a) {
			return true
		}
	}
	if w.ownAddrs()[a] {
		return true
	}
	if v4 := embedded(a); v4.IsValid() {
		return w.Has(v4)
	}
	return false
}

// covers tells whether a whole range lies inside the host's world.
func (w *HostWorld) covers(p netip.Prefix) bool {
	for _, q := range world {
		if q.Bits() <= p.Bits() && q.Contains(p.Addr()) {
			return true
		}
	}
	return p.IsSingleIP() && w.Has(p.Addr())
}
