package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
)

// newDaytona makes the door for Daytona's clients.
func (s *Server) newDaytona(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) *daytona.Door {
	return daytona.New(daytona.Config{
		Service:  p.service,
		Gate:     access.NewGate(gate.Config{Keys: s.keysOrDev(keys), Sandboxes: records{p.store}, Secret: derive(p.linkKey, "cove daytona tokens")}),
		Trusted:  func(r *http.Request) bool { return s.cfg.Dev || auth.ViaUnixSocket(r) },
		Bound:    bound.handler,
		Previews: previews,
		Refuse:   hurry,
		Domain:   s.cfg.Previews.Domain,
		Base:     func() string { return s.cfg.UploadURL(daytona.Prefix, int(s.port.Load())) },
		Log:      s.log,
	})
}
