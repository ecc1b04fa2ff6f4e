package door

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

const (
	// vmPath is the path, below [Prefix], of sandboxes' agents. The sandbox's id follows.
	vmPath = "/vm/"
	// agentPort is the prefix of the host name of a sandbox's agent.
	agentPort = "7777-"
)

// target is the destination of a request: the control plane if no sandbox is named.
type target struct {
	sandbox string // Cove's id
	path    string // within the plane, with its escapes
}

// sockets are the paths at the root at which clients open WebSockets, wherever the server
// is. The token names the sandbox.
var sockets = map[string]bool{"/execute/stream": true, "/commands/stream": true, "/terminal": true, "/files/watch": true}

// ClaimsHost reports whether a request is for this door by its host name. Such a request
// must not reach another handler.
func (d *Door) ClaimsHost(r *http.Request) bool {
	host := sdkdoor.HostName(r.Host)
	if d.named && host == apiHost {
		return true
	}
	_, ok := d.sandboxOfHost(host)
	return ok
}

// Claims reports whether a request is for this door by its path, or by a token.
func (d *Door) Claims(r *http.Request) bool {
	if r.URL.Path == Prefix || strings.HasPrefix(r.URL.Path, Prefix+"/") {
		return true
	}
	return isSocket(r) && tokenOf(r.Header) != ""
}

func isSocket(r *http.Request) bool {
	return sockets[r.URL.Path] && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// sandboxOfHost returns the sandbox whose agent has this host name.
func (d *Door) sandboxOfHost(host string) (id string, ok bool) {
	label, below := strings.CutSuffix(host, d.suffix)
	if d.suffix == "" || !below {
		return "", false
	}
	id, ok = strings.CutPrefix(label, agentPort)
	return id, ok && sdkdoor.ValidID(id)
}

// find returns the target of a request. Paths keep their escapes: one with escapes in its
// prefix, or with an impossible sandbox id, matches no route of the control plane.
func (d *Door) find(r *http.Request) target {
	raw := r.URL.EscapedPath()
	host := sdkdoor.HostName(r.Host)
	if id, ok := d.sandboxOfHost(host); ok {
		return target{id, raw}
	}
	if d.named && host == apiHost {
		return target{path: raw}
	}
	if isSocket(r) {
		id, _, _ := parseToken(tokenOf(r.Header))
		return target{id, raw}
	}
	rest, ok := strings.CutPrefix(raw, Prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return target{path: raw}
	}
	if vm, ok := strings.CutPrefix(rest, vmPath); ok {
		id, path, _ := strings.Cut(vm, "/")
		if sdkdoor.ValidID(id) {
			return target{id, "/" + path}
		}
	}
	return target{path: rest}
}

// origin returns the scheme and host by which the client has reached the server, including
// a proxy's; "" over a unix socket.
func (x *exchange) origin() string {
	if x.d.cfg.Trusted(x.r) {
		return ""
	}
	_, base := x.d.cfg.Address()
	return sdkdoor.Origin(x.r, base)
}

// agentURL returns the URL at which the client reaches the agent of a sandbox: by the host
// name, if clients recognize it as the product's, else by the address that the client has
// used.
func (x *exchange) agentURL(id string) string {
	origin := x.origin()
	domain, base := x.d.cfg.Address()
	switch {
	case x.d.suffix != "":
		scheme, _, _ := strings.Cut(cmp.Or(origin, base), "://")
		return scheme + "://" + agentPort + id + "." + domain
	case origin != "":
		return origin + Prefix + vmPath + id
	}
	return base + vmPath + id
}
