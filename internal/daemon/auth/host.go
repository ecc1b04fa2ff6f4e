package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// HostConfig configures [CheckHost].
type HostConfig struct {
	// Hosts are names or addresses, without port, at which the daemon is reached, besides
	// those of loopback. "*" allows all. Web pages of these hosts may send requests.
	Hosts []string
	// AnyHost accepts every Host header, for a server that others reach by names it does
	// not know. It does not admit web pages.
	AnyHost bool
	// Error answers refused requests; nil writes a small JSON document.
	Error ErrorWriter
}

// CheckHost refuses requests that a web page of another origin made a browser send. The
// Host header must name loopback, one of the daemon's own hosts, or the address at which the
// request arrived, as probes do; otherwise a page could point its own name at 127.0.0.1 and
// reach the daemon (DNS rebinding). Origin and
// Sec-Fetch-Site, if present, must name this server itself or one of its hosts: a page on
// another port of localhost, such as a sandbox's published port, is as foreign as any
// other. Following a link from another site is allowed: it carries no Origin and changes
// nothing. Requests through a unix socket pass, since browsers cannot make them.
func CheckHost(cfg HostConfig) func(http.Handler) http.Handler {
	if cfg.Error == nil {
		cfg.Error = writeError
	}
	c := &hostCheck{own: make(map[string]bool, len(cfg.Hosts)), anyHost: cfg.AnyHost}
	for _, h := range cfg.Hosts {
		c.own[strings.ToLower(strings.Trim(h, "[]"))] = true
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !ViaUnixSocket(r) {
				if err := c.check(r); err != nil {
					cfg.Error(w, r, err)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// hostCheck is the state of [CheckHost].
type hostCheck struct {
	own     map[string]bool
	anyHost bool
	pages   http.CrossOriginProtection
}

func (c *hostCheck) check(r *http.Request) error {
	if name, ok := hostName(r.Host); !c.anyHost && (!ok || !c.own["*"] && !c.own[name] && !loopbackName(name) && !arrivedAt(r, name)) {
		return sandbox.Errorf(sandbox.CodeForbidden, "this server does not go by the host name of the request; call it by localhost or 127.0.0.1, or add the name to its allowed hosts")
	}
	if !c.ownPage(r) {
		return sandbox.Errorf(sandbox.CodeForbidden, "requests from web pages of other sites and ports are refused; add the page's host to the server's allowed hosts to permit it")
	}
	return nil
}

// arrivedAt reports whether a host is the address at which a request arrived. A page with
// such a host came from this machine.
func arrivedAt(r *http.Request, host string) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return false
	}
	asked, err := netip.ParseAddr(host)
	return err == nil && asked.Unmap() == at.Addr().Unmap().WithZone("")
}

// ownPage reports whether a request comes from a page of this server or of one of its
// hosts, or not from a page at all.
func (c *hostCheck) ownPage(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) > 0 {
		name, ok := originName(origins)
		if !ok {
			return false
		}
		if c.own["*"] || c.own[name] {
			return true
		}
	} else if safe(r.Method) && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
		return true
	}
	// The protection allows requests that only read. Reads from foreign pages are refused
	// too, since they may wake a sandbox.
	asked := *r
	asked.Method = http.MethodPost
	return c.pages.Check(&asked) == nil
}

func safe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// hostName returns the name or address in a Host header, in lower case.
func hostName(host string) (string, bool) {
	name := host
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		port := host[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return "", false
		}
		name = host[:i]
	}
	if strings.HasPrefix(name, "[") {
		inner, ok := strings.CutSuffix(name[1:], "]")
		if a, err := netip.ParseAddr(inner); !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return "", false
		}
		return strings.ToLower(inner), true
	}
	if name == "" || len(name) > 255 || strings.ContainsAny(name, ":/\\@[]%?# \t\x00") {
		return "", false
	}
	return strings.ToLower(name), true
}

// originName returns the name in a single Origin header.
func originName(origins []string) (string, bool) {
	if len(origins) != 1 || len(origins[0]) > 1024 {
		return "", false
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	return hostName(u.Host)
}

func loopbackName(name string) bool {
	if name == "localhost" {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}
