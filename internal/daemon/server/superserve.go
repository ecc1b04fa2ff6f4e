package server

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	superserve "github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
	"github.com/cove-sh/cove/sandbox"
)

// newSuperserve makes the door for Superserve's clients.
func (s *Server) newSuperserve(p *parts, keys *auth.Keys, bound *perKey, previews http.Handler) *superserve.Door {
	return superserve.New(superserve.Config{
		Service:  p.service,
		Gate:     superserve.NewGate(s.gateOf(p, keys, "superserve")),
		Trusted:  s.trusted,
		Bound:    bound.handler,
		Previews: previews,
		Previewed: func(ctx context.Context, id string, port int) (bool, error) {
			_, err := p.store.Preview(ctx, id, port)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return false, nil
			}
			return err == nil, err
		},
		Domain: s.cfg.Previews.Domain,
		Refuse: hurry,
		Log:    s.log,
	})
}
