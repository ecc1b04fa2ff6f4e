package preview

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// place is the target of a host name.
type place struct {
	// label is PORT-SANDBOX in canonical form.
	label   string
	port    int
	sandbox string
}

// Claims reports whether a request is for a preview: its host name, valid or not, is below
// the domain of previews. Such a request must not reach another handler.
func (p *Proxy) Claims(r *http.Request) bool {
	name := bareHost(r.Host)
	sub, below := strings.CutSuffix(name, "."+p.domain)
	if !below {
		return false
	}
	if _, ok := parseLabel(sub); ok {
		return true
	}
	return !p.others[name]
}

// Exists reports whether a host name is that of a preview or live view, regardless of who
// may open it.
func (p *Proxy) Exists(ctx context.Context, host string) bool {
	if id, ok := p.viewOf(host); ok {
		return p.views != nil && p.views.HasView(ctx, id)
	}
	at, ok := p.place(host)
	if !ok {
		return false
	}
	_, err := p.previews.VisitPreview(ctx, sandbox.PreviewVisit{Label: at.label})
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeForbidden, sandbox.CodeNotRunning:
		return true
	}
	return false
}

// bareHost returns a host in lower case without its port and final dots. The result for
// an invalid host is invalid, too.
func bareHost(host string) string {
	if i := strings.IndexByte(host, ':'); i >= 0 && !strings.HasPrefix(host, "[") {
		host = host[:i]
	}
	return strings.TrimRight(strings.ToLower(host), ".")
}

// place returns the target of a Host header.
func (p *Proxy) place(host string) (place, bool) {
	label, ok := p.label(host)
	if !ok {
		return place{}, false
	}
	return parseLabel(label)
}

// label returns the part of a Host header before the domain, in lower case. It accepts only
// one form: no final dot, no user, and a canonical port, if any.
func (p *Proxy) label(host string) (string, bool) {
	name, port, hasPort := strings.Cut(host, ":")
	if hasPort {
		if _, ok := parsePort(port); !ok {
			return "", false
		}
	}
	return strings.CutSuffix(strings.ToLower(name), "."+p.domain)
}

// parsePort parses a port in canonical form.
func parsePort(digits string) (uint64, bool) {
	n, err := strconv.ParseUint(digits, 10, 16)
	return n, err == nil && strconv.FormatUint(n, 10) == digits
}

const (
	maxLabel = 63
	idChars  = "abcdefghijklmnopqrstuvwxyz0123456789-"
)

// parseLabel parses PORT-SANDBOX, in lower case.
func parseLabel(label string) (place, bool) {
	digits, id, _ := strings.Cut(label, "-")
	port, ok := parsePort(digits)
	if !ok || port == 0 || id == "" || len(label) > maxLabel || strings.Trim(id, idChars) != "" {
		return place{}, false
	}
	if random, ok := strings.CutPrefix(id, idPrefix); ok && len(random) == idRandom && !strings.Contains(random, "-") {
		id = idPrefix + "-" + random
	}
	return place{label: digits + "-" + id, port: int(port), sandbox: id}, true
}

// Clients of other products write sandbox ids without the dash.
const (
	idPrefix = "sbx"
	idRandom = 26
)

// validationPaths are the paths at which certificate authorities validate control of a
// host name: RFC 8555 and the CA/Browser Forum's method 18.
var validationPaths = []string{"/.well-known/acme-challenge/", "/.well-known/pki-validation/"}

// validates reports whether a request may come from a certificate authority. With a
// suitable response a sandbox could get a certificate for the operator's host name.
func validates(r *http.Request) bool {
	return slices.ContainsFunc(validationPaths, func(p string) bool { return strings.HasPrefix(r.URL.Path, p) })
}

// noProof is the response to such requests.
var noProof = problem{status: http.StatusNotFound, code: "not_found", title: "Not here", detail: "Programs in sandboxes do not answer authorities that validate a name: names and certificates of previews are the server's."}
