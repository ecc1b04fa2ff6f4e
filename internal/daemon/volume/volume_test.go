package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) (*Dir, string) {
	t.Helper()
	top := t.TempDir()
	d, err := Open(filepath.Join(top, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create("vol-a", nil); err != nil {
		t.Fatal(err)
	}
	return d, top
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dig makes nested directories, deeper than any path can be long, and leaves a file in the
// last one.
func dig(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := openDir(unix.AT_FDCWD, dir)
	must(t, err)
	name := strings.Repeat("n", 200)
	for range depth {
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := openDir(fd, name)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	must(t, errors.Join(unix.Close(f), unix.Close(fd)))
}

func TestUsed(t *testing.T) {
	d, top := open(t)
	path := d.Path("vol-a")
	outside := filepath.Join(top, "outside")
	must(t, os.Mkdir(outside, 0o700))
	must(t, os.WriteFile(filepath.Join(outside, "big"), make([]byte, 8<<20), 0o600))
	must(t, os.Mkdir(filepath.Join(path, "d"), 0o700))
	must(t, os.WriteFile(filepath.Join(path, "d", "f"), make([]byte, 1<<20), 0o600))
	must(t, os.Link(filepath.Join(path, "d", "f"), filepath.Join(path, "again")))
	must(t, os.Symlink(outside, filepath.Join(path, "d", "link")))
	must(t, os.Symlink("/", filepath.Join(path, "root")))
	const entries = 5
	got, err := d.Used(t.Context(), "vol-a", 1<<30)
	must(t, err)
	if got < 1<<20 || got > 1<<20+2*entries*MinEntryBytes {
		t.Errorf("it holds %d bytes, want about %d", got, 1<<20)
	}
	// Empty files count too, and counting stops at the limit.
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(path, "d", strings.Repeat("x", i+1)), nil, 0o600))
	}
	got, err = d.Used(t.Context(), "vol-a", 1<<30)
	if must(t, err); got < 1<<20+200*MinEntryBytes {
		t.Errorf("with 200 empty files it holds %d bytes", got)
	}
	if _, err := d.Used(t.Context(), "vol-none", 1); err == nil {
		t.Error("a missing volume was measured")
	}
	// A wide tree must not make the server hold all of its names in memory.
	d.maxQueued = 64 << 10
	for i := range 300 {
		must(t, os.Mkdir(filepath.Join(path, "d", strconv.Itoa(i)+strings.Repeat("n", 200)), 0o700))
	}
	if _, err := d.Used(t.Context(), "vol-a", 1<<30); !errors.Is(err, ErrUnmeasured) {
		t.Errorf("300 directories beside each other: %v", err)
	}
	d.maxQueued = defaultMaxQueued
	if _, err := d.Used(t.Context(), "vol-a", 1<<30); err != nil {
		t.Error(err)
	}
	dig(t, path, 30)
	if _, err := d.Used(t.Context(), "vol-a", 1<<30); !errors.Is(err, ErrUnmeasured) {
		t.Errorf("directories that no path leads to: %v", err)
	}
}

// TestRemove checks that hostile trees are removed, and nothing outside them.
func TestRemove(t *testing.T) {
	d, top := open(t)
	path := d.Path("vol-a")
	outside := filepath.Join(top, "outside")
	must(t, os.Mkdir(outside, 0o700))
	must(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	must(t, os.Symlink(outside, filepath.Join(path, "link")))
	must(t, os.MkdirAll(filepath.Join(path, "a", "b"), 0o700))
	must(t, os.Symlink("../../../../outside", filepath.Join(path, "a", "b", "link")))
	must(t, os.MkdirAll(filepath.Join(path, removedPrefix+"1", removedPrefix+"2"), 0o700))
	must(t, os.WriteFile(filepath.Join(path, "a", removedPrefix+"3"), nil, 0o600))
	dig(t, filepath.Join(path, "a"), 300)
	must(t, os.MkdirAll(filepath.Join(path, "locked", "in"), 0o700))
	must(t, os.Chmod(filepath.Join(path, "locked", "in"), 0))
	must(t, os.Chmod(filepath.Join(path, "locked"), 0))
	must(t, d.Sync("vol-a"))
	must(t, d.Remove("vol-a"))
	must(t, d.Remove("vol-a"))
	left, err := os.ReadDir(filepath.Join(top, "volumes"))
	if err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "..", "a/b", "A", ".gone-x"} {
		if d.Create(bad, nil) == nil || d.Remove(bad) == nil {
			t.Errorf("%q is taken for a volume", bad)
		}
	}
}
