package server

import (
	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud"
)

// newMicrosandbox makes the door for microsandbox's clients in their cloud mode.
func (s *Server) newMicrosandbox(p *parts, keys *auth.Keys, bound *perKey) *cloud.Door {
	return cloud.New(cloud.Config{
		Service: p.service,
		Gate:    cloud.NewGate(s.gateOf(p, keys, "microsandbox")),
		Trusted: s.trusted,
		Bound:   bound.handler,
		Refuse:  hurry,
		Log:     s.log,
	})
}
