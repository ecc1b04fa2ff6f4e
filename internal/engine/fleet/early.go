package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
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
		err = fmt.Errorf("node %s is away", away)
	}
	for _, e := range places {
		some, perr := unfinishedOf(ctx, e)
		ids, err = append(ids, some...), errors.Join(err, perr)
	}
	return ids, err
}

func unfinishedOf(ctx context.Context, e engine.EarlyImporter) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, unfinishedTimeout)
	defer cancel()
	return e.Unfinished(ctx)
}

// FinishImport implements [engine.EarlyImporter].
func (f *Fleet) FinishImport(ctx context.Context, id string, fetch engine.Fetch) error {
	places, _ := f.earlyPlaces()
	for _, e := range places {
		if ids, err := unfinishedOf(ctx, e); err == nil && slices.Contains(ids, id) {
			return e.FinishImport(ctx, id, fetch)
		}
	}
	return engine.ErrNotFound
}

// earlyPlaces returns the machines where checkpoints can be used before they are complete, and
// a node that is away and may still have instances.
func (f *Fleet) earlyPlaces() (places []engine.EarlyImporter, away string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.local != nil {
		if e, ok := f.local.local.(engine.EarlyImporter); ok {
			places = append(places, e)
		}
	}
	for _, s := range f.sites {
		switch {
		case s.remote != nil && s.report.Early:
			places = append(places, s.remote)
		case s.remote == nil && !s.lost:
			away = s.name
		}
	}
	return places, away
}
