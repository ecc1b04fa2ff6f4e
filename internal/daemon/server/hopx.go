package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx/door"
)

// newHOPX makes the door for HOPX's clients.
func (s *Server) newHOPX(p *parts, keys *auth.Keys, bound *perKey) *door.Door {
	return door.New(door.Config{
		Service: p.service,
		Gate:    door.NewGate(gate.Config{Keys: s.keysOrDev(keys), Sandboxes: records{p.store}, Secret: derive(p.linkKey, "cove hopx tokens")}),
		Trusted: func(r *http.Request) bool { return s.cfg.Dev || auth.ViaUnixSocket(r) },
		Bound:   bound.handler,
		Refuse:  hurry,
		Domain:  s.cfg.Previews.Domain,
		Names:   s.cfg.AllowedHosts,
		Address: func() (domain, base string) { return s.sdkAddress(door.Prefix) },
		Log:     s.log,
	})
}
