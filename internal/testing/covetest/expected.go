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

// Want is the expected state of a sandbox.
type Want struct {
	State sandbox.State
	Name  string
	// Held is what the sandbox must hold if it runs.
	Held Held
}

// Expected is the expected state of a daemon's sandboxes: those that the test knows,
// by id, and forked children whose ids the test has not learned.
type Expected struct {
	Sandboxes map[string]Want
	// Past are the sandboxes that must have ended.
	Past map[string]bool
	// Born is how many further children Parent has. Each is as Child says, but has
	// no name.
	Born   int
	Parent string
	Child  Want
}

// Clone returns a copy that can be changed.
func (w Expected) Clone() Expected {
	w.Sandboxes, w.Past = maps.Clone(w.Sandboxes), maps.Clone(w.Past)
	return w
}

// everyState lists sandboxes in all states.
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

// Settle waits until the daemon's sandboxes are as one of the expected states says,
// and returns that state with the ids of all sandboxes. A sandbox for which mayFail
// reports true may have failed instead, and is then not in the result.
//
// Settle waits less than the minute after which the daemon's janitor repairs what was
// left undone.
func (d *Daemon) Settle(ctx context.Context, mayFail func(id string) bool, expected ...Expected) (Expected, error) {
	var why error
	limit := time.Now().Add(50 * time.Second)
	for {
		last := time.Now().After(limit)
		var errs []error
		for i, w := range expected {
			now, err := d.compare(ctx, w, mayFail)
			if err == nil {
				return now, nil
			}
			errs = append(errs, fmt.Errorf("it is not expected state %d of %d: %w", i+1, len(expected), err))
		}
		why = errors.Join(errs...)
		if last || ctx.Err() != nil {
			return Expected{}, why
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// compare returns the state as it is found, or an error that says how it differs from w.
func (d *Daemon) compare(ctx context.Context, w Expected, mayFail func(string) bool) (Expected, error) {
	all, err := d.All(ctx)
	if err != nil {
		return w, err
	}
	now := Expected{Sandboxes: map[string]Want{}, Past: map[string]bool{}}
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
	// States are compared before the slower look into the sandboxes.
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

// children returns the ids of the living children that w counts in Born.
func children(all map[string]sandbox.Sandbox, w Expected, mayFail func(string) bool) ([]string, error) {
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
