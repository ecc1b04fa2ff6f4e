package walk

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

func TestWalk(t *testing.T) {
	needs.GVisor(t)
	for name, value := range map[string]string{"rapid.checks": "1", "rapid.nofailfile": "true", "rapid.shrinktime": "0s"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Run("user", func(t *testing.T) { walkWith(t, covetest.Options{}, 60) })
		return
	}
	t.Run("root", func(t *testing.T) {
		t.Parallel()
		walkWith(t, covetest.Options{}, 60)
	})
	t.Run("user", func(t *testing.T) {
		t.Parallel()
		walkWith(t, covetest.Options{UID: covetest.OrdinaryUID}, 25)
	})
}

// walkWith takes one walk of so many steps. One that failed is taken again to
// see whether it fails again, and not made shorter, as the flags of the test say:
// that would take hours.
func walkWith(t *testing.T, opts covetest.Options, steps int) {
	if v := os.Getenv("COVE_WALK_STEPS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("COVE_WALK_STEPS: %v", err)
		}
		steps = n
	}
	d := covetest.Start(t, opts)
	rapid.Check(t, func(rt *rapid.T) {
		w := &walk{d: d, log: t.Logf, now: newModel(), groups: map[string]bool{}}
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

// walk is one walk on one daemon.
type walk struct {
	d      *covetest.Daemon
	log    func(format string, args ...any)
	now    model
	names  int             // how many names were given out
	groups map[string]bool // the cgroups that were seen
}

// start removes what a walk before this one has left.
func (w *walk) start(ctx context.Context) error {
	if err := w.wipe(ctx); err != nil {
		return err
	}
	all, err := w.d.All(ctx)
	for id := range all {
		w.now.world.Past[id] = true
	}
	return err
}

// wipe ends all sandboxes and deletes all snapshots.
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
	return w.tidy(ctx)
}

// see notes the cgroups that there are.
func (w *walk) see() {
	for _, g := range w.d.Groups() {
		w.groups[g] = true
	}
}

func (w *walk) tidy(ctx context.Context) error {
	w.see()
	return w.d.Tidy(ctx, slices.Collect(maps.Keys(w.groups)), 30*time.Second)
}

// end looks into the paused sandboxes, and removes everything.
func (w *walk) end(ctx context.Context) error {
	for _, id := range w.now.living(paused...) {
		held, err := w.d.Look(ctx, id)
		if err != nil {
			return fmt.Errorf("look into %s, which was paused: %w", id, err)
		}
		if want := w.now.world.Sandboxes[id].Held; !held.Equal(want) {
			return fmt.Errorf("%s, which was paused, holds %+v; want %+v", id, held, want)
		}
	}
	return w.wipe(ctx)
}

// The victims of SIGKILL.
const (
	nobody = "nobody"
	daemon = "daemon"
	cell   = "cell"
	sentry = "sentry"
)

// blow is a SIGKILL in the middle of a step.
type blow struct {
	victim string
	after  time.Duration
	number int // which of the machines
	fresh  bool
}

func drawBlow(t *rapid.T) blow {
	return blow{
		victim: rapid.SampledFrom([]string{nobody, nobody, nobody, nobody, nobody, nobody, nobody, nobody, daemon, daemon, cell, sentry}).Draw(t, "victim"),
		after:  time.Duration(rapid.IntRange(0, 200).Draw(t, "milliseconds")) * time.Millisecond,
		number: rapid.IntRange(0, 99).Draw(t, "machine"),
		fresh:  rapid.Bool().Draw(t, "a new machine"),
	}
}

// step takes one step and checks what came of it.
func (w *walk) step(ctx context.Context, t *rapid.T, number int) error {
	var s *step
	for s == nil {
		s = actions[rapid.IntRange(0, len(actions)-1).Draw(t, "action")](w, t)
	}
	b := drawBlow(t)
	parent := s.parent
	if parent == undisturbed {
		b.victim, parent = nobody, ""
	}
	began := time.Now()
	actErr, mayFail, err := w.act(ctx, s, b)
	took := time.Since(began)
	line := fmt.Sprintf("step %d, %v: %s; killed: %s", number, took.Round(time.Millisecond), s.name, b.victim)
	if b.victim != nobody {
		line += fmt.Sprintf(" after %v; answer: %v", b.after, actErr)
	}
	w.log("%s", line)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if err := judge(actErr, b); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	before := w.now
	models := []model{s.after}
	switch {
	case actErr == nil:
	case b.victim == daemon:
		models = append(models, s.cut...)
		models = append(models, before)
	default:
		models = append(s.cut, before)
	}
	if err := w.settle(ctx, mayFail, models, parent, before); err != nil {
		return fmt.Errorf("%s, killed %s, answered %v: %w", s.name, b.victim, actErr, err)
	}
	if err := w.prepare(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if err := w.tidy(ctx); err != nil {
		return fmt.Errorf("%s, killed %s, answered %v: %w", s.name, b.victim, actErr, err)
	}
	return nil
}

// judge refuses answers that no user should see.
func judge(err error, b blow) error {
	switch {
	case err == nil:
		return nil
	case b.victim == nobody:
		return err
	case sandbox.CodeOf(err) == sandbox.CodeInternal, strings.Contains(err.Error(), "\n"):
		return fmt.Errorf("the answer is not for users: %w", err)
	}
	return nil
}

// act takes the step and, in its middle, kills the victim. It returns the
// answer and which sandboxes may have failed by it.
func (w *walk) act(ctx context.Context, s *step, b blow) (answer error, mayFail func(string) bool, err error) {
	mayFail = func(string) bool { return false }
	if b.victim == nobody {
		return s.act(ctx), mayFail, nil
	}
	known, err := w.d.Machines(ctx)
	if err != nil {
		return nil, mayFail, err
	}
	targets := w.d.Targets(w.machines(known, s), b.victim == sentry)
	done := make(chan error, 1)
	go func() { done <- s.act(ctx) }()
	<-time.After(b.after)
	w.see()
	var hit string
	if b.victim == daemon {
		w.d.Kill()
	} else {
		if b.fresh {
			if fresh := w.d.Targets(w.d.Fresh(known), b.victim == sentry); len(fresh) > 0 {
				targets = fresh
			}
		}
		if len(targets) > 0 {
			target := targets[b.number%len(targets)]
			if err := syscall.Kill(target.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return nil, mayFail, err
			}
			hit = target.Machine
		}
	}
	select {
	case answer = <-done:
	case <-time.After(30 * time.Second):
		return nil, mayFail, errors.New("the call in flight hangs")
	}
	if b.victim == daemon {
		return answer, mayFail, w.d.Run(ctx)
	}
	if hit == "" {
		return answer, mayFail, nil
	}
	now, err := w.noticed(ctx, hit)
	return answer, func(id string) bool { return known.Last[id] == hit || now.Last[id] == hit }, err
}

// noticed waits until no sandbox is said to run on a machine that was killed.
func (w *walk) noticed(ctx context.Context, hit string) (now covetest.Machines, err error) {
	ok := covetest.Eventually(30*time.Second, func() bool {
		now, err = w.d.Machines(ctx)
		return err == nil && !slices.Contains(slices.Collect(maps.Values(now.Instances)), hit)
	})
	if !ok && err == nil {
		err = fmt.Errorf("a sandbox is said to run 30 s after its machine %s was killed", hit)
	}
	return now, err
}

// machines returns those that the step is about, or else all, in the order of
// their sandboxes.
func (w *walk) machines(known covetest.Machines, s *step) []string {
	var list []string
	ids := s.prefer
	if len(ids) == 0 {
		ids = w.now.order
	}
	for _, id := range ids {
		if m, ok := known.Instances[id]; ok {
			list = append(list, m)
		}
	}
	return list
}

// settle finds out which of the models has become true.
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
	var worlds []covetest.World
	var fitting []model
	for _, m := range models {
		if slices.Equal(names, slices.Sorted(maps.Keys(m.snaps))) {
			worlds, fitting = append(worlds, m.world), append(fitting, m)
		}
	}
	if len(fitting) == 0 {
		return fmt.Errorf("there are the snapshots %v, which fit neither the old nor the new state", names)
	}
	now, err := w.d.Settle(ctx, mayFail, worlds...)
	if err != nil {
		return err
	}
	w.now = fitting[0].clone()
	w.now.adopt(now, before.world, parent)
	return nil
}

// prepare makes the directory of files in new sandboxes.
func (w *walk) prepare(ctx context.Context) error {
	for _, id := range w.now.living(running...) {
		if want := w.now.world.Sandboxes[id].Held; len(want.Files) > 0 || want.Memory != "" {
			continue
		}
		if _, err := w.d.Client.MakeDir(ctx, id, dir, ""); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return err
		}
	}
	return nil
}
