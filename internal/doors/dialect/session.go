package dialect

import (
	"context"
	"slices"
	"sync"
)

// Session keeps what a product's session model requires between the calls of one MCP
// session, such as "the sandbox of this session". It is safe for concurrent use.
type Session struct {
	mu     sync.Mutex
	values map[any]any             // guarded by mu
	ends   []func(context.Context) // guarded by mu
	ended  bool                    // guarded by mu
}

// NewSession returns an empty session.
func NewSession() *Session { return &Session{values: make(map[any]any)} }

// Value returns the value under key, and first makes it with create if there is none.
// The key must have a type that only its owner uses. Create can return a function to
// call when the session ends, which must not use the session.
func (s *Session) Value(key any, create func() (value any, end func(context.Context), err error)) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, context.Canceled
	}
	if v, ok := s.values[key]; ok {
		return v, nil
	}
	v, end, err := create()
	if err != nil {
		return nil, err
	}
	s.values[key] = v
	if end != nil {
		s.ends = append(s.ends, end)
	}
	return v, nil
}

// End ends the session and calls the functions that create has returned, last first. It
// can be repeated.
func (s *Session) End(ctx context.Context) {
	s.mu.Lock()
	ends := s.ends
	s.ends, s.ended = nil, true
	s.mu.Unlock()
	for _, end := range slices.Backward(ends) {
		end(ctx)
	}
}
