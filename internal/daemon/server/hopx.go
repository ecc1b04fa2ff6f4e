package server

import (
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx/door"
)

// withUploads is a door by whose host name archives come too.
type withUploads struct {
	sdkDoor
	served http.Handler
}

func (d withUploads) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.served.ServeHTTP(w, r) }

// newHOPX makes the door for HOPX's clients.
func (s *Server) newHOPX(p *parts, keys *auth.Keys, bound *perKey) sdkDoor {
	d := door.New(door.Config{
		Service: p.service,
		Gate:    door.NewGate(s.gateOf(p, keys, "hopx")),
		Trusted: s.trusted,
		Bound:   bound.handler,
		Refuse:  hurry,
		Domain:  s.cfg.Previews.Domain,
		Names:   s.cfg.AllowedHosts,
		Address: func() (domain, base string) { return s.sdkAddress(door.Prefix) },
		Log:     s.log,
	})
	return withUploads{d, s.uploads(p.service, d)}
}
