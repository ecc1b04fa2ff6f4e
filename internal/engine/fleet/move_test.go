package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// copied is what a store has of a checkpoint.
type copied struct {
	engine.Checkpoint
	description []byte
	files       map[string][]byte
}

func (w *world) copy(id string) *copied {
	w.t.Helper()
	out, err := w.Export(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	defer out.Close()
	c := &copied{out.Checkpoint, out.Description, map[string][]byte{}}
	for _, f := range out.Files {
		if c.files[f.Name], err = io.ReadAll(f); err != nil {
			w.t.Fatal(err)
		}
	}
	return c
}

func (c *copied) fetch(f engine.ExportFile, to io.WriterAt) error {
	data := c.files[f.Name]
	// In two parts, the second one first.
	half := len(data) / 2
	_, err := to.WriteAt(data[half:], int64(half))
	_, err2 := to.WriteAt(data[:half], 0)
	return errors.Join(err, err2)
}

func (w *world) standing(id string, want engine.Standing) {
	w.t.Helper()
	if got := w.Standing(id); got != want {
		w.t.Errorf("the standing of %s is %q, want %q", id, got, want)
	}
}

// pausedOn makes a checkpoint of an instance on a node, which it ends.
func (w *world) pausedOn(node, id string) {
	w.t.Helper()
	w.create(id+"-instance", at(node))
	opts := engine.CheckpointOptions{Durable: true, Owner: "red", Label: []byte(`"label"`), Commit: func(c engine.Checkpoint) error {
		if c.Owner != "red" {
			w.t.Errorf("to be recorded is %+v", c)
		}
		return nil
	}}
	if _, err := w.Checkpoint(w.t.Context(), id+"-instance", id, opts); err != nil {
		w.t.Fatal(err)
	}
}

// TestMove checks that a checkpoint can continue elsewhere while its node is away, and that
// the node has removed its own before it is driven again, whatever is restarted meanwhile.
func TestMove(t *testing.T) {
	w := newWorld(t, time.Hour)
	a, b := w.join("a"), w.join("b")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	if kept.Owner != "red" || kept.Root.Digest != "d" || string(kept.Label) != `"label"` {
		t.Errorf("the copy says %+v", kept.Checkpoint)
	}
	w.standing("ckp", engine.StandingReady)
	w.standing("unknown", engine.StandingNone)
	w.cut(a)
	w.standing("ckp", engine.StandingAway)
	if _, err := w.Import(t.Context(), kept.Checkpoint, kept.description, kept.fetch); err != nil {
		t.Fatal(err)
	}
	w.standing("ckp", engine.StandingReady)
	w.create("continues", func(s *engine.Spec) { s.Checkpoint = "ckp" })
	if got := w.PlaceOf(engine.Source{Instance: "continues"}); got != "b" {
		t.Errorf("it continues on %s", got)
	}
	if len(a.state.Kept()) != 1 {
		t.Fatal("the node that is away has removed it") // then the rest tests nothing
	}
	w.restart()
	w.attach(b)
	w.attach(a)
	if left := a.state.Kept(); len(left) > 0 {
		t.Errorf("the node that is back has %v", left)
	}
	if got := w.PlaceOf(engine.Source{Checkpoint: "ckp"}); got != "b" {
		t.Errorf("the checkpoint is on %s", got)
	}
	if all, err := w.Checkpoints(t.Context()); err != nil || len(all) != 1 || all[0].Owner != "red" {
		t.Errorf("kept are %+v, %v", all, err)
	}
	// It moves back, and nothing is in the way.
	if _, err := w.Import(t.Context(), kept.Checkpoint, kept.description, kept.fetch); err != nil {
		t.Fatal(err)
	}
	if got := w.PlaceOf(engine.Source{Checkpoint: "ckp"}); got != "a" {
		t.Errorf("the checkpoint is on %s", got)
	}
	w.until(func() bool { return len(b.state.Kept()) == 0 })
}

// TestMoveFails checks that a checkpoint stays where it is if it cannot move.
func TestMoveFails(t *testing.T) {
	w := newWorld(t, time.Hour)
	a, b := w.join("a"), w.join("b")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	refused := errors.New("the store is down")
	_, err := w.Import(t.Context(), kept.Checkpoint, kept.description, func(engine.ExportFile, io.WriterAt) error { return refused })
	if !errors.Is(err, refused) || len(b.state.Kept()) > 0 {
		t.Errorf("Import: %v; the other node has %v", err, b.state.Kept())
	}
	if _, err := w.Drain("b", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Import(t.Context(), kept.Checkpoint, kept.description, kept.fetch); !errors.Is(err, engine.ErrNoRoom) {
		t.Errorf("Import without another node: %v", err)
	}
	if got := w.PlaceOf(engine.Source{Checkpoint: "ckp"}); got != "a" || len(a.state.Kept()) != 1 {
		t.Errorf("the checkpoint is on %q", got)
	}
	w.create("continues", func(s *engine.Spec) { s.Checkpoint = "ckp" })
	if got := w.PlaceOf(engine.Source{Instance: "continues"}); got != "a" {
		t.Errorf("it continues on %s", got)
	}
}

// refuser is a node that takes no checkpoint.
type refuser struct{ *memory.Keeper }

func (refuser) Import(context.Context, engine.Checkpoint, []byte, engine.Fetch) (engine.Checkpoint, error) {
	return engine.Checkpoint{}, errors.New("its disk is broken")
}

// TestMoveGoesOn checks that a node that takes no checkpoint does not keep it from another.
func TestMoveGoesOn(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	w.cut(a)
	for _, name := range []string{"b", "c", "d"} {
		m := w.join(name)
		if name == "d" {
			continue
		}
		m.server = remote.NewServer(remote.Config{
			Engine: refuser{m.engine}, Roots: roots{}, AsideDir: t.TempDir(), Log: w.cfg.Log,
			Report: func() remote.Report { return remote.Report{FreeMemory: 16 << 30, FreeDisk: 16 << 30} },
		})
		w.cut(m)
		w.attach(m)
	}
	if _, err := w.Import(t.Context(), kept.Checkpoint, kept.description, kept.fetch); err != nil {
		t.Fatal(err)
	}
	if got := w.PlaceOf(engine.Source{Checkpoint: "ckp"}); got != "d" {
		t.Errorf("the checkpoint is on %s", got)
	}
}

// TestMoveAfterCutOff checks that what an import that was cut off has left, which belongs to
// nobody, is replaced on the same node, and stays.
func TestMoveAfterCutOff(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	nobodys := kept.Checkpoint
	nobodys.Owner = ""
	w.cut(a)
	b := w.join("b")
	if _, err := b.engine.Import(t.Context(), nobodys, kept.description, kept.fetch); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove("a"); err != nil {
		t.Fatal(err)
	}
	w.cut(b)
	w.attach(b)
	w.standing("ckp", engine.StandingReady) // then the rest tests something
	if _, err := w.Import(t.Context(), kept.Checkpoint, kept.description, kept.fetch); err != nil {
		t.Fatal(err)
	}
	w.cut(b)
	w.attach(b)
	if all, err := w.Checkpoints(t.Context()); err != nil || len(all) != 1 || all[0].Owner != "red" || len(b.state.Kept()) != 1 {
		t.Errorf("kept are %+v, %v; the node has %v", all, err, b.state.Kept())
	}
}

// poisoner is a node that sends a program of its own.
type poisoner struct{ *memory.Keeper }

func (p poisoner) Export(ctx context.Context, id string) (*engine.Export, error) {
	out, err := p.Keeper.Export(ctx, id)
	if err == nil {
		out.Owner = "blue"
		out.Root.Digest = "another"
		out.Files = append(out.Files, engine.ExportFile{Name: "program", Size: 6, Shared: "program-of-all", ReadCloser: io.NopCloser(strings.NewReader("poison"))})
	}
	return out, err
}

// TestProgramsOfNodes checks that no program is taken from a node, and that it does not
// decide whose its checkpoints are.
func TestProgramsOfNodes(t *testing.T) {
	for name, shared := range map[string]func(string) (io.ReadCloser, error){
		"own":     func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("genuine")), nil },
		"unknown": func(string) (io.ReadCloser, error) { return nil, errors.New("no such program") },
		"none":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, time.Hour)
			w.cfg.Shared = shared
			w.restart()
			m := w.join("a")
			m.server = remote.NewServer(remote.Config{
				Engine: poisoner{m.engine}, Roots: roots{}, AsideDir: t.TempDir(), Log: w.cfg.Log,
				Report: func() remote.Report { return remote.Report{FreeMemory: 8 << 30, FreeDisk: 8 << 30} },
			})
			w.cut(m)
			w.attach(m)
			w.pausedOn("a", "ckp")
			out, err := w.Export(t.Context(), "ckp")
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if out.Owner != "red" || out.Root.Digest != "d" {
				t.Errorf("the node has decided that it is %+v", out.Checkpoint)
			}
			got, err := io.ReadAll(out.Files[len(out.Files)-1])
			switch {
			case bytes.Contains(got, []byte("poison")):
				t.Error("the node's program was taken")
			case name == "own" && (err != nil || string(got) != "genuine"):
				t.Errorf("the program is %q, %v", got, err)
			case name != "own" && (err == nil || !strings.Contains(err.Error(), "neither the server nor the object store")):
				t.Errorf("a program that the server does not have: %q, %v", got, err)
			}
		})
	}
}

// TestPlaceOfImports checks where a checkpoint moves: where there is room for it, and for
// what is mounted.
func TestPlaceOfImports(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.join("a")
	w.join("b")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	large := kept.Checkpoint
	large.SizeBytes = 1 << 40
	if _, err := w.Import(t.Context(), large, kept.description, kept.fetch); !errors.Is(err, engine.ErrNoRoom) {
		t.Errorf("Import of more than there is disk: %v", err)
	}
	bound := &engine.Spec{Mounts: []engine.Mount{{Source: "/of/the/server", Target: "/x"}}}
	if _, err := w.ImportFor(t.Context(), bound, kept.Checkpoint, kept.description, kept.fetch, nil); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("Import for directories of the server: %v", err)
	}
}

// TestLeave checks that a node that has stopped and started again is as it was before.
func TestLeave(t *testing.T) {
	move := &sandbox.DrainRequest{Move: true, Resume: true}
	for name, before := range map[string]*sandbox.DrainRequest{"taking": nil, "drained": {}, "moving": move} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, time.Hour)
			w.join("a")
			if _, err := w.Drain("a", before); err != nil {
				t.Fatal(err)
			}
			state, moving := w.state("a"), w.Moving()
			for range 2 {
				if err := w.Leave("a"); err != nil {
					t.Fatal(err)
				}
			}
			if !w.Moving()["a"].Move || w.state("a") != sandbox.NodeDraining {
				t.Errorf("the node that leaves is %s, %v", w.state("a"), w.Moving())
			}
			if changed, err := w.Return("a"); err != nil || !changed {
				t.Errorf("it returns: %t, %v", changed, err)
			}
			if got := w.Moving(); w.state("a") != state || !maps.Equal(got, moving) {
				t.Errorf("the node that has returned is %s, %v, want %s, %v", w.state("a"), got, state, moving)
			}
			if changed, err := w.Return("a"); err != nil || changed {
				t.Errorf("it returns again: %t, %v", changed, err)
			}
		})
	}
}

// TestSetAside checks that a checkpoint of a node that was set aside comes back as what the
// server knew of it, and that what earlier versions have set aside comes back.
func TestSetAside(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.join("a")
	w.pausedOn("a", "ckp")
	before, err := w.Checkpoints(t.Context())
	if err != nil || len(before) != 1 || before[0].Owner != "red" {
		t.Fatalf("the checkpoints are %+v, %v", before, err)
	}
	dir := filepath.Join(t.TempDir(), "aside")
	setAside := func() {
		t.Helper()
		if err := w.SetAside(t.Context(), "ckp", dir); err != nil {
			t.Fatal(err)
		}
	}
	setAside()
	got, err := w.BringBack(t.Context(), "ckp", dir)
	if err != nil || got.Owner != "red" || string(got.Label) != `"label"` || got.Root.Digest != before[0].Root.Digest {
		t.Errorf("it comes back as %+v, %v, want %+v", got, err, before[0])
	}
	setAside()
	if err := os.WriteFile(filepath.Join(dir, "node"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := w.BringBack(t.Context(), "ckp", dir); err != nil || got.ID != "ckp" || got.Owner != "" {
		t.Errorf("from an earlier version, it comes back as %+v, %v", got, err)
	}
}
