package secrets

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// UseLag is how much later than its time an event may be in the network log.
const UseLag = 10 * time.Second

// NoteUse records when secrets were last used, by what the network logs of
// running sandboxes say since it did so before. The janitor calls it now and
// then, so a use just before the end of a sandbox may go unnoticed.
func (s *Secrets) NoteUse(ctx context.Context) error {
	if s.cfg.NetworkLog == nil {
		return nil
	}
	now := time.Now()
	s.mu.Lock()
	since := s.usedUntil.Add(-UseLag)
	s.mu.Unlock()
	used := map[string]time.Time{} // by the id of the secret
	for r, err := range store.All(ctx, s.cfg.Store.ListSandboxes, store.SandboxFilter{States: []sandbox.State{sandbox.StateRunning}}) {
		if err != nil {
			return err
		}
		if err := s.usesOf(ctx, &r, since, used); err != nil {
			return fmt.Errorf("read what secrets sandbox %s has used: %w", r.ID, err)
		}
	}
	for id, at := range used {
		if err := s.cfg.Store.TouchSecret(ctx, id, at); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usedUntil = now
	return nil
}

// usesOf adds when a sandbox has last used each of its secrets.
func (s *Secrets) usesOf(ctx context.Context, r *store.Record, since time.Time, used map[string]time.Time) error {
	if len(r.Bindings) == 0 {
		return nil
	}
	ids := map[string]string{}
	for _, b := range r.Bindings {
		ids[b.Secret] = b.SecretID
	}
	// One page, the newest: of more only a secret would be missed that was used
	// long before the others.
	events, _, err := s.cfg.NetworkLog.NetworkLog(ctx, r.ID, sandbox.NetworkLogRequest{
		Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Since: &since, Page: sandbox.Page{Limit: sandbox.MaxPageSize},
	})
	if err != nil {
		return err
	}
	for _, ev := range events {
		// One with a reason was sent with the placeholder as it is.
		if id := ids[ev.Secret]; id != "" && ev.Reason == "" && ev.Time.After(used[id]) {
			used[id] = ev.Time
		}
	}
	return nil
}
