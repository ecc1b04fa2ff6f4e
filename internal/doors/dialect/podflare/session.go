package podflare

import (
	"context"
	"errors"
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// box is what one MCP session has: its sandbox, which the first call makes, and
// the forks that were made in it. All end with the session.
type box struct {
	svc sandbox.Service

	mu    sync.Mutex
	id    string          // guarded by mu; empty until it is made
	ended bool            // guarded by mu
	forks map[string]bool // guarded by mu
}

type boxKey struct{}

// boxOf returns the box of a call's session, or nil where there are no sessions.
func boxOf(c *dialect.Call) (*box, error) {
	s := c.Session()
	if s == nil {
		return nil, nil
	}
	v, err := s.Value(boxKey{}, func() (any, func(context.Context), error) {
		b := &box{svc: c.Service, forks: make(map[string]bool)}
		return b, b.end, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*box), nil
}

// sandbox returns the session's sandbox, and makes it for the first call.
func (b *box) sandbox(ctx context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return "", context.Canceled
	case b.id != "":
		return b.id, nil
	}
	sbx, err := b.svc.Create(ctx, request(map[string]string{"session": "podflare"}))
	if err != nil {
		return "", err
	}
	b.id = sbx.ID
	return b.id, nil
}

// forked notes forks that end with the session.
func (b *box) forked(ctx context.Context, ids []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		b.forks[id] = true
	}
	if !b.ended {
		return nil
	}
	return errors.Join(context.Canceled, b.killLocked(context.WithoutCancel(ctx)))
}

// merged notes that a sandbox has become another's state: its own id is gone.
// If that was the session's own, the session goes on with the other.
func (b *box) merged(winner, parent string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.forks, winner)
	if b.id == winner {
		b.id = parent
		delete(b.forks, parent)
	}
}

// lost notes that the session's own sandbox has ended by itself, as its lifetime
// may do to it: the next call gets a new one. It reports whether it was that one.
func (b *box) lost(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.forks, id)
	if b.id != id {
		return false
	}
	b.id = ""
	return true
}

// end destroys all that the session has made.
func (b *box) end(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	_ = b.killLocked(ctx) // a server that is away ends them by their lifetime
}

// killLocked kills what is left, the forks first.
//
// Preconditions: b.mu is held.
func (b *box) killLocked(ctx context.Context) error {
	var errs []error
	for id := range b.forks {
		_, err := b.svc.Kill(ctx, id)
		errs = append(errs, err)
	}
	clear(b.forks)
	if b.id != "" {
		_, err := b.svc.Kill(ctx, b.id)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// request describes a sandbox as the product's are: root works in /root.
func request(metadata map[string]string) sandbox.CreateRequest {
	return sandbox.CreateRequest{User: "root", WorkDir: home, Metadata: metadata}
}

const home = "/root"
