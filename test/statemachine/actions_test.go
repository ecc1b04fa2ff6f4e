package statemachine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxLiving = 5
	maxSnaps  = 3
	dir       = "/workspace/w"
)

// step is one action and its expected outcome.
type step struct {
	name string
	act  func(context.Context) error
	// after is the model once the action has completed; cut are the models that are
	// possible if the action was interrupted.
	after model
	cut   []model
	// parent is the sandbox whose forks the new sandboxes are.
	parent string
	// prefer are the sandboxes whose machines are struck in preference to others.
	prefer []string
	// frees is set if the step must succeed on a full disk.
	frees bool
}

// action returns a step that is possible now, or nil.
type action func(*walk, *rapid.T) *step

// actions are all actions. Some are listed twice, to make them likelier.
var actions = []action{
	create, createFromSnapshot, write, write, write, remove, count, count, count, pause, pause, resume, resumeFiles, fork1to3, fork1to3,
	snapshot, snapshot, restore, restore, mergeWhole, mergeFiles, mergeFiles, diff, deleteSnapshot, kill, rest,
	try, rewind, rename, resize, keepOrDrop, keepOrDrop,
}

var (
	alive   = []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}
	running = []sandbox.State{sandbox.StateRunning}
	paused  = []sandbox.State{sandbox.StatePaused}
)

// one draws a sandbox in one of the states; the result is false if there is none.
func (w *walk) one(t *rapid.T, label string, states []sandbox.State) (string, bool) {
	ids := w.now.living(states...)
	if len(ids) == 0 {
		return "", false
	}
	return ids[rapid.IntRange(0, len(ids)-1).Draw(t, label)], true
}

func (w *walk) aSnapshot(t *rapid.T) (string, bool) {
	names := slices.Sorted(maps.Keys(w.now.snaps))
	if len(names) == 0 {
		return "", false
	}
	return rapid.SampledFrom(names).Draw(t, "snapshot"), true
}

func (w *walk) room() int { return maxLiving - len(w.now.living(alive...)) }

func (w *walk) next(prefix string) string {
	w.names++
	return fmt.Sprintf("%s-%d", prefix, w.names)
}

// born returns a model with one new sandbox that is not a fork.
func (w *walk) born(held covetest.Held) model {
	m := w.now.clone()
	m.sandboxes.Born, m.sandboxes.Parent = 1, ""
	m.sandboxes.Child = covetest.Want{State: sandbox.StateRunning, Held: held}
	return m
}

func create(w *walk, _ *rapid.T) *step {
	if w.room() < 1 {
		return nil
	}
	return &step{name: "create", after: w.born(covetest.Held{Files: map[string]string{}}), act: func(ctx context.Context) error {
		_, err := w.d.Client.Create(ctx, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 256}})
		return err
	}}
}

func createFromSnapshot(w *walk, t *rapid.T) *step {
	name, ok := w.aSnapshot(t)
	if !ok || w.room() < 1 {
		return nil
	}
	return &step{name: "create from " + name, after: w.born(w.now.snaps[name].held), act: func(ctx context.Context) error {
		_, err := w.d.Client.Create(ctx, sandbox.CreateRequest{Snapshot: name})
		return err
	}}
}

func write(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "file")
	size := rapid.SampledFrom([]int{0, 1, 1000, 70_000, 3_000_000}).Draw(t, "size")
	text := w.next("text")
	content := bytes.Repeat([]byte(text), size/len(text)+1)[:size]
	sum := sha256.Sum256(content)
	s := &step{name: "write " + name + " in " + id, after: w.now.clone(), cut: w.now.awake(id), prefer: []string{id}}
	s.after.put(id, name, hex.EncodeToString(sum[:]))
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: dir + "/" + name}, bytes.NewReader(content))
		return err
	}
	return s
}

func remove(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	names := slices.Sorted(maps.Keys(w.now.sandboxes.Sandboxes[id].Held.Files))
	if !ok || len(names) == 0 {
		return nil
	}
	name := rapid.SampledFrom(names).Draw(t, "file")
	s := &step{name: "remove " + name + " in " + id, after: w.now.clone(), cut: w.now.awake(id), prefer: []string{id}}
	s.after.put(id, name, "")
	s.act = func(ctx context.Context) error { return w.d.Client.DeleteFile(ctx, id, dir+"/"+name, false) }
	return s
}

// count makes the counting process, which holds its word in memory, count once more. It
// starts the process if there is none.
func count(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", running)
	if !ok {
		return nil
	}
	s := &step{after: w.now.clone()}
	memory := w.now.sandboxes.Sandboxes[id].Held.Memory
	if memory == "" {
		word := w.next("word")
		s.name, s.act = "remember in "+id, func(ctx context.Context) error { return w.d.StartWitness(ctx, id, word) }
		s.after.set(id, func(want *covetest.Want) { want.Held.Memory = word + " 0" })
		return s.alone()
	}
	var word string
	var n int
	if _, err := fmt.Sscan(memory, &word, &n); err != nil {
		t.Fatal(err)
	}
	s.name, s.act = "count in "+id, func(ctx context.Context) error { return w.d.Count(ctx, id) }
	s.after.set(id, func(want *covetest.Want) { want.Held.Memory = fmt.Sprintf("%s %d", word, n+1) })
	return s.alone()
}

// alone marks a step of several calls, which must not be interrupted.
func (s *step) alone() *step {
	s.cut = nil
	s.prefer = nil
	s.parent = undisturbed
	return s
}

// undisturbed is used instead of a parent where nothing may be killed.
const undisturbed = "-"

func pause(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", running)
	if !ok {
		return nil
	}
	s := &step{name: "pause " + id, after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.after.set(id, func(want *covetest.Want) { want.State = sandbox.StatePaused })
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.Pause(ctx, id)
		return err
	}
	return s
}

func resume(w *walk, t *rapid.T) *step      { return resumeWith(w, t, false) }
func resumeFiles(w *walk, t *rapid.T) *step { return resumeWith(w, t, true) }

func resumeWith(w *walk, t *rapid.T, filesOnly bool) *step {
	id, ok := w.one(t, "sandbox", paused)
	if !ok {
		return nil
	}
	s := &step{name: fmt.Sprintf("resume %s, files only: %v", id, filesOnly), after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.after.set(id, func(want *covetest.Want) {
		want.State = sandbox.StateRunning
		if filesOnly {
			want.Held.Memory = ""
		}
	})
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.Resume(ctx, id, sandbox.ResumeRequest{FilesOnly: filesOnly})
		return err
	}
	return s
}

func fork1to3(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok || w.room() < 1 {
		return nil
	}
	n := rapid.IntRange(1, min(3, w.room())).Draw(t, "forks")
	s := &step{name: fmt.Sprintf("fork %s, %d times", id, n), after: w.now.clone(), cut: []model{w.now}, parent: id, prefer: []string{id}}
	s.after.sandboxes.Born, s.after.sandboxes.Parent = n, id
	s.after.sandboxes.Child = covetest.Want{State: sandbox.StateRunning, Held: w.now.sandboxes.Sandboxes[id].Held}
	s.act = func(ctx context.Context) error {
		list, err := w.d.Client.Fork(ctx, id, sandbox.ForkRequest{Count: n})
		if err == nil && len(list.Items) != n {
			err = fmt.Errorf("there are %d forks instead of %d", len(list.Items), n)
		}
		return err
	}
	return s
}

func snapshot(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok || len(w.now.snaps) >= maxSnaps {
		return nil
	}
	k := kept{kind: rapid.SampledFrom([]sandbox.SnapshotKind{sandbox.SnapshotMemory, sandbox.SnapshotFiles}).Draw(t, "kind"), held: w.now.sandboxes.Sandboxes[id].Held}
	if k.kind == sandbox.SnapshotFiles {
		k.held.Memory = ""
	}
	name := w.next("snap-of")
	name = "kept-" + name[len("snap-of-"):]
	s := &step{name: fmt.Sprintf("keep %s of %s as %s", k.kind, id, name), after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.after.snaps[name] = k
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Name: name, Kind: k.kind})
		return err
	}
	return s
}

func deleteSnapshot(w *walk, t *rapid.T) *step {
	name, ok := w.aSnapshot(t)
	if !ok {
		return nil
	}
	s := &step{name: "delete " + name, after: w.now.clone(), cut: []model{w.now}, frees: true}
	delete(s.after.snaps, name)
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.DeleteSnapshot(ctx, name)
		return err
	}
	return s
}

func restore(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok {
		return nil
	}
	name, ok := w.aSnapshot(t)
	if !ok {
		return nil
	}
	s := &step{name: "restore " + id + " to " + name, after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}}
	s.after.set(id, func(want *covetest.Want) { want.State, want.Held = sandbox.StateRunning, w.now.snaps[name].held })
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: name})
		return err
	}
	return s
}

// pair draws two different sandboxes.
func (w *walk) pair(t *rapid.T) (a, b string, ok bool) {
	ids := w.now.living(alive...)
	if len(ids) < 2 {
		return "", "", false
	}
	i := rapid.IntRange(0, len(ids)-1).Draw(t, "first")
	j := rapid.IntRange(1, len(ids)-1).Draw(t, "second")
	return ids[i], ids[(i+j)%len(ids)], true
}

func mergeWhole(w *walk, t *rapid.T) *step {
	parent, winner, ok := w.pair(t)
	if !ok {
		return nil
	}
	s := &step{name: "merge the whole of " + winner + " into " + parent, after: w.now.clone(), cut: w.now.awake(winner), prefer: []string{parent, winner}}
	held := w.now.sandboxes.Sandboxes[winner].Held
	s.after.set(parent, func(want *covetest.Want) { want.State, want.Held = sandbox.StateRunning, held })
	s.after.set(winner, func(want *covetest.Want) { *want = covetest.Want{State: sandbox.StateKilled, Name: want.Name} })
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.Merge(ctx, parent, sandbox.MergeRequest{Winner: winner})
		return err
	}
	return s
}

func mergeFiles(w *walk, t *rapid.T) *step {
	var families [][2]string
	for _, parent := range w.now.living(alive...) {
		for _, winner := range w.now.living(alive...) {
			if _, ok := w.now.baseOf(parent, winner); ok {
				families = append(families, [2]string{parent, winner})
			}
		}
	}
	if len(families) == 0 {
		return nil
	}
	family := families[rapid.IntRange(0, len(families)-1).Draw(t, "family")]
	parent, winner := family[0], family[1]
	policy := rapid.SampledFrom([]sandbox.MergePolicy{sandbox.PolicyNone, sandbox.PolicyOurs, sandbox.PolicyTheirs}).Draw(t, "policy")
	base, _ := w.now.baseOf(parent, winner)
	files, conflicts := merged(base, w.now.sandboxes.Sandboxes[parent].Held.Files, w.now.sandboxes.Sandboxes[winner].Held.Files, policy)
	s := &step{
		name:  fmt.Sprintf("merge the files of %s into %s with policy %q: conflicts %v", winner, parent, policy, conflicts),
		after: w.now.clone(), cut: w.now.awake(parent, winner), prefer: []string{parent, winner},
	}
	s.after.set(winner, func(want *covetest.Want) { want.State = sandbox.StateRunning })
	s.after.set(parent, func(want *covetest.Want) { want.State, want.Held.Files = sandbox.StateRunning, files })
	s.act = func(ctx context.Context) error {
		res, err := w.d.Client.Merge(ctx, parent, sandbox.MergeRequest{Winner: winner, Kind: sandbox.MergeFiles, Policy: policy})
		if err != nil {
			return err
		}
		var told []string
		for _, c := range res.Conflicts {
			told = append(told, strings.TrimPrefix(c.Path, dir+"/"))
		}
		slices.Sort(told)
		if res.Merged != (len(conflicts) == 0) || !res.Merged && !slices.Equal(told, conflicts) {
			return fmt.Errorf("merged is %v and the conflicts are %v; want the conflicts %v", res.Merged, told, conflicts)
		}
		return nil
	}
	return s
}

func diff(w *walk, t *rapid.T) *step {
	from, to, ok := w.pair(t)
	if !ok {
		return nil
	}
	was := w.now.sandboxes.Sandboxes[from].Held.Files
	if rapid.Bool().Draw(t, "against a snapshot") {
		if name, ok := w.aSnapshot(t); ok {
			from, was = name, w.now.snaps[name].held.Files
		}
	}
	want := differences(was, w.now.sandboxes.Sandboxes[to].Held.Files)
	s := &step{name: "compare " + to + " with " + from, after: w.now.clone(), cut: []model{w.now}, prefer: []string{to}}
	s.act = func(ctx context.Context) error {
		d, err := w.d.Client.Diff(ctx, to, sandbox.DiffRequest{Against: from, Paths: []string{dir}})
		if err != nil {
			return err
		}
		var got []string
		for _, c := range d.Changes {
			got = append(got, fmt.Sprintf("%s %s", c.Kind, strings.TrimPrefix(c.Path, dir+"/")))
		}
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(a[strings.Index(a, " "):], b[strings.Index(b, " "):]) })
		if !slices.Equal(got, want) {
			return fmt.Errorf("the differences are %q; want %q", got, want)
		}
		return nil
	}
	return s
}

func kill(w *walk, t *rapid.T) *step {
	id, ok := w.one(t, "sandbox", alive)
	if !ok || len(w.now.living(alive...)) < 3 {
		return nil
	}
	s := &step{name: "kill " + id, after: w.now.clone(), cut: []model{w.now}, prefer: []string{id}, frees: true}
	s.after.set(id, func(want *covetest.Want) { *want = covetest.Want{State: sandbox.StateKilled, Name: want.Name} })
	s.act = func(ctx context.Context) error {
		_, err := w.d.Client.Kill(ctx, id)
		return err
	}
	return s
}

// rest does nothing, so that strikes hit an idle system.
func rest(w *walk, _ *rapid.T) *step {
	return &step{name: "rest", after: w.now.clone(), cut: []model{w.now}, act: func(context.Context) error { return nil }}
}
