package service

import (
	"context"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// askedEngine is an engine that notes for which families it was asked for room.
type askedEngine struct {
	*memory.Keeper
	mu       sync.Mutex
	families []string // guarded by mu
}

func (e *askedEngine) Admit(ctx context.Context, n int, of engine.Source, spec *engine.Spec) error {
	e.mu.Lock()
	e.families = append(e.families, spec.Family)
	e.mu.Unlock()
	return e.Keeper.Admit(ctx, n, of, spec)
}

// familyIs checks of which family a sandbox is, in the store and for the engine.
func (w *harness) familyIs(id, want string) {
	w.t.Helper()
	r := w.record(id)
	spec, known := w.state.Spec(r.Instance)
	if r.Family != want || r.Dedicated != (want != "") || !known || spec.Family != want || w.get(id).Dedicated != r.Dedicated {
		w.t.Errorf("%s is of the family %q, and dedicated: %t; the engine has %t, %q; want %q", id, r.Family, r.Dedicated, known, spec.Family, want)
	}
}

// TestDedicated checks whom requests make dedicated, with either default, and that a server
// without nodes makes none.
func TestDedicated(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes, byDefault bool
		asked            *bool
		want             bool
		code             sandbox.Code // "" if one is made
	}{
		"not asked":                       {nodes: true},
		"asked":                           {nodes: true, asked: ptr(true), want: true},
		"asked not to":                    {nodes: true, asked: ptr(false)},
		"by default":                      {nodes: true, byDefault: true, want: true},
		"by default, asked":               {nodes: true, byDefault: true, asked: ptr(true), want: true},
		"by default, asked not to":        {nodes: true, byDefault: true, asked: ptr(false)},
		"no nodes, not asked":             {},
		"no nodes, asked":                 {asked: ptr(true), code: sandbox.CodeUnsupported},
		"no nodes, by default":            {byDefault: true, code: sandbox.CodeUnsupported},
		"no nodes, default, asked not to": {byDefault: true, asked: ptr(false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t, func(c *Config) {
				c.Dedicated = tt.byDefault
				if tt.nodes {
					c.Nodes = noNodes{}
				}
			})
			sbx, err := w.Create(asRed(t), sandbox.CreateRequest{Dedicated: tt.asked})
			wantCode(t, err, tt.code)
			if tt.code != "" {
				w.agree()
				return
			}
			family := ""
			if tt.want {
				family = sbx.ID
			}
			if sbx.Dedicated != tt.want {
				t.Errorf("the answer says that it is dedicated: %t", sbx.Dedicated)
			}
			w.familyIs(sbx.ID, family)
		})
	}
}

// TestFamily checks that forks are of the family of the first ancestor, also those of forks and
// of what was paused, that room is asked for in its name, and that what is made from a snapshot
// is of none or of its own.
func TestFamily(t *testing.T) {
	var e *askedEngine
	w := (&harness{wrap: func(k *memory.Keeper) engine.Engine { e = &askedEngine{Keeper: k}; return e }}).begin(t, func(c *Config) { c.Nodes = noNodes{} })
	parent := w.create(sandbox.CreateRequest{Name: "parent", Dedicated: ptr(true)})
	w.familyIs(parent.ID, parent.ID)
	child := w.fork("parent", sandbox.ForkRequest{Count: 2})[1]
	w.familyIs(child.ID, parent.ID)
	w.familyIs(w.fork(child.ID, sandbox.ForkRequest{})[0].ID, parent.ID)
	w.pause("parent")
	w.familyIs(w.fork("parent", sandbox.ForkRequest{})[0].ID, parent.ID)
	_, err := w.Resume(asRed(t), "parent", sandbox.ResumeRequest{})
	must(t, err)
	w.familyIs(parent.ID, parent.ID)
	w.restart()
	w.familyIs(w.fork("parent", sandbox.ForkRequest{})[0].ID, parent.ID)
	for _, family := range e.families {
		if family != parent.ID {
			t.Errorf("room was asked for of the family %q", family)
		}
	}
	if len(e.families) == 0 {
		t.Error("nobody has asked for room")
	}
	_, err = w.CreateSnapshot(asRed(t), "parent", sandbox.CreateSnapshotRequest{Name: "state"})
	must(t, err)
	w.familyIs(w.create(sandbox.CreateRequest{Snapshot: "state"}).ID, "")
	own := w.create(sandbox.CreateRequest{Snapshot: "state", Dedicated: ptr(true)})
	w.familyIs(own.ID, own.ID)
}

// TestDedicatedAfresh checks that a dedicated sandbox does not continue from a golden
// checkpoint, which is on another node, while others do.
func TestDedicatedAfresh(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm, c.Nodes = 1, noNodes{} })
	w.create(sandbox.CreateRequest{})
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is made" })
	dedicated, other := w.create(sandbox.CreateRequest{Dedicated: ptr(true)}), w.create(sandbox.CreateRequest{})
	if s, known := w.state.Spec(dedicated.ID); !known || s.Checkpoint != "" || s.Fresh {
		t.Errorf("a dedicated sandbox begins with %q", s.Checkpoint)
	}
	if s, _ := w.state.Spec(other.ID); s.Checkpoint == "" {
		t.Error("another sandbox is booted") // then the rest tests nothing
	}
}

// TestLargestDedicated checks that a dedicated sandbox is measured by the nodes that take it.
func TestLargestDedicated(t *testing.T) {
	w := newHarness(t, func(c *Config) {
		c.Nodes = noNodes{}
		c.Capacity = validate.Capacity{Placed: true, Largest: upTo(sandbox.Resources{VCPUs: 2, MemoryMiB: 250}).Largest, Dedicated: upTo(sandbox.Resources{VCPUs: 4, MemoryMiB: 500}).Largest}
	})
	big := sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 64, MemoryMiB: 9999}, FitResources: true}
	for dedicated, want := range map[bool]sandbox.Resources{false: {VCPUs: 2, MemoryMiB: 250}, true: {VCPUs: 4, MemoryMiB: 500}} {
		big.Dedicated = &dedicated
		if r := w.create(big).Resources; r.VCPUs != want.VCPUs || r.MemoryMiB != want.MemoryMiB {
			t.Errorf("dedicated %t: who takes less gets %+v", dedicated, r)
		}
		if r := w.create(sandbox.CreateRequest{Dedicated: &dedicated}).Resources; r.MemoryMiB != want.MemoryMiB {
			t.Errorf("dedicated %t: who asks for nothing gets %+v", dedicated, r)
		}
	}
}

// TestMergeFamilies checks that no instance is moved to a sandbox of another family, which
// belongs on another node.
func TestMergeFamilies(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Nodes = noNodes{} })
	w.create(sandbox.CreateRequest{Name: "one", Dedicated: ptr(true)})
	w.create(sandbox.CreateRequest{Name: "two", Dedicated: ptr(true)})
	w.create(sandbox.CreateRequest{Name: "shared"})
	w.fork("one", sandbox.ForkRequest{Name: "fork"})
	w.pause("two")
	for _, pair := range [][2]string{{"one", "two"}, {"two", "one"}, {"one", "shared"}, {"shared", "one"}, {"two", "fork"}} {
		_, err := w.Merge(asRed(t), pair[0], sandbox.MergeRequest{Winner: pair[1]})
		wantCode(t, err, sandbox.CodeConflict)
	}
	if got := w.get("two").State; got != sandbox.StatePaused {
		t.Errorf("what is not merged is woken: it is %s", got)
	}
	_, err := w.Merge(asRed(t), "one", sandbox.MergeRequest{Winner: "fork"})
	must(t, err)
}
