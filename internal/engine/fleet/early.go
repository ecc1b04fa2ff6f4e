package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

var _ engine.EarlyImporter = (*Fleet)(nil)

// unfinishedTimeout bounds the wait for a node to say which imports are to be finished.
const unfinishedTimeout = 20 * time.Second

// earlyUse is the wish to use a checkpoint before it is complete.
type earlyUse struct {
	call func(engine.Checkpoint) // or nil
	used bool
}

func newEarly(usable func(engine.Checkpoint)) *earlyUse { return &earlyUse{call: usable} }

// canBeEarly reports whether checkpoints can be used on a machine before they are complete.
func (f *Fleet) canBeEarly(s *site) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s == f.local || s.report.Early
}

// importEarly makes a checkpoint on a machine, and records it when it is usable.
func (f *Fleet) importEarly(ctx context.Context, e engine.EarlyImporter, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable *earlyUse, record func(engine.Checkpoint) (engine.Checkpoint, error)) (engine.Checkpoint, error) {
	var unrecorded error
	made, err := e.ImportEarly(ctx, c, description, fetch, func(made engine.Checkpoint) {
		if c, unrecorded = record(made); unrecorded == nil {
			usable.used = true
			usable.call(c)
		}
	})
	switch {
	case err != nil || unrecorded != nil:
		return c, errors.Join(unrecorded, err)
	case usable.used:
		return c, nil
	}
	return record(made)
}

// ImportEarly implements [engine.EarlyImporter].
func (f *Fleet) ImportEarly(ctx context.Context, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	return f.ImportFor(ctx, nil, c, description, fetch, usable)
}

// Unfinished implements [engine.EarlyImporter]. With an error, the list lacks those of nodes
// that are away and may still have instances.
func (f *Fleet) Unfinished(ctx context.Context) (ids []string, err error) {
	places, away := f.earlyPlaces()
	if away != "" {
		err = errAwayNow(away)
	}
	for s, e := range places {
		some, perr := f.unfinishedOf(ctx, s, e)
		ids, err = append(ids, some...), errors.Join(err, perr)
	}
	return ids, err
}

func errAwayNow(node string) error {
	return sandbox.Errorf(sandbox.CodeUnavailable, "node %s is away", node)
}

// unfinishedOf returns what is unfinished on a machine. A node is believed only what it may
// need: it has an instance that continues from that checkpoint.
func (f *Fleet) unfinishedOf(ctx context.Context, s *site, e engine.EarlyImporter) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, unfinishedTimeout)
	defer cancel()
	ids, err := e.Unfinished(ctx)
	if s == f.local {
		return ids, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(ids, func(id string) bool { return !s.continuesFrom(id) }), err
}

// continuesFrom reports whether an instance of a node may continue from a checkpoint. The
// caller holds Fleet.mu.
func (s *site) continuesFrom(checkpoint string) bool {
	for _, i := range s.instances {
		adopted := i.Root.Digest == "" // an earlier server has made it
		if !i.GivenUp && (i.From == checkpoint || adopted && validID.MatchString(checkpoint)) {
			return true
		}
	}
	return false
}

// FinishImport implements [engine.EarlyImporter].
func (f *Fleet) FinishImport(ctx context.Context, id string, fetch engine.Fetch) error {
	places, away := f.earlyPlaces()
	var unknown error
	if away != "" {
		unknown = errAwayNow(away)
	}
	for s, e := range places {
		ids, err := f.unfinishedOf(ctx, s, e)
		if err == nil && slices.Contains(ids, id) {
			return e.FinishImport(ctx, id, fetch)
		}
		unknown = errors.Join(unknown, err)
	}
	return cmp.Or(unknown, engine.ErrNotFound)
}

// earlyPlaces returns the machines where checkpoints can be used before they are complete, and
// a node that is away and may still have instances.
func (f *Fleet) earlyPlaces() (places map[*site]engine.EarlyImporter, away string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	places = map[*site]engine.EarlyImporter{}
	if f.local != nil {
		if e, ok := f.local.local.(engine.EarlyImporter); ok {
			places[f.local] = e
		}
	}
	for _, s := range f.sites {
		switch {
		case s.remote != nil && s.report.Early:
			places[s] = s.remote
		case s.remote == nil && !s.lost:
			away = s.name
		}
	}
	return places, away
}
