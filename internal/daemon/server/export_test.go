package server

import (
	"time"

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

// NewFenced is [New] with another time without its database after which the server stops.
func NewFenced(cfg config.Config, deps Deps, fence time.Duration) *Server {
	s := New(cfg, deps)
	s.fence = fence
	return s
}
