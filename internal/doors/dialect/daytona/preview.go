package daytona

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/preview"
	"github.com/cove-sh/cove/sandbox"
)

// linkSeconds is how long the link is good with which a visitor's token is replaced.
const linkSeconds = 60

// ClaimsHost reports whether a request is for a preview and brings a token of Daytona's.
func (d *Door) ClaimsHost(r *http.Request) bool {
	_, _, ok := d.place(r.Host)
	return ok && (len(r.Header.Values(access.HeaderPreview)) > 0 || r.URL.Query().Has(access.ParamToken))
}

// place parses the host name of a preview, PORT-ID.DOMAIN.
func (d *Door) place(host string) (port int, id string, ok bool) {
	label, below := strings.CutSuffix(sdkdoor.HostName(host), "."+d.domain)
	digits, id, _ := strings.Cut(label, "-")
	port, ok = sdkdoor.Port(digits)
	return port, id, ok && below && strings.HasPrefix(id, "sbx-") && !strings.Contains(id, ".")
}

// servePreview replaces the token of a visitor by a link of Cove's, and passes the request
// to the previews, which refuse it if the token was not good. The program in the
// sandbox does not see the token.
func (d *Door) servePreview(w http.ResponseWriter, r *http.Request) {
	port, id, _ := d.place(r.Host)
	tokens := append(r.Header.Values(access.HeaderPreview), r.URL.Query()[access.ParamToken]...)
	r = r.Clone(r.Context())
	r.Header.Del(access.HeaderPreview)
	r.URL.RawQuery = preview.WithoutParams(r.URL.RawQuery, access.ParamToken)
	r.RequestURI = r.URL.RequestURI()
	if link := d.link(r.Context(), port, id, tokens); link != "" {
		preview.AddLink(r, link)
	}
	d.cfg.Previews.ServeHTTP(w, r)
}

// link signs a link for a visitor with a valid token, and returns the signed part.
func (d *Door) link(ctx context.Context, port int, id string, tokens []string) string {
	if len(tokens) != 1 {
		return ""
	}
	caller, err := d.cfg.Gate.Open(ctx, access.Preview(port), id, tokens[0])
	if err != nil {
		return ""
	}
	made, err := d.cfg.Service.LinkPreview(sandbox.WithCaller(ctx, caller), id, port, sandbox.PreviewLinkRequest{ExpiresInSeconds: linkSeconds})
	if err != nil {
		return ""
	}
	u, err := url.Parse(made.URL)
	if err != nil {
		return ""
	}
	return u.Query().Get(sandbox.PreviewLinkParam)
}
