package preview

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// place is where a host name leads.
type place struct {
	// label is PORT-SANDBOX in its one spelling.
	label   string
	port    int
	sandbox string
}

// Claims reports whether a request is for previews and for nothing else: its
// host name is below their domain, however it is spelt, right or wrong. Such a
// request must not reach another handler.
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

// Exists reports whether a host name is that of a preview, whoever may open it.
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

// bareHost takes port and final dots from a host, and the case. What is no
// host name comes out as something that is none either.
func bareHost(host string) string {
	if i := strings.IndexByte(host, ':'); i >= 0 && !strings.HasPrefix(host, "[") {
		host = host[:i]
	}
	return strings.TrimRight(strings.ToLower(host), ".")
}

// place returns where a Host header leads. It takes one spelling only, but for
// case: no final dot, no user, a port that is a number.
func (p *Proxy) place(host string) (place, bool) {
	name, port, hasPort := strings.Cut(host, ":")
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
			return place{}, false
		}
	}
	label, below := strings.CutSuffix(strings.ToLower(name), "."+p.domain)
	if !below {
		return place{}, false
	}
	return parseLabel(label)
}

const maxLabel = 63

// parseLabel takes PORT-SANDBOX apart, in lower case.
func parseLabel(label string) (place, bool) {
	digits, id, ok := strings.Cut(label, "-")
	if !ok || id == "" || len(label) > maxLabel {
		return place{}, false
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != digits {
		return place{}, false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return place{}, false
		}
	}
	if random, ok := strings.CutPrefix(id, idPrefix); ok && len(random) == idRandom && !strings.Contains(random, "-") {
		id = idPrefix + "-" + random
	}
	return place{label: digits + "-" + id, port: int(port), sandbox: id}, true
}

// Other products' clients write ids of sandboxes without the dash.
const (
	idPrefix = "sbx"
	idRandom = 26
)

// validationPaths are where authorities look for proof that a host name is the
// asker's: RFC 8555 and the CA/Browser Forum's method 18.
var validationPaths = []string{"/.well-known/acme-challenge/", "/.well-known/pki-validation/"}

// validates reports whether a request may be that of an authority: what a
// sandbox answered could get it a certificate for a name of the operator's.
func validates(r *http.Request) bool {
	return slices.ContainsFunc(validationPaths, func(p string) bool { return strings.HasPrefix(r.URL.Path, p) })
}

// noProof is the answer to such requests.
var noProof = problem{status: http.StatusNotFound, code: "not_found", title: "Not here", detail: "Programs in sandboxes do not answer authorities that validate a name: names and certificates of previews are the server's."}
