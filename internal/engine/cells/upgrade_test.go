package cells_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/guest/agentbin"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// openWith returns an engine that was started from a program of the user's.
func openWith(t *testing.T, dir, executable string) *cells.Engine {
	t.Helper()
	agent, err := agentbin.Binary()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := agentbin.Digest()
	if err != nil {
		t.Fatal(err)
	}
	e, err := cells.New(cells.Config{FirstUserID: 1 << 19, UserIDs: 1 << 28,
		Dir: dir, Agent: agent, AgentDigest: digest, Executable: executable,
		Log: slog.New(slog.NewTextHandler(logWriter{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// programs lists the programs that the engine keeps.
func (r *rig) programs(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestCheckpointSurvivesUpgrade checks that a sandbox whose memory was saved by one
// version continues under the next, even if the new version was written to the file of
// the first, and that it runs the program that saved it.
func TestCheckpointSurvivesUpgrade(t *testing.T) {
	r := newRig(t)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	// On the same file system, where the engine would only link it.
	installed := filepath.Join(r.dir, "cove")
	first, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(installed, first, 0o755); err != nil {
		t.Fatal(err)
	}
	// Any other file is another version; a program may have additional bytes at its end.
	second := filepath.Join(r.dir, "second")
	if err := os.WriteFile(second, append(slices.Clip(first), 0), 0o755); err != nil {
		t.Fatal(err)
	}

	r.Engine = openWith(t, r.dir, installed)
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "echo kept > /dev/shm/memory; sleep 1000 > /dev/null 2>&1 & disown")
	if _, err := r.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Durable: true, Commit: func(engine.Checkpoint) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	kept := programOf(t, filepath.Join(r.dir, "checkpoints", "ckp-one", "manifest.json"))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	r.Engine = openWith(t, r.dir, second)
	overwrite(t, installed, second)
	data, err := os.ReadFile(filepath.Join(r.dir, "bin", kept))
	if err != nil || !bytes.Equal(data, first) {
		t.Fatalf("the kept program is not the first version: %d bytes, %v", len(data), err)
	}
	c = r.create(t, "sbx-two", "ckp-one", false)
	if got := shell(t, c, "cat /dev/shm/memory; pgrep -c sleep"); got != "kept\n1\n" {
		t.Errorf("the restored one says %q", got)
	}
	if got := executableOf(t, r.dir, "sbx-two"); got != kept {
		t.Errorf("the restored one runs %s, want %s", got, kept)
	}
	// New sandboxes, and those that start from files only, run the second version.
	r.create(t, "sbx-new", "", false)
	r.create(t, "sbx-files", "ckp-one", true)
	for _, id := range []string{"sbx-new", "sbx-files"} {
		if got := executableOf(t, r.dir, id); got == kept {
			t.Errorf("%s runs the first version", id)
		}
	}
	// A checkpoint of the restored sandbox needs the first version, too.
	r.keep(t, "sbx-two", "ckp-two", false)
	if got := programOf(t, filepath.Join(r.dir, "checkpoints", "ckp-two", "manifest.json")); got != kept {
		t.Errorf("the second checkpoint needs %s, want %s", got, kept)
	}
	reopen := func() {
		t.Helper()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r.Engine = openWith(t, r.dir, second)
	}
	// The first version is removed when neither a checkpoint nor a cell needs it.
	for _, step := range []func() error{
		func() error { return r.RemoveCheckpoint(t.Context(), "ckp-one") },
		func() error { return r.RemoveCheckpoint(t.Context(), "ckp-two") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if reopen(); len(r.programs(t)) != 2 {
			t.Errorf("programs: %v, want two", r.programs(t))
		}
	}
	if err := r.Destroy(t.Context(), "sbx-two"); err != nil {
		t.Fatal(err)
	}
	if reopen(); len(r.programs(t)) != 1 || r.programs(t)[0] == kept {
		t.Errorf("programs: %v, want the second version's", r.programs(t))
	}
}

// TestKeptProgramGone checks that a lost program is reported, and that the files still
// start.
func TestKeptProgramGone(t *testing.T) {
	r := newRig(t)
	r.create(t, "sbx-one", "", false)
	r.keep(t, "sbx-one", "ckp-one", false)
	manifest := filepath.Join(r.dir, "checkpoints", "ckp-one", "manifest.json")
	data, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte(programOf(t, manifest)), []byte("cove-0-0-0"))
	if err := os.WriteFile(manifest, data, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := r.spec
	spec.ID, spec.Checkpoint = "sbx-two", "ckp-one"
	if _, err := r.Create(t.Context(), spec); sandbox.CodeOf(err) != sandbox.CodeUnsupported || !strings.Contains(err.Error(), "files_only") {
		t.Errorf("%v, want that the program is gone, and what to do", err)
	}
	wantAlive(t, r.create(t, "sbx-two", "ckp-one", true))
}

func programOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ Program string }
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m.Program
}

// executableOf returns the name of the program that a cell runs.
func executableOf(t *testing.T, dir, id string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "cells", id, "process"))
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Readlink(filepath.Join("/proc", strings.Fields(string(data))[0], "exe"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(filepath.Base(exe), " (deleted)")
}

// overwrite writes a program to the file of another, once nothing runs from that file.
func overwrite(t *testing.T, path, with string) {
	t.Helper()
	data, err := os.ReadFile(with)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err == nil {
			_, err = f.Write(data)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			return
		}
		if !errors.Is(err, unix.ETXTBSY) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
