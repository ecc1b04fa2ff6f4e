package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/testing/needs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantFile compares a file of a directory; "" means that it must not exist.
func wantFile(t *testing.T, dir, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	if want == "" && errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v, want %q", name, got, err, want)
	}
}

// TestPowerLoss checks that a power failure before, during and after each call leaves the
// old or the new content.
func TestPowerLoss(t *testing.T) {
	disk := needs.NewDisk(t, 16)
	path := func(name string) string { return filepath.Join(disk.Dir, name) }
	lost := func(name, want string) {
		t.Helper()
		wantFile(t, disk.AfterPowerLoss(t), name, want)
	}
	// The power fails after the content is written, while its name still refers to the old
	// content.
	during := func(name, content, want string) func(*os.File) error {
		return func(f *os.File) error {
			_, err := f.WriteString(content)
			lost(name, want)
			return err
		}
	}
	must(t, durable.WriteFile(path("key"), []byte("old")))
	lost("key", "old")
	must(t, durable.Write(path("key"), during("key", "new", "old")))
	lost("key", "new")
	must(t, durable.Create(path("made"), during("made", "content", "")))
	lost("made", "content")

	must(t, os.Mkdir(path("draft"), 0o700))
	must(t, durable.WriteFile(path("draft/file"), []byte("content")))
	lost("final/file", "")
	must(t, durable.Rename(path("draft"), path("final")))
	lost("final/file", "content")
	lost("draft/file", "")
	must(t, os.Remove(path("key")))
	must(t, durable.SyncDir(disk.Dir))
	lost("key", "")
}

func TestFailure(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, durable.CreateFile(file, []byte("old")))
	errFull := errors.New("the disk is full")
	half := func(f *os.File) error {
		_, err := f.WriteString("ne")
		return errors.Join(err, errFull)
	}
	if err := durable.Write(file, half); !errors.Is(err, errFull) {
		t.Errorf("a write that fails gives %v", err)
	}
	if err := durable.CreateFile(file, []byte("new")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("to create a file that is there gives %v", err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("to write into no directory gives %v", err)
	}
	wantFile(t, dir, "file", "old")
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// TestTempFiles checks that files left by a crash can be distinguished from other files.
func TestTempFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, durable.Write(filepath.Join(dir, "file.json"), func(f *os.File) error {
		found, err := filepath.Glob(filepath.Join(dir, durable.TempFiles))
		if err != nil || len(found) != 1 || found[0] != f.Name() || filepath.Ext(f.Name()) == ".json" {
			t.Errorf("a crash would leave %v, %v", found, err)
		}
		return err
	}))
	if found, err := filepath.Glob(filepath.Join(dir, durable.TempFiles)); err != nil || len(found) != 0 {
		t.Errorf("left are %v, %v", found, err)
	}
}

// TestCreateOnce creates a file many times concurrently: one call succeeds.
func TestCreateOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			switch err := durable.CreateFile(file, []byte{byte(i)}); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("%d have made the file", n)
	}
}
