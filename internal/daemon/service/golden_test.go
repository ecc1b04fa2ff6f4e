package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// TestGoldenGivesUp fills all places for golden checkpoints and requests one more.
func TestGoldenGivesUp(t *testing.T) {
	type kind struct {
		team  string
		age   time.Duration
		ready bool
		pause time.Duration // until it is tried again, if it is not ready
	}
	// many are kinds of a team that were used just now.
	many := func(team string, n int) []kind {
		return slices.Repeat([]kind{{team: team, ready: true}}, n)
	}
	const old = 2 * goldenRest
	for name, tc := range map[string]struct {
		kinds []kind // the server itself is making the others
		want  int    // the index of the one that is evicted, -1 for none
	}{
		"least recently used":  {[]kind{{"red", old, true, 0}, {"blue", 3 * old, true, 0}, {"", old, true, 0}}, 1},
		"all in use":           {[]kind{{"red", goldenRest / 2, true, 0}, {"blue", 0, true, 0}}, -1},
		"being made":           {[]kind{{"red", old, false, 0}}, -1},
		"failed just now":      {[]kind{{"red", old, false, time.Minute}}, -1},
		"failed long ago":      {[]kind{{"red", old, false, -time.Minute}}, 0},
		"at its share":         {append(many("red", goldenShare-1), kind{"blue", 3 * old, true, 0}, kind{"red", old, true, 0}), goldenShare},
		"at its share, in use": {append(many("red", goldenShare), kind{"blue", old, true, 0}), -1},
		"below its share":      {append(many("red", goldenShare-1), kind{"blue", old, true, 0}), goldenShare - 1},
		"another at its share": {many("blue", goldenShare), -1},
		"another above it":     {append(slices.Repeat([]kind{{"", 3 * old, true, 0}}, 40), many("blue", goldenShare+1)...), 40},
		"another above it whose kinds fail": {
			slices.Repeat([]kind{{team: "blue", pause: time.Minute}}, goldenShare+1), 0,
		},
		"the server above a team's share": {many("", goldenShare+1), -1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGoldens(nil)
			now := time.Now()
			for i := range maxGoldens {
				id, a := fmt.Sprint(i), &attempt{used: now}
				if i < len(tc.kinds) {
					k := tc.kinds[i]
					// Of kinds with the same age, the first is the oldest.
					a.team, a.used = k.team, now.Add(time.Duration(i)*time.Millisecond-time.Second-k.age)
					switch {
					case k.ready:
						g.ready[id] = engine.WarmSpec{}
					case k.pause != 0:
						a.again = now.Add(k.pause)
					}
				}
				g.attempts[id] = a
			}
			claimed := g.claim("new", "red")
			if claimed != (tc.want >= 0) {
				t.Errorf("there was room: %v", claimed)
			}
			for i := range maxGoldens {
				if gone := g.attempts[fmt.Sprint(i)] == nil; gone != (i == tc.want) {
					t.Errorf("kind %d is gone: %v", i, gone)
				}
			}
			if len(g.attempts) != maxGoldens {
				t.Errorf("there are %d", len(g.attempts))
			}
		})
	}
}

// TestGoldenMakesRoom wants more kinds than there is room for. An evicted kind is no
// longer kept ready, and its checkpoint is removed, but not while a creation uses it.
func TestGoldenMakesRoom(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	offered := func(want int, not string) (id string) {
		t.Helper()
		wait(t, func() bool {
			warm := w.state.Warm()
			if len(warm) == want && warm[0].Checkpoint != not {
				id = warm[0].Checkpoint
			}
			return id != ""
		}, func() string { return fmt.Sprintf("offered are %+v", w.state.Warm()) })
		return id
	}
	kept := func(id string) bool {
		return slices.ContainsFunc(w.state.Kept(), func(c engine.Checkpoint) bool { return c.ID == id })
	}
	age := func(id string) {
		w.golden.mu.Lock()
		defer w.golden.mu.Unlock()
		w.golden.attempts[id].used = time.Now().Add(-2 * goldenRest)
	}
	other := sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 99}}
	w.create(sandbox.CreateRequest{})
	first := offered(1, "")
	w.golden.mu.Lock()
	for i := range maxGoldens - 1 { // these stay in the making
		w.golden.attempts[fmt.Sprint(i)] = &attempt{used: time.Now()}
	}
	w.golden.mu.Unlock()

	// In use, it stays.
	w.create(other)
	w.golden.mu.Lock()
	if n, still := len(w.golden.attempts), w.golden.attempts[first]; n != maxGoldens || still == nil {
		t.Errorf("%d kinds, the first is %v", n, still)
	}
	w.golden.mu.Unlock()

	// A creation is using it when it is evicted.
	beginning, on := make(chan struct{}), make(chan struct{})
	w.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error { close(beginning); <-on; return nil })
	made := make(chan error, 1)
	go func() {
		_, err := w.Create(asRed(t), sandbox.CreateRequest{Name: "late"})
		made <- err
	}()
	<-beginning
	age(first)
	w.create(other)
	second := offered(1, first)
	must(t, w.collectNow(t.Context()))
	if !kept(first) || !kept(second) {
		t.Errorf("kept are %+v", w.state.Kept())
	}
	close(on)
	must(t, <-made)
	if s, _ := w.state.Spec(w.get("late").ID); s.Checkpoint != first {
		t.Errorf("it began with %q, want %q", s.Checkpoint, first)
	}
	gone := func(id string) func() bool {
		return func() bool {
			w.golden.mu.Lock()
			defer w.golden.mu.Unlock()
			return !kept(id) && !w.golden.removing[id]
		}
	}
	wait(t, gone(first), func() string { return "what was given up is kept" })

	// It is made again when it is wanted and there is room.
	age(second)
	w.create(sandbox.CreateRequest{})
	if again := offered(1, second); again != first || !kept(first) {
		t.Errorf("offered is %q, kept %+v", again, w.state.Kept())
	}
	wait(t, gone(second), func() string { return "the second is kept" })
	w.agree()
}

// TestGoldenBeingRemoved wants a golden checkpoint that the collector is removing.
func TestGoldenBeingRemoved(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	w.create(sandbox.CreateRequest{})
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is offered" })
	id := w.state.Warm()[0].Checkpoint
	w.state.Trap(memory.StepRemoveCheckpoint, memory.Before, func(context.Context) error {
		_, err := w.Create(asRed(t), sandbox.CreateRequest{})
		return err
	})
	w.golden.forget([]string{w.state.Warm()[0].Root.Digest})
	wait(t, func() bool { return len(w.state.Warm()) == 0 }, func() string { return "what is forgotten is offered" })
	gone := func() bool {
		return !slices.ContainsFunc(w.state.Kept(), func(c engine.Checkpoint) bool { return strings.HasPrefix(c.ID, ids.Golden) })
	}
	wait(t, gone, func() string { return "it is not removed" })
	wait(t, func() bool { w.golden.mu.Lock(); defer w.golden.mu.Unlock(); return !w.golden.removing[id] }, func() string { return "it is being removed for ever" })
	if n := len(w.state.Warm()); n != 0 {
		t.Errorf("%d are offered of what is gone", n)
	}
	w.create(sandbox.CreateRequest{})
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "it is not made again" })
	w.agree()
}

// If no sandbox can be started from a golden checkpoint, the creation boots instead of
// failing. The checkpoint is removed, and made again after a pause. If the boot fails
// too, the checkpoint stays.
func TestGoldenThatDoesNotStart(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	offered := func(n int) {
		t.Helper()
		wait(t, func() bool { return len(w.state.Warm()) == n }, func() string { return fmt.Sprintf("offered are %+v, want %d", w.state.Warm(), n) })
	}
	again := func(id string) time.Duration {
		w.golden.mu.Lock()
		defer w.golden.mu.Unlock()
		pause := time.Until(w.golden.attempts[id].again)
		w.golden.attempts[id].again = time.Now() // it is over
		return pause
	}
	kept := func(id string) func() bool {
		return func() bool {
			return slices.ContainsFunc(w.state.Kept(), func(c engine.Checkpoint) bool { return c.ID == id })
		}
	}
	w.create(sandbox.CreateRequest{})
	offered(1)
	id := w.state.Warm()[0].Checkpoint
	damaged := sandbox.Errorf(sandbox.CodeUnavailable, "the kept state is damaged")

	for range 2 {
		w.state.Fail(memory.StepCreate, memory.Before, damaged)
	}
	if _, err := w.Create(asRed(t), sandbox.CreateRequest{}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Fatalf("a create that fails both ways says %v", err)
	}
	w.state.Fail(memory.StepCreate, memory.Before, sandbox.Errorf(sandbox.CodeInvalid, "no such user"))
	if _, err := w.Create(asRed(t), sandbox.CreateRequest{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Fatalf("a wrong request says %v", err)
	}
	offered(1)

	for i, tt := range []struct {
		how   string
		spoil func()
	}{
		{"a creation", func() {
			w.state.Fail(memory.StepCreate, memory.Before, damaged)
			s := w.create(sandbox.CreateRequest{})
			if spec, _ := w.state.Spec(s.ID); s.State != sandbox.StateRunning || spec.Checkpoint != "" || spec.Fresh {
				t.Errorf("the sandbox is %s, from %q", s.State, spec.Checkpoint)
			}
		}},
		{"an instance that was to wait", func() { w.state.Warm()[0].Failed(damaged) }},
	} {
		tt.spoil()
		offered(0)
		wait(t, func() bool { return !kept(id)() }, func() string { return "it is not removed after " + tt.how })
		w.create(sandbox.CreateRequest{}) // too early
		if n := len(w.state.Warm()); n != 0 {
			t.Errorf("%d are offered at once after %s", n, tt.how)
		}
		if pause := again(id); pause > goldenPauses[i] || pause < goldenPauses[i]-time.Minute {
			t.Errorf("it is made anew %s after %s, want %s", pause, tt.how, goldenPauses[i])
		}
		wait(t, func() bool { w.golden.mu.Lock(); defer w.golden.mu.Unlock(); return !w.golden.removing[id] }, func() string { return "it is being removed for ever" })
		w.create(sandbox.CreateRequest{})
		offered(1)
		if got := w.state.Warm()[0].Checkpoint; got != id || !kept(id)() {
			t.Errorf("offered is %q", got)
		}
	}
	w.agree()
}

// rootless is templates whose roots are elsewhere, if that is set.
type rootless struct {
	TemplateProvider
	t         *testing.T
	elsewhere atomic.Bool
}

func (r *rootless) Root(ctx context.Context, ref string) (engine.Root, sandbox.Template, error) {
	if r.elsewhere.Load() {
		r.t.Errorf("the root of %s is asked for", ref)
	}
	return r.TemplateProvider.Root(ctx, ref)
}

// TestTemplatesWithoutRoots checks that templates are described, with the size of their golden
// checkpoints, without their roots: these may have to be fetched.
func TestTemplatesWithoutRoots(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	templates := &rootless{TemplateProvider: w.templates, t: t}
	w.provider = templates
	w.restart()
	s := w.create(sandbox.CreateRequest{Template: "full"})
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is offered" })
	templates.elsewhere.Store(true)
	got, err := w.GetTemplate(asRed(t), s.Template)
	must(t, err)
	if got.WarmBytes == 0 {
		t.Errorf("the template %+v has no golden checkpoint; kept are %+v", got, w.state.Kept())
	}
	list, err := w.ListTemplates(asRed(t), sandbox.Page{})
	must(t, err)
	if !slices.ContainsFunc(list.Items, func(l sandbox.Template) bool { return l.Name == got.Name && l.WarmBytes == got.WarmBytes }) {
		t.Errorf("listed are %+v", list.Items)
	}
	templates.elsewhere.Store(false)
}
