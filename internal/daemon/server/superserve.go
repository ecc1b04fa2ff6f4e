package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	superserve "github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
)

// newSuperserve makes the door for Superserve's clients.
func (s *Server) newSuperserve(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) *superserve.Door {
	return superserve.New(superserve.Config{
		Service:  p.service,
		Gate:     superserve.NewGate(s.gateOf(p, keys, "superserve")),
		Trusted:  s.trusted,
		Bound:    bound.handler,
		Previews: previews,
		Domain:   s.cfg.Previews.Domain,
		Refuse:   hurry,
		Log:      s.log,
	})
}
