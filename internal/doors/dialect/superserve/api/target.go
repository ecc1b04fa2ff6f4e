package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// The product's host names, which are built into its SDK.
var (
	// apiHosts serve the control plane.
	apiHosts = []string{"api.superserve.ai", "api-usw.superserve.ai", "api-staging.superserve.ai"}
	// dataHosts serve the data plane of the sandbox that the header names; a name below one
	// of them serves the data plane of one sandbox, or a port of it.
	dataHosts = []string{"sandbox.superserve.ai", "usw-sandbox.superserve.ai", "staging-sandbox.superserve.ai"}
)

const (
	// headerSandbox names the sandbox if the address does not.
	headerSandbox = "X-Superserve-Sandbox-Id"
	headerToken   = "X-Access-Token"
	headerProto   = "Sec-Websocket-Protocol"
	// dataLabel is the prefix of the label of a sandbox's data plane; that of a port is its
	// number.
	dataLabel = "boxd-"

	minPort = 1024
)

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

var (
	errHost = invalid("this host name is no sandbox's; it is boxd-ID or PORT-ID, with a port of 1024 to 65535")
	// Pages of a sandbox must not share the server's own origin: browsers do not send the
	// header when they open an address.
	errPort    = invalid("a port below %s is for programs, which name the sandbox in %s too; browsers open previews by host name", Prefix, headerSandbox)
	errSandbox = invalid("%s must be the id of one sandbox, and the same one that the host name has", headerSandbox)
)

// target is the destination of a request: the control plane if no field is set.
type target struct {
	sandbox string
	port    int    // of a preview; 0 is the data plane
	cut     string // the prefix of the path before the route
}

// ClaimsHost reports whether a request is for this door by its host name.
func (d *Door) ClaimsHost(r *http.Request) bool {
	name := sdkdoor.HostName(r.Host)
	if slices.Contains(apiHosts, name) || slices.Contains(dataHosts, name) {
		return true
	}
	_, ok := labelOf(name)
	return ok
}

// Claims reports whether a request is for this door by its path, or by the header that
// names a sandbox.
func (d *Door) Claims(r *http.Request) bool {
	return r.URL.Path == Prefix || strings.HasPrefix(r.URL.Path, Prefix+"/") || len(r.Header.Values(headerSandbox)) > 0
}

// labelOf returns the label in front of one of the data plane's host names.
func labelOf(name string) (label string, ok bool) {
	for _, host := range dataHosts {
		if label, ok := strings.CutSuffix(name, "."+host); ok {
			return label, true
		}
	}
	return "", false
}

// find returns the target of a request. A sandbox is named by the host name, by the first
// part of the path below the prefix in the same form, or by the header. If several are
// present, they must agree.
func find(r *http.Request) (target, error) {
	at, named, err := findPlace(r)
	if err != nil {
		return at, err
	}
	ids := r.Header.Values(headerSandbox)
	if len(ids) == 0 {
		if at.port != 0 && at.cut != "" {
			return at, errPort
		}
		return at, nil
	}
	if len(ids) > 1 || !sdkdoor.ValidID(ids[0]) || named && ids[0] != at.sandbox {
		return at, errSandbox
	}
	at.sandbox = ids[0]
	return at, nil
}

// findPlace reads the host name and the path; named reports that they determine the target.
func findPlace(r *http.Request) (at target, named bool, err error) {
	name := sdkdoor.HostName(r.Host)
	if label, ok := labelOf(name); ok {
		at, ok = parseLabel(label)
		if !ok {
			return at, true, errHost
		}
		return at, true, nil
	}
	if slices.Contains(apiHosts, name) {
		return at, true, nil // the header does not apply to this host
	}
	if slices.Contains(dataHosts, name) {
		if len(r.Header.Values(headerSandbox)) == 0 {
			return at, false, errSandbox
		}
		return at, false, nil
	}
	rest, ok := strings.CutPrefix(r.URL.Path, Prefix)
	if !ok || rest != "" && rest[0] != '/' {
		return at, false, nil // only the header names the sandbox
	}
	at.cut = Prefix
	first, _, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
	if found, ok := parseLabel(first); ok && strings.HasPrefix(rest, "/"+first) {
		found.cut = Prefix + "/" + first
		return found, true, nil
	}
	return at, false, nil
}

// parseLabel parses boxd-ID and PORT-ID.
func parseLabel(label string) (target, bool) {
	if id, ok := strings.CutPrefix(label, dataLabel); ok {
		return target{sandbox: id}, sdkdoor.ValidID(id)
	}
	digits, id, _ := strings.Cut(label, "-")
	port, ok := sdkdoor.Port(digits)
	if !ok || port < minPort {
		return target{}, false
	}
	return target{sandbox: id, port: port}, sdkdoor.ValidID(id)
}

// strip removes the prefix before the route from a request's path.
func (at target) strip(r *http.Request) *http.Request {
	out := *r
	u := *r.URL
	u.Path = "/" + strings.TrimLeft(strings.TrimPrefix(u.Path, at.cut), "/")
	if u.RawPath != "" {
		raw, ok := strings.CutPrefix(u.RawPath, at.cut)
		raw = "/" + strings.TrimLeft(raw, "/")
		if plain, err := url.PathUnescape(raw); !ok || err != nil || plain != u.Path {
			raw = "" // the prefix itself is escaped
		}
		u.RawPath = raw
	}
	out.URL = &u
	return &out
}

// tokenOf returns the token of a request to the data plane: in its header, or as a
// subprotocol of a WebSocket, which has no headers in browsers.
func tokenOf(r *http.Request) (string, error) {
	tokens := r.Header.Values(headerToken)
	for _, list := range r.Header.Values(headerProto) {
		for proto := range strings.SplitSeq(list, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(proto), protoToken); ok {
				tokens = append(tokens, token)
			}
		}
	}
	if len(tokens) != 1 {
		return "", errToken
	}
	return tokens[0], nil
}
