package statemachine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func TestWalk(t *testing.T) {
	needs.GVisor(t)
	for name, value := range map[string]string{"rapid.checks": "1", "rapid.nofailfile": "true", "rapid.shrinktime": "0s"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) { walkWith(t, covetest.Options{UID: uid}) })
}

// walkWith takes one walk. A failed walk is repeated, to see whether it fails again, but is
// not shrunk (see the test's flags): that would take hours.
func walkWith(t *testing.T, opts covetest.Options) {
	steps := 15
	if needs.Soak() {
		steps = 500
	}
	if v := os.Getenv("COVE_WALK_STEPS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("COVE_WALK_STEPS: %v", err)
		}
		steps = n
	}
	var disk *needs.Disk
	if os.Geteuid() == 0 {
		disk = needs.NewDisk(t, diskMiB)
		opts.StateDir = stateOn(t, disk, int(opts.UID))
	}
	d := covetest.Start(t, opts)
	if disk != nil && opts.UID != 0 { // its copy of the program is no part of the state
		if out, err := exec.Command("sync", d.Binary).CombinedOutput(); err != nil {
			t.Fatalf("sync the program: %v, %s", err, out)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := &walk{d: d, disk: disk, log: t.Logf, now: newModel(), groups: map[string]bool{}}
		if err := w.start(t.Context()); err != nil {
			rt.Fatal(err)
		}
		for i := range steps {
			if err := w.step(t.Context(), rt, i); err != nil {
				rt.Fatalf("step %d: %v", i, err)
			}
		}
		if err := w.end(t.Context()); err != nil {
			rt.Fatalf("after the last step: %v", err)
		}
	})
}

// diskMiB is the size of a walk's disk, of which most stays free.
const diskMiB = 4096

// stateOn makes a directory for a daemon's state on a disk that loses its power later.
func stateOn(t *testing.T, disk *needs.Disk, uid int) string {
	dir := filepath.Join(disk.Dir, "state")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, uid)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// walk is one walk on one daemon.
type walk struct {
	d      *covetest.Daemon
	disk   *needs.Disk // disk of the daemon's state; nil if the test may not make one
	log    func(format string, args ...any)
	now    model
	names  int             // how many names were given out
	groups map[string]bool // the cgroups that were seen
}

// start removes what the previous walk left.
func (w *walk) start(ctx context.Context) error {
	if err := w.wipe(ctx); err != nil {
		return err
	}
	all, err := w.d.All(ctx)
	for id := range all {
		w.now.sandboxes.Past[id] = true
	}
	if err != nil {
		return err
	}
	w.now.records, err = w.records(ctx)
	return err
}

// wipe ends all sandboxes and removes everything else that a walk has made.
func (w *walk) wipe(ctx context.Context) error {
	all, err := w.d.All(ctx)
	if err != nil {
		return err
	}
	for id, s := range all {
		if s.State.Final() {
			continue
		}
		if _, err := w.d.Client.Kill(ctx, id); err != nil {
			return fmt.Errorf("kill %s: %w", id, err)
		}
	}
	snaps, err := w.d.Client.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	for _, s := range snaps.Items {
		if _, err := w.d.Client.DeleteSnapshot(ctx, s.ID); err != nil {
			return fmt.Errorf("delete %s: %w", s.ID, err)
		}
	}
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	for r := range records {
		if err := w.drop(ctx, r); err != nil {
			return fmt.Errorf("remove %s: %w", r, err)
		}
	}
	return w.tidy(ctx)
}

// see records the existing cgroups.
func (w *walk) see() {
	for _, g := range w.d.Groups() {
		w.groups[g] = true
	}
}

func (w *walk) tidy(ctx context.Context) error {
	w.see()
	return w.d.Tidy(ctx, slices.Collect(maps.Keys(w.groups)), 30*time.Second)
}

// end inspects the paused sandboxes and the snapshots, and removes everything.
func (w *walk) end(ctx context.Context) error {
	for name, k := range w.now.snaps {
		s, err := w.d.Client.Create(ctx, sandbox.CreateRequest{Snapshot: name})
		if err != nil {
			return fmt.Errorf("create from %s: %w", name, err)
		}
		held, err := w.d.Look(ctx, s.ID)
		if err != nil || !held.Equal(k.held) {
			return fmt.Errorf("the snapshot %s holds %+v, %w; want %+v", name, held, err, k.held)
		}
	}
	for _, id := range w.now.living(paused...) {
		held, err := w.d.Look(ctx, id)
		if err != nil {
			return fmt.Errorf("look into %s, which was paused: %w", id, err)
		}
		if want := w.now.sandboxes.Sandboxes[id].Held; !held.Equal(want) {
			return fmt.Errorf("%s, which was paused, holds %+v; want %+v", id, held, want)
		}
	}
	return w.wipe(ctx)
}

// step takes one step and checks the outcome.
func (w *walk) step(ctx context.Context, t *rapid.T, number int) error {
	var s *step
	for s == nil {
		s = actions[rapid.IntRange(0, len(actions)-1).Draw(t, "action")](w, t)
	}
	b := drawBlow(t, w.disk != nil)
	parent := s.parent
	if parent == undisturbed {
		b.victim, parent = nobody, ""
	}
	began := time.Now()
	actErr, mayFail, err := w.act(ctx, s, b)
	took := time.Since(began)
	line := fmt.Sprintf("step %d, %v: %s; struck: %s", number, took.Round(time.Millisecond), s.name, b.victim)
	if b.victim == power {
		parent = "" // no fork outlives it
	}
	if b.victim != nobody {
		line += fmt.Sprintf(" after %v; answer: %v", b.after, actErr)
	}
	w.log("%s", line)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if err := judge(actErr, s, b); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	before := w.now
	if err := w.settle(ctx, mayFail, outcomes(s, b, actErr, before), parent, before); err != nil {
		return fmt.Errorf("%s, struck %s, answered %v: %w", s.name, b.victim, actErr, err)
	}
	if err := w.prepare(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if err := w.tidy(ctx); err != nil {
		return fmt.Errorf("%s, struck %s, answered %v: %w", s.name, b.victim, actErr, err)
	}
	return nil
}

// settle finds the model that matches the state.
func (w *walk) settle(ctx context.Context, mayFail func(string) bool, models []model, parent string, before model) error {
	snaps, err := w.d.Client.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	var names []string
	for _, s := range snaps.Items {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	var expected []covetest.Expected
	var fitting []model
	for _, m := range models {
		if slices.Equal(names, slices.Sorted(maps.Keys(m.snaps))) && maps.Equal(records, m.records) {
			expected, fitting = append(expected, m.sandboxes), append(fitting, m)
		}
	}
	if len(fitting) == 0 {
		return fmt.Errorf("there are the snapshots %v and the records %v, which fit neither the old nor the new state: %v", names, records, before.records)
	}
	now, err := w.d.Settle(ctx, mayFail, expected...)
	if err != nil {
		return err
	}
	w.now = fitting[0].clone()
	w.now.adopt(now, before.sandboxes, parent)
	return nil
}

// prepare makes the directory of files in new sandboxes.
func (w *walk) prepare(ctx context.Context) error {
	for _, id := range w.now.living(running...) {
		if want := w.now.sandboxes.Sandboxes[id].Held; len(want.Files) > 0 || want.Memory != "" {
			continue
		}
		if _, err := w.d.Client.MakeDir(ctx, id, sandbox.MakeDirRequest{Path: dir}); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return err
		}
	}
	return nil
}
