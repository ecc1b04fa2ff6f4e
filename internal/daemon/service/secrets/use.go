package secrets

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// UseLag is how much later than its time an event may appear in the network log.
const UseLag = 10 * time.Second

// NoteUse records when secrets were last used, according to the network logs of running
// sandboxes since its previous run. The janitor calls it at intervals, so a use just
// before the end of a sandbox may be missed.
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
	// Only the newest page: the rest could add only a secret that was last used long
	// before the others.
	events, _, err := s.cfg.NetworkLog.NetworkLog(ctx, r.ID, sandbox.NetworkLogRequest{
		Kind: sandbox.NetworkRequest, Verdict: sandbox.NetworkAllowed, Since: &since, Page: sandbox.Page{Limit: sandbox.MaxPageSize},
	})
	if err != nil {
		return err
	}
	for _, ev := range events {
		// An event with a reason means that the placeholder was not replaced.
		if id := ids[ev.Secret]; id != "" && ev.Reason == "" && ev.Time.After(used[id]) {
			used[id] = ev.Time
		}
	}
	return nil
}
