package e2b

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

// The headers by which a client names the sandbox when all share one address.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
)

// A refusal is the error of the gateway for a request that names no sandbox, in the
// product's words.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	errHost    refusal = "Invalid host"
	errSandbox refusal = "Invalid sandbox ID"
	errPort    refusal = "Invalid sandbox port"
)

// target is what a request is for: the control plane if no field is set.
type target struct {
	sandbox string // Cove's id
	port    int
	// bySignature marks a link to a file that identifies the sandbox only by its
	// signature.
	bySignature bool
	prefixed    bool // the path begins with [Prefix]
}

// ClaimsHost reports whether a request is for this door by its host name:
// api.DOMAIN, sandbox.DOMAIN, and PORT-ID.DOMAIN with an id as E2B's clients have it.
// Such a request must not reach another handler.
func (d *Door) ClaimsHost(r *http.Request) bool {
	label, ok := d.label(r.Host)
	if !ok {
		return false
	}
	if label == "api" || label == "sandbox" {
		return true
	}
	_, _, err := parseLabel(label)
	return err == nil
}

// Claims reports whether a request is for this door by its path, or by the
// headers that name a sandbox.
func (d *Door) Claims(r *http.Request) bool {
	return hasPrefix(r) || named(r.Header) || isLink(r)
}

// ForControl reports whether a request is for the control plane.
func (d *Door) ForControl(r *http.Request) bool {
	at, err := d.find(r)
	return err == nil && at.sandbox == "" && !at.bySignature
}

// label returns the host name without the domain, in lower case.
func (d *Door) label(host string) (string, bool) {
	name := sdkdoor.HostName(host)
	if d.others[name] {
		return "", false
	}
	return strings.CutSuffix(name, "."+d.domain)
}

func named(h http.Header) bool {
	return len(h.Values(headerSandbox)) > 0 || len(h.Values(headerPort)) > 0
}

func hasPrefix(r *http.Request) bool {
	return r.URL.Path == Prefix || strings.HasPrefix(r.URL.Path, Prefix+"/")
}

// isLink reports whether a request is for a signed link, which names no sandbox and has
// no path prefix: clients drop the prefix.
func isLink(r *http.Request) bool {
	return r.URL.Path == "/files" && r.URL.Query().Has(access.ParamSignature)
}

// find returns the target of a request. Host name and headers must agree, and the two
// headers are valid only together.
func (d *Door) find(r *http.Request) (target, error) {
	label, below := d.label(r.Host)
	at := target{prefixed: !below && hasPrefix(r)}
	if below && label != "sandbox" {
		if label == "api" {
			if named(r.Header) {
				return at, errHost
			}
			return at, nil
		}
		var err error
		if at.sandbox, at.port, err = parseLabel(label); err != nil {
			return at, err
		}
		if !named(r.Header) {
			return at, nil
		}
		id, port, err := parseHeaders(r.Header)
		switch {
		case err != nil:
			return at, err
		case id != at.sandbox:
			return at, errSandbox
		case port != at.port:
			return at, errPort
		}
		return at, nil
	}
	if named(r.Header) {
		var err error
		at.sandbox, at.port, err = parseHeaders(r.Header)
		return at, err
	}
	if below {
		return at, errHost // sandbox.DOMAIN without headers
	}
	at.bySignature = isLink(r)
	return at, nil
}

// parseLabel parses PORT-ID.
func parseLabel(label string) (id string, port int, err error) {
	digits, name, ok := strings.Cut(label, "-")
	if !ok {
		return "", 0, errHost
	}
	return parse(name, digits)
}

func parseHeaders(h http.Header) (id string, port int, err error) {
	names, ports := h.Values(headerSandbox), h.Values(headerPort)
	switch {
	case len(names) != 1:
		return "", 0, errSandbox
	case len(ports) != 1:
		return "", 0, errPort
	}
	return parse(names[0], ports[0])
}

func parse(name, digits string) (id string, port int, err error) {
	id, ok := access.FromE2B(name)
	if !ok || strings.Contains(name, "-") {
		return "", 0, errSandbox
	}
	port, ok = sdkdoor.Port(digits)
	if !ok {
		return "", 0, errPort
	}
	return id, port, nil
}

// strip takes the prefix from the path of a request.
func (at target) strip(r *http.Request) *http.Request {
	if !at.prefixed {
		return r
	}
	u := *r.URL
	u.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(u.Path, Prefix), "/")
	if u.RawPath != "" {
		raw := strings.TrimPrefix(u.RawPath, Prefix)
		if p, err := url.PathUnescape(raw); err != nil || p != u.Path {
			raw = "" // the prefix itself is escaped
		}
		u.RawPath = raw
	}
	out := *r
	out.URL = &u
	return &out
}
