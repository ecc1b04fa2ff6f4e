package egress

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// internalRanges are the addresses that are not reachable over the Internet, and those
// that have a meaning only on a cloud's host. The TEST-NETs, which are assigned to no
// one, count as public.
var internalRanges = prefixes(
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
	"::/96",            // unspecified, loopback, deprecated IPv4-compatible form
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

// plain returns an address in the form in which addresses are compared: without a zone,
// and IPv4 not mapped into IPv6.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// embedded returns the IPv4 address to which an IPv6 address of a transition mechanism is
// translated, or an invalid address.
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

// InternalAddrs holds the internal addresses of the host's network and the host's own.
// Neither a sandbox, nor the server on a caller's behalf, may connect to them unless
// explicitly allowed. It is safe for concurrent use.
type InternalAddrs struct {
	list func() []netip.Addr
	own  atomic.Pointer[ownAddrs]
}

type ownAddrs struct {
	addrs map[netip.Addr]bool
	at    time.Time
}

// ownRefresh is the maximum age of the list of the host's own addresses.
const ownRefresh = 5 * time.Second

// NewInternalAddrs calls list repeatedly to get the host's own addresses; if list is nil,
// it asks the system.
func NewInternalAddrs(list func() []netip.Addr) *InternalAddrs {
	if list == nil {
		list = interfaceAddrs
	}
	return &InternalAddrs{list: list}
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

func (w *InternalAddrs) ownAddrs() map[netip.Addr]bool {
	old := w.own.Load()
	if old != nil && time.Since(old.at) < ownRefresh {
		return old.addrs
	}
	own := &ownAddrs{addrs: map[netip.Addr]bool{}, at: time.Now()}
	for _, a := range w.list() {
		own.addrs[plain(a)] = true
	}
	if len(own.addrs) == 0 && old != nil {
		own.addrs = old.addrs // an old list is better than none
	}
	w.own.Store(own)
	return own.addrs
}

// Has reports whether an address is internal, or is translated to an internal address.
func (w *InternalAddrs) Has(a netip.Addr) bool {
	a = plain(a)
	if !a.IsValid() {
		return true
	}
	if slices.ContainsFunc(internalRanges, func(p netip.Prefix) bool { return p.Contains(a) }) || w.ownAddrs()[a] {
		return true
	}
	v4 := embedded(a)
	return v4.IsValid() && w.Has(v4)
}

// covers reports whether an entire range is internal.
func (w *InternalAddrs) covers(p netip.Prefix) bool {
	return slices.ContainsFunc(internalRanges, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }) ||
		p.IsSingleIP() && w.Has(p.Addr())
}
