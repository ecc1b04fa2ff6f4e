package egress

import (
	"net/netip"
	"slices"
)

// resolverNames and resolverAddrs are well-known resolvers that answer over TLS and
// HTTPS. They serve policies that allow by default and deny names. The lists need not be
// complete: a policy that denies by default refuses unlisted resolvers anyway.
var (
	resolverNames = map[string]bool{
		"dns.google": true, "dns64.dns.google": true, "8888.google": true,
		"cloudflare-dns.com": true, "one.one.one.one": true, "1dot1dot1dot1.cloudflare-dns.com": true,
		"mozilla.cloudflare-dns.com": true, "chrome.cloudflare-dns.com": true, "family.cloudflare-dns.com": true, "security.cloudflare-dns.com": true,
		"dns.quad9.net": true, "dns9.quad9.net": true, "dns10.quad9.net": true, "dns11.quad9.net": true,
		"doh.opendns.com": true, "dns.opendns.com": true, "doh.familyshield.opendns.com": true, "dns.umbrella.com": true,
		"dns.adguard.com": true, "dns.adguard-dns.com": true, "dns-family.adguard.com": true, "unfiltered.adguard-dns.com": true,
		"dns.nextdns.io": true, "doh.cleanbrowsing.org": true, "doh.dns.sb": true, "dns.sb": true,
		"dns.alidns.com": true, "doh.pub": true, "dot.pub": true, "dns.pub": true, "doh.360.cn": true,
		"freedns.controld.com": true, "dns.controld.com": true, "doh.mullvad.net": true, "dns.mullvad.net": true,
		"doh.libredns.gr": true, "dns.digitale-gesellschaft.ch": true, "doh.applied-privacy.net": true, "odoh.cloudflare-dns.com": true,
		"doh.xfinity.com": true, "doh.dns.apple.com": true, "dns0.eu": true, "dns.switch.ch": true, "wikimedia-dns.org": true,
	}
	resolverAddrs = []string{
		"1.1.1.1", "1.0.0.1", "1.1.1.2", "1.0.0.2", "1.1.1.3", "1.0.0.3", "8.8.8.8", "8.8.4.4",
		"9.9.9.9", "9.9.9.10", "9.9.9.11", "149.112.112.112", "149.112.112.10", "149.112.112.11",
		"208.67.222.222", "208.67.220.220", "208.67.222.123", "208.67.220.123",
		"94.140.14.14", "94.140.15.15", "94.140.14.140", "94.140.14.141", "185.222.222.222", "45.11.45.11",
		"223.5.5.5", "223.6.6.6", "1.12.12.12", "120.53.53.53", "76.76.2.0", "76.76.10.0", "194.242.2.2",
		"2606:4700:4700::1111", "2606:4700:4700::1001", "2001:4860:4860::8888", "2001:4860:4860::8844", "2620:fe::fe", "2620:fe::9",
	}
)

// knownResolver reports whether a name or an address is that of a well-known resolver.
func knownResolver(name string, addr netip.Addr) bool {
	return resolverNames[name] || slices.Contains(resolverAddrs, addr.String())
}
