package podflare

import (
	"context"
	"errors"
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// session holds the resources of one MCP session: its sandbox, which the first call makes,
// and the forks made in the session. All are killed when the session ends.
type session struct {
	svc sandbox.Service

	mu    sync.Mutex
	id    string          // guarded by mu; empty until the sandbox is made
	ended bool            // guarded by mu
	forks map[string]bool // guarded by mu
}

type sessionKey struct{}

// sessionOf returns the session of a call, or nil if there are no sessions.
func sessionOf(c *dialect.Call) (*session, error) {
	s := c.Session()
	if s == nil {
		return nil, nil
	}
	v, err := s.Value(sessionKey{}, func() (any, func(context.Context), error) {
		own := &session{svc: c.Service, forks: make(map[string]bool)}
		return own, own.end, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*session), nil
}

// sandbox returns the session's sandbox. The first call makes it.
func (s *session) sandbox(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return "", context.Canceled
	case s.id != "":
		return s.id, nil
	}
	sbx, err := s.svc.Create(ctx, request("session", "podflare"))
	if err != nil {
		return "", err
	}
	s.id = sbx.ID
	return s.id, nil
}

// forked records forks that end with the session.
func (s *session) forked(ctx context.Context, ids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.forks[id] = true
	}
	if !s.ended {
		return nil
	}
	return errors.Join(context.Canceled, s.killLocked(context.WithoutCancel(ctx)))
}

// merged records that a sandbox was merged into its parent, so that its own id is gone. If
// it was the session's own, the session continues with the parent.
func (s *session) merged(winner, parent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.forks, winner)
	if s.id == winner {
		s.id = parent
		delete(s.forks, parent)
	}
}

// lost records that a sandbox has ended by itself, such as by its lifetime, and reports
// whether it was the session's own: the next call then gets a new one.
func (s *session) lost(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.forks, id)
	if s.id != id {
		return false
	}
	s.id = ""
	return true
}

// end kills all sandboxes that the session has made.
func (s *session) end(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	_ = s.killLocked(ctx) // if the server is unreachable, their lifetime ends them
}

// killLocked kills what is left, the forks first.
//
// Preconditions: s.mu is held.
func (s *session) killLocked(ctx context.Context) error {
	var errs []error
	for id := range s.forks {
		_, err := s.svc.Kill(ctx, id)
		errs = append(errs, err)
	}
	clear(s.forks)
	if s.id != "" {
		_, err := s.svc.Kill(ctx, s.id)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// request returns a request for a sandbox like the product's: root works in /root.
func request(tag, value string) sandbox.CreateRequest {
	return sandbox.CreateRequest{User: "root", WorkDir: "/root", Metadata: map[string]string{tag: value}}
}
