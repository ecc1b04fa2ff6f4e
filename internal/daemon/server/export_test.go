package server

import (
	"github.com/cove-sh/cove/internal/daemon/config"
)

// Bounds are what clients may do.
type Bounds = bounds

// DefaultBounds are those of servers that [New] makes.
var DefaultBounds = defaultBounds

// NewBounded is [New] with other bounds.
func NewBounded(cfg config.Config, deps Deps, b Bounds) *Server {
	s := New(cfg, deps)
	s.bounds = b
	return s
}
