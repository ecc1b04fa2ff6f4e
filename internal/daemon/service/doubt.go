package service

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// A connection to the database that breaks at a commit leaves in doubt whether a change was
// stored; see [store.ErrInDoubt]. Whoever has just made an instance or a checkpoint for the
// change must neither remove what the record needs nor leave what it does not.

// errAsItWas ends a change that only reads.
var errAsItWas = errors.New("nothing is to be changed")

// outcome returns the record of a sandbox after a change that is in doubt. It waits for the
// end of that change, but not until the database is back.
func (s *Service) outcome(ctx context.Context, id string) (now store.Record, err error) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	_, err = s.cfg.Store.UpdateSandbox(ctx, id, store.Change{Apply: func(r *store.Record) error {
		now = *r
		return errAsItWas
	}})
	if errors.Is(err, errAsItWas) {
		err = nil
	}
	return now, err
}

// notStored is the error of a change of which it has turned out that it was not stored: it is
// no [store.ErrInDoubt] any more.
func notStored(err error) error {
	e := sandbox.Wrap(sandbox.CodeUnavailable, errors.New(err.Error()), "the server lost the connection to its database while it stored a change, and nothing was changed; try again")
	e.RetryAfter = time.Second
	return e
}

// isIn reports whether a sandbox runs in an instance.
func isIn(r *store.Record, instance string) bool {
	return r.State == sandbox.StateRunning && r.Instance == instance
}

// isPausedIn reports whether a sandbox is paused with a checkpoint of an instance.
func isPausedIn(r *store.Record, instance, checkpoint string) bool {
	return r.State == sandbox.StatePaused && r.Instance == instance && r.Checkpoint == checkpoint
}

// settleContinued ends, once the database is back, one of two instances: that of before, or
// the one in which the sandbox may continue.
func (s *Service) settleContinued(before *store.Record, instance string) {
	r := *before
	s.insist("the outcome of "+instance, func(ctx context.Context) error {
		now, err := s.outcome(ctx, r.ID)
		switch {
		case err == nil && isIn(&now, instance):
			s.dropInstance(&now, r.Instance, errMoved)
			s.endInstance(ctx, &r)
			_, err = s.openRecord(ctx, &now)
		case err == nil, sandbox.CodeOf(err) == sandbox.CodeNotFound:
			s.destroy(ctx, instance)
		}
		return err
	})
}

// settlePaused ends, once the database is back, the instance of a sandbox that is paused. If
// it is not paused, the checkpoint is collected.
func (s *Service) settlePaused(before *store.Record, checkpoint string) {
	r, release := *before, s.use(checkpoint)
	s.insist("the outcome of "+checkpoint, func(ctx context.Context) error {
		now, err := s.outcome(ctx, r.ID)
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return err
		}
		if err == nil && isPausedIn(&now, r.Instance, checkpoint) {
			s.dropPaused(&r)
			s.destroy(ctx, r.Instance)
			s.storing(&now)
		}
		release()
		s.collectSoon()
		return nil
	})
}
