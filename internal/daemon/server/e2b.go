package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
)

// newE2B makes the door for E2B's clients.
func (s *Server) newE2B(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) sdkDoor {
	d := e2b.New(e2b.Config{
		Service:  p.service,
		Gate:     access.NewGate(s.gateOf(p, keys, "e2b")),
		Trusted:  s.trusted,
		Bound:    bound.handler,
		Previews: previews,
		Refuse:   hurry,
		Domain:   s.cfg.Previews.Domain,
		Others:   s.cfg.AllowedHosts,
		Address:  func() (domain, base string) { return s.sdkAddress(e2b.Prefix) },
		Log:      s.log,
	})
	uploads := s.uploads(p.service, d)
	return withUploads{d, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.ForControl(r) {
			uploads.ServeHTTP(w, r)
			return
		}
		d.ServeHTTP(w, r) // a program in a sandbox has paths of its own
	})}
}
