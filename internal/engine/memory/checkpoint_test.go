package memory

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// keeping returns a keeper with one instance, which has two files.
func keeping(t *testing.T) (*State, *Keeper) {
	t.Helper()
	s := newState(t)
	e := NewKeeper(s)
	if _, err := e.Create(t.Context(), engine.Spec{ID: "one", Root: engine.Root{Digest: "d"}, Resources: sandbox.Resources{MemoryMiB: 64, DiskMiB: 16}}); err != nil {
		t.Fatal(err)
	}
	put(t, s, "one", "a", "first")
	if err := os.Symlink("a", filepath.Join(s.dir, "one", workDir, "link")); err != nil {
		t.Fatal(err)
	}
	return s, e
}

func put(t *testing.T, s *State, id, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, id, workDir, name), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func ids(s *State) (all []string) {
	for _, c := range s.Kept() {
		all = append(all, c.ID)
	}
	return all
}

func changes(t *testing.T, e *Keeper, of engine.Source) map[string]string {
	t.Helper()
	r, err := e.Changes(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(data) + h.Linkname
	}
}

func TestCheckpoint(t *testing.T) {
	s, e := keeping(t)
	c, err := e.Checkpoint(t.Context(), "one", "ckp-1", engine.CheckpointOptions{})
	if err != nil || c.ID != "ckp-1" || c.Root.Digest != "d" || c.Resources.MemoryMiB != 64 || c.SizeBytes <= 0 || c.Stopped <= 0 || c.CreatedAt.IsZero() {
		t.Fatalf("Checkpoint: %+v, %v", c, err)
	}
	put(t, s, "one", "a", "second")
	put(t, s, "one", "b", "more")
	want := map[string]string{"./": "", "./workspace/": "", "./workspace/a": "first", "./workspace/link": "a"}
	if diff := cmp.Diff(want, changes(t, e, engine.Source{Checkpoint: "ckp-1"})); diff != "" {
		t.Errorf("changes of the checkpoint (-want +got):\n%s", diff)
	}
	spec, _ := s.Spec("one")
	spec.ID, spec.Checkpoint = "two", "ckp-1"
	if _, err := e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveCheckpoint(t.Context(), "ckp-1"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, changes(t, e, engine.Source{Instance: "two"})); diff != "" {
		t.Errorf("what was restored (-want +got):\n%s", diff)
	}
	if got := changes(t, e, engine.Source{Instance: "one"})["./workspace/a"]; got != "second" {
		t.Errorf("the first has %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "checkpoint*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestCheckpointRefused(t *testing.T) {
	s, e := keeping(t)
	if _, err := e.Checkpoint(t.Context(), "one", "ckp-files", engine.CheckpointOptions{FilesOnly: true}); err != nil {
		t.Fatal(err)
	}
	good, _ := s.Spec("one")
	good.ID, good.Checkpoint, good.FilesOnly = "two", "ckp-files", true
	for name, change := range map[string]func(*engine.Spec){
		"unknown":   func(s *engine.Spec) { s.Checkpoint = "ckp-none" },
		"no memory": func(s *engine.Spec) { s.FilesOnly = false },
		"root":      func(s *engine.Spec) { s.Root.Digest = "other" },
		"disk":      func(s *engine.Spec) { s.Resources.DiskMiB++ },
	} {
		spec := good
		change(&spec)
		if _, err := e.Create(t.Context(), spec); err == nil || name == "unknown" && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
		if left := s.IDs(); len(left) != 1 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	good.Resources.VCPUs, good.Resources.MemoryMiB, good.Resources.MaxPIDs = 7, 777, 77
	if _, err := e.Create(t.Context(), good); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ instance, id string }{{"one", "ckp-files"}, {"none", "ckp-2"}} {
		_, err := e.Checkpoint(t.Context(), c.instance, c.id, engine.CheckpointOptions{})
		if err == nil || c.instance == "none" && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, of := range []engine.Source{{}, {Instance: "none"}, {Checkpoint: "none"}, {Instance: "one", Checkpoint: "ckp-files"}} {
		if _, err := e.Changes(t.Context(), of); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("changes of %+v: %v", of, err)
		}
	}
	if err := e.RemoveCheckpoint(t.Context(), "ckp-none"); err != nil {
		t.Error(err)
	}
	if got := ids(s); !slices.Equal(got, []string{"ckp-files"}) {
		t.Errorf("kept %v", got)
	}
}

func TestCommit(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name      string
		trap      func(*State)
		commit    error
		committed bool // Commit was called and returned nil
		ends      bool // the instance is gone
		fails     bool
	}{
		{name: "good", committed: true, ends: true},
		{name: "refused", commit: boom, fails: true},
		{name: "before", trap: func(s *State) { s.Fail(StepCommit, Before, boom) }, fails: true},
		{name: "crash after", trap: func(s *State) { s.Fail(StepCommit, After, boom) }, committed: true, fails: true},
		{name: "not written", trap: func(s *State) { s.Fail(StepCheckpoint, After, boom) }, fails: true},
		{name: "does not end", trap: func(s *State) { s.Fail(StepDestroy, Before, boom) }, committed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, e := keeping(t)
			if c.trap != nil {
				c.trap(s)
			}
			committed := false
			_, err := e.Checkpoint(t.Context(), "one", "ckp-1", engine.CheckpointOptions{Commit: func(k engine.Checkpoint) error {
				committed = k.ID == "ckp-1" && c.commit == nil
				return c.commit
			}})
			if errors.Is(err, boom) != c.fails || committed != c.committed {
				t.Errorf("Checkpoint: %v, committed %v", err, committed)
			}
			if got := len(s.Kept()) == 1; got != c.committed {
				t.Errorf("kept %v", s.Kept())
			}
			if got := len(s.IDs()) == 0; got != c.ends {
				t.Errorf("instances %v", s.IDs())
			}
		})
	}
}

// TestNotAKeeper checks that there is an engine that keeps no checkpoints.
func TestNotAKeeper(t *testing.T) {
	var e engine.Engine = New(newState(t))
	if _, ok := e.(engine.Checkpointer); ok {
		t.Error("every engine keeps states")
	}
}

func TestCancelledCheckpoint(t *testing.T) {
	s, e := keeping(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.Trap(StepCommit, Before, func(context.Context) error { cancel(); return nil })
	_, err := e.Checkpoint(ctx, "one", "ckp-1", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return nil }})
	if !errors.Is(err, context.Canceled) || len(s.Kept()) != 0 || len(s.IDs()) != 1 {
		t.Errorf("Checkpoint: %v, kept %v, instances %v", err, s.Kept(), s.IDs())
	}
}
