package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The server's disk is full or becomes full, for checkpoints or for the whole state directory:
// each verb of time does its work or says clearly that it cannot, sandboxes continue, and with
// room the verb works again. The second is for "make soak": TestWayOutOfFullDisk and
// TestDiskFullInBuild stand for it. In "make test", TestWayOutOfFullDisk, and TestDiskFull of
// package cells, stand for both.
func TestMoreDiskFull(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	places := []struct {
		name, path string
		mib        int
		left       int // bytes
	}{
		// The first is full when a part of a checkpoint is written.
		{"checkpoints", "engine/checkpoints", 128, 1 << 20}, {"state directory", "", 768, 0},
	}
	if !needs.Soak() {
		places = places[:1]
	}
	for _, place := range places {
		t.Run(place.name, func(t *testing.T) {
			dir := smallDisk(t, place.path, place.mib)
			d := covetest.Start(t, covetest.Options{StateDir: dir})
			// The checkpoint that fresh sandboxes start from is written once.
			undisturbed(t, d, snapshotting(t, d))
			for _, deed := range deeds {
				t.Run(deed.name, func(t *testing.T) {
					err := withoutRoom(t, d, deed.prepare(t, d), filepath.Join(dir, place.path), place.left)
					// Those that write a checkpoint have no room for it; a success would
					// say that the disk is not full.
					if slices.Contains([]string{"pause", "snapshot", "fork"}, deed.name) && err == nil {
						t.Error("it succeeded on a full disk")
					}
				})
			}
		})
	}
}

// smallDisk makes a directory for a daemon's state, in which the given path is a
// separate file system.
func smallDisk(t *testing.T, path string, mib int) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	at := filepath.Join(dir, path)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", mib)); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// withoutRoom calls the verb of a scene on a disk with only some bytes free, and again
// with room. It returns the first call's error.
func withoutRoom(t *testing.T, d *covetest.Daemon, s *scene, disk string, left int) error {
	fill(t, disk, left)
	actErr := s.act(t.Context())
	t.Logf("with %d bytes left: %v", left, actErr)
	want := s.after
	if actErr != nil {
		want = s.before
		clear := strings.Contains(actErr.Error(), "disk is full")
		if code := sandbox.CodeOf(actErr); code != sandbox.CodeUnavailable || strings.Contains(actErr.Error(), "\n") || !clear {
			t.Errorf("the error has the code %q: %v; want one that says that the disk is full", code, actErr)
		}
	}
	now, err := d.Settle(t.Context(), never, want)
	if err != nil {
		t.Errorf("while the disk is full: %v", err)
	}
	fill(t, disk, -1)
	if actErr != nil {
		if err := s.act(t.Context()); err != nil {
			t.Errorf("with room again: %v", err)
		}
		if now, err = d.Settle(t.Context(), never, s.after); err != nil {
			t.Errorf("with room again: %v", err)
		}
	}
	if s.extra != nil {
		s.extra(t, true)
	}
	usable(t, d, now)
	wipe(t, d, nil)
	return actErr
}

// fill fills a disk except for left bytes, or frees it if left is negative.
func fill(t *testing.T, disk string, left int) {
	t.Helper()
	path := filepath.Join(disk, ".filler")
	if left < 0 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(0)
	for block := make([]byte, 1<<20); len(block) > 0; {
		n, err := f.Write(block)
		size += int64(n)
		switch {
		case errors.Is(err, unix.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			t.Fatal(err)
		}
	}
	if err := f.Truncate(max(0, size-int64(left))); err != nil {
		t.Fatal(err)
	}
}
