package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
)

// newDaytona makes the door for Daytona's clients.
func (s *Server) newDaytona(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) *daytona.Door {
	return daytona.New(daytona.Config{
		Service:  p.service,
		Gate:     access.NewGate(s.gateOf(p, keys, "daytona")),
		Trusted:  s.trusted,
		Bound:    bound.handler,
		Previews: previews,
		Refuse:   hurry,
		Domain:   s.cfg.Previews.Domain,
		Base:     func() string { return s.cfg.UploadURL(daytona.Prefix, int(s.port.Load())) },
		Log:      s.log,
	})
}
