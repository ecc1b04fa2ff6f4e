package covetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Want is a sandbox as it must be.
type Want struct {
	State sandbox.State
	Name  string
	// Held is what a running one must hold.
	Held Held
}

// World is all sandboxes that a test knows, by their ids, and the children that
// were born meanwhile, whose ids nobody has told.
type World struct {
	Sandboxes map[string]Want
	// Past are those that have ended, of which no more is asked than that.
	Past map[string]bool
	// Born is how many children of Parent there are beside those. Each is as
	// Child says, but for the name, of which there is none.
	Born   int
	Parent string
	Child  Want
}

// Clone returns a copy that can be changed.
func (w World) Clone() World {
	w.Sandboxes, w.Past = maps.Clone(w.Sandboxes), maps.Clone(w.Past)
	return w
}

// everyState is for lists of all sandboxes.
var everyState = []sandbox.State{
	sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed,
}

// All lists the sandboxes in every state, by their ids.
func (d *Daemon) All(ctx context.Context) (map[string]sandbox.Sandbox, error) {
	all := map[string]sandbox.Sandbox{}
	req := sandbox.ListRequest{States: everyState, Page: sandbox.Page{Limit: sandbox.MaxPageSize}}
	for {
		list, err := d.Client.List(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, s := range list.Items {
			all[s.ID] = s
		}
		if list.NextCursor == "" {
			return all, nil
		}
		req.Cursor = list.NextCursor
	}
}

// Settle waits until the daemon's sandboxes are one of the worlds, whole, and
// returns that one with what is now known of it. A sandbox for which mayFail
// is true may have failed instead, and is then not in the result.
//
// It waits less than the minute after which the daemon puts right by itself what
// was left undone.
func (d *Daemon) Settle(ctx context.Context, mayFail func(id string) bool, worlds ...World) (World, error) {
	var why error
	limit := time.Now().Add(50 * time.Second)
	for {
		last := time.Now().After(limit)
		var errs []error
		for i, w := range worlds {
			now, err := d.compare(ctx, w, mayFail)
			if err == nil {
				return now, nil
			}
			errs = append(errs, fmt.Errorf("it is not world %d of %d: %w", i+1, len(worlds), err))
		}
		why = errors.Join(errs...)
		if last || ctx.Err() != nil {
			return World{}, why
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// compare returns a world as it is found, or an error that says how it differs.
func (d *Daemon) compare(ctx context.Context, w World, mayFail func(string) bool) (World, error) {
	all, err := d.All(ctx)
	if err != nil {
		return w, err
	}
	now := World{Sandboxes: map[string]Want{}, Past: map[string]bool{}}
	for id, s := range all {
		if s.State.Final() {
			now.Past[id] = true
		}
	}
	for id := range w.Past {
		if s, ok := all[id]; ok && !s.State.Final() {
			return w, fmt.Errorf("sandbox %s, which had ended, is %s", id, s.State)
		}
	}
	// Those whose state is wrong are found before the work of looking inside.
	for id, want := range w.Sandboxes {
		got, ok := all[id]
		switch {
		case !ok:
			return w, fmt.Errorf("sandbox %s is gone; want it %s", id, want.State)
		case got.State == sandbox.StateFailed && (want.State == sandbox.StateFailed || mayFail(id)):
			if got.Reason == "" {
				return w, fmt.Errorf("sandbox %s has failed without a reason", id)
			}
			continue
		case got.State != want.State:
			return w, fmt.Errorf("sandbox %s is %s (%s); want it %s", id, got.State, got.Reason, want.State)
		case got.Name != want.Name:
			return w, fmt.Errorf("sandbox %s is named %q; want %q", id, got.Name, want.Name)
		}
		if !got.State.Final() {
			now.Sandboxes[id] = want
		}
	}
	born, err := children(all, w, mayFail)
	if err != nil {
		return w, err
	}
	for _, id := range born {
		now.Sandboxes[id] = w.Child
	}
	for id, want := range now.Sandboxes {
		if want.State != sandbox.StateRunning {
			continue
		}
		held, err := d.Look(ctx, id)
		if err != nil {
			return w, fmt.Errorf("look into %s: %w", id, err)
		}
		if !held.Equal(want.Held) {
			return w, fmt.Errorf("sandbox %s holds %+v; want %+v", id, held, want.Held)
		}
	}
	return now, nil
}

// children returns the ids of the living sandboxes that a world has born.
func children(all map[string]sandbox.Sandbox, w World, mayFail func(string) bool) ([]string, error) {
	var living []string
	born := 0
	for id, got := range all {
		if _, known := w.Sandboxes[id]; known || w.Past[id] {
			continue
		}
		switch {
		case !got.State.Final():
			if got.ForkedFrom != w.Parent || got.State != w.Child.State {
				return nil, fmt.Errorf("there is a sandbox %s, %s, forked from %q", id, got.State, got.ForkedFrom)
			}
			living = append(living, id)
			born++
		case got.ForkedFrom == w.Parent && got.StartedAt != nil && mayFail(id):
			born++
		}
	}
	if born != w.Born {
		return nil, fmt.Errorf("%s has %d new children; want %d", w.Parent, born, w.Born)
	}
	return slices.Sorted(slices.Values(living)), nil
}
