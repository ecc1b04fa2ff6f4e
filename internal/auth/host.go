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

// HostConfig says which names a daemon goes by.
type HostConfig struct {
	// Hosts are names or addresses, without port, that it is reached by,
	// besides those of loopback. "*" allows all.
	Hosts []string
	// Error answers refused requests; nil writes a small JSON document.
	Error ErrorWriter
}

// CheckHost refuses requests that a web page of elsewhere made a browser send:
// the Host header, and the Origin if there is one, must name loopback or one of
// the daemon's own hosts. Without it a page could point its own name at
// 127.0.0.1 and talk to the daemon (DNS rebinding). Requests through a unix
// socket pass: browsers cannot make them.
func CheckHost(cfg HostConfig) func(http.Handler) http.Handler {
	if cfg.Error == nil {
		cfg.Error = writeError
	}
	own := make(map[string]bool, len(cfg.Hosts))
	for _, h := range cfg.Hosts {
		own[strings.ToLower(strings.Trim(h, "[]"))] = true
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !ViaUnixSocket(r) {
				if err := checkHost(own, r.Host, r.Header.Values("Origin")); err != nil {
					cfg.Error(w, r, err)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

func checkHost(own map[string]bool, host string, origins []string) error {
	if name, ok := hostName(host); !ok || !allowedHost(own, name) {
		return sandbox.Errorf(sandbox.CodeForbidden, "this server does not go by the host name of the request; call it by localhost or 127.0.0.1, or add the name to its allowed hosts")
	}
	if len(origins) == 0 {
		return nil
	}
	if name, ok := originName(origins); !ok || !allowedHost(own, name) {
		return sandbox.Errorf(sandbox.CodeForbidden, "requests from web pages of other sites are refused; add the site's host to the server's allowed hosts to permit it")
	}
	return nil
}

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

func allowedHost(own map[string]bool, name string) bool {
	if own["*"] || own[name] || name == "localhost" {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}
