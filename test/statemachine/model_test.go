package statemachine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// model is the expected state.
type model struct {
	sandboxes covetest.Expected
	snaps     map[string]kept // snapshots by name
	// records are the other things that must persist.
	records map[record]bool
	// forks holds each fork's parent and the parent's files at the time.
	forks map[string]fork
	// order numbers the sandboxes, so that a seed always takes the same walk.
	order []string
}

type kept struct {
	kind sandbox.SnapshotKind
	held covetest.Held
}

type fork struct {
	parent string
	base   map[string]string
}

func newModel() model {
	return model{
		sandboxes: covetest.Expected{Sandboxes: map[string]covetest.Want{}, Past: map[string]bool{}},
		snaps:     map[string]kept{}, records: map[record]bool{}, forks: map[string]fork{},
	}
}

func (m model) clone() model {
	m.sandboxes, m.snaps, m.records, m.forks, m.order = m.sandboxes.Clone(), maps.Clone(m.snaps), maps.Clone(m.records), maps.Clone(m.forks), slices.Clone(m.order)
	return m
}

// living returns the ids of the sandboxes in one of these states.
func (m *model) living(states ...sandbox.State) []string {
	var ids []string
	for _, id := range m.order {
		if w, ok := m.sandboxes.Sandboxes[id]; ok && slices.Contains(states, w.State) {
			ids = append(ids, id)
		}
	}
	return ids
}

// awake returns the models in which some of these sandboxes, if paused, were resumed for a
// call that then did nothing.
func (m model) awake(ids ...string) []model {
	all := []model{m}
	for _, id := range ids {
		if m.sandboxes.Sandboxes[id].State != sandbox.StatePaused {
			continue
		}
		for _, one := range slices.Clone(all) {
			one = one.clone()
			one.set(id, func(w *covetest.Want) { w.State = sandbox.StateRunning })
			all = append(all, one)
		}
	}
	return all
}

// unpowered returns the model after a loss of power: sandboxes that were not paused have
// ended.
func (m model) unpowered() model {
	m = m.clone()
	m.sandboxes.Born, m.sandboxes.Parent = 0, ""
	for id, want := range maps.Clone(m.sandboxes.Sandboxes) {
		if want.State != sandbox.StatePaused {
			delete(m.sandboxes.Sandboxes, id)
			m.sandboxes.Past[id] = true
		}
	}
	return m
}

// set changes the expected state of a sandbox.
func (m *model) set(id string, change func(*covetest.Want)) {
	w := m.sandboxes.Sandboxes[id]
	change(&w)
	m.sandboxes.Sandboxes[id] = w
}

// put records a file; an empty digest removes it.
func (m *model) put(id, name, digest string) {
	m.set(id, func(w *covetest.Want) {
		w.State = sandbox.StateRunning
		w.Held.Files = maps.Clone(w.Held.Files)
		if digest == "" {
			delete(w.Held.Files, name)
		} else {
			w.Held.Files[name] = digest
		}
	})
}

// adopt numbers new sandboxes, and records the parents of the forks among them.
func (m *model) adopt(now, before covetest.Expected, parent string) {
	for _, id := range slices.Sorted(maps.Keys(now.Sandboxes)) {
		if slices.Contains(m.order, id) {
			continue
		}
		m.order = append(m.order, id)
		if parent != "" {
			m.forks[id] = fork{parent: parent, base: before.Sandboxes[parent].Held.Files}
		}
	}
	m.sandboxes = now
}

// baseOf returns the files of the parent as they were when the winner was made, or, if the
// winner is not the parent's own fork, when its ancestor that is was made.
func (m *model) baseOf(parent, winner string) (map[string]string, bool) {
	for id := winner; ; {
		f, ok := m.forks[id]
		if !ok || m.sandboxes.Past[id] {
			return nil, false
		}
		if f.parent == parent {
			return f.base, true
		}
		id = f.parent
	}
}

// merged returns the files of a parent after a merge, and the conflicts if they prevent the
// merge.
func merged(base, ours, theirs map[string]string, policy sandbox.MergePolicy) (files map[string]string, conflicts []string) {
	files = maps.Clone(ours)
	take := func(name string) {
		if digest, ok := theirs[name]; ok {
			files[name] = digest
		} else {
			delete(files, name)
		}
	}
	for _, name := range everyName(base, ours, theirs) {
		b, o, t := base[name], ours[name], theirs[name]
		switch {
		case t == b || o == t:
		case o == b || policy == sandbox.PolicyTheirs:
			take(name)
		case policy == sandbox.PolicyNone:
			conflicts = append(conflicts, name)
		}
	}
	if len(conflicts) > 0 {
		return maps.Clone(ours), conflicts
	}
	return files, nil
}

func everyName(all ...map[string]string) []string {
	names := map[string]bool{}
	for _, files := range all {
		for name := range files {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// differences returns the changes from one set of files to the other, as lines.
func differences(from, to map[string]string) []string {
	var lines []string
	for _, name := range everyName(from, to) {
		a, wasThere := from[name]
		b, isThere := to[name]
		switch {
		case !wasThere:
			lines = append(lines, fmt.Sprintf("%s %s", sandbox.ChangeAdded, name))
		case !isThere:
			lines = append(lines, fmt.Sprintf("%s %s", sandbox.ChangeRemoved, name))
		case a != b:
			lines = append(lines, fmt.Sprintf("%s %s", sandbox.ChangeModified, name))
		}
	}
	return lines
}
