package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// fullDisk mounts a file system of 32 MiB; fill leaves no byte of it free.
func fullDisk(t *testing.T) (dir string, fill func()) {
	t.Helper()
	needs.Root(t)
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n := 0
	return dir, func() {
		n++
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("filler", n)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// TestDeletionsOnFullDisk removes and ends everything on a disk without a free
// byte, which every other change finds full.
func TestDeletionsOnFullDisk(t *testing.T) {
	dir, fill := fullDisk(t)
	path := filepath.Join(dir, "cove.db")
	s := openFile(t, path)
	ctx, now := t.Context(), time.Now()
	addSandbox := func(i int) error {
		r := store.Record{Sandbox: sandbox.Sandbox{
			ID: fmt.Sprintf("sbx-%024d", i), Team: "t", State: sandbox.StateRunning, CreatedAt: now, LastActiveAt: now,
			Metadata: map[string]string{"note": strings.Repeat("x", 4000)},
		}}
		return s.CreateSandbox(ctx, r, store.Quota{})
	}
	for i := range 200 {
		if err := addSandbox(i); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		s.CreateSnapshot(ctx, store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-1", Team: "t", CreatedAt: now}}, store.Quota{}),
		s.CreateKey(ctx, sandbox.Key{ID: "key-1", Team: "t", CreatedAt: now}, []byte("hash")),
		s.PutTemplate(ctx, store.Template{Name: "tpl", UpdatedAt: now}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fill()
	// What is left of the journal's last block is soon used up.
	var err error
	for i := 1000; i < 3000 && err == nil; i++ {
		err = addSandbox(i)
	}
	if !full(err) {
		t.Fatalf("a change that needs room: %v, want that the disk is full", err)
	}
	if info, err := os.Stat(path + reserveSuffix); err != nil || info.Size() != ReserveBytes {
		t.Fatalf("the reserve is %v, %v; want it untouched", info, err)
	}
	for _, end := range []sandbox.State{sandbox.StateStopping, sandbox.StateKilled} {
		for i := range 200 {
			fill := func(r *store.Record) error { r.State, r.EndedAt = end, &now; return nil }
			if _, err := s.UpdateSandbox(ctx, fmt.Sprintf("sbx-%024d", i), store.Change{Apply: fill}); err != nil {
				t.Fatalf("sandbox %d to %s: %v", i, end, err)
			}
		}
	}
	_, keyErr := s.RevokeKey(ctx, "t", "key-1", now)
	n, endedErr := s.DeleteEndedSandboxes(ctx, now.Add(time.Second))
	for what, err := range map[string]error{
		"snapshot": s.DeleteSnapshot(ctx, "snap-1"), "template": s.DeleteTemplate(ctx, "tpl"), "key": keyErr, "ended": endedErr,
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n != 200 {
		t.Errorf("%d ended sandboxes deleted, want 200", n)
	}
	// A disk that has become full again does not keep the database from being opened.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fill()
	s = openFile(t, path)
	if err := s.DeleteSandbox(ctx, fmt.Sprintf("sbx-%024d", 1000)); err != nil {
		t.Errorf("after opening it on a full disk: %v", err)
	}
}

// TestReserveComesBack fills the reserve again when there is room.
func TestReserveComesBack(t *testing.T) {
	dir, fill := fullDisk(t)
	s := openFile(t, filepath.Join(dir, "cove.db"))
	size := func() int64 {
		info, err := os.Stat(s.db.reserve.path)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(s.db.reserve.path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 != info.Size() {
			t.Errorf("the reserve occupies %d bytes, its size is %d", st.Blocks*512, info.Size())
		}
		return info.Size()
	}
	if got := size(); got != ReserveBytes {
		t.Fatalf("the reserve has %d bytes, want %d", got, ReserveBytes)
	}
	fill()
	if !s.db.reserve.give() || size() != ReserveBytes-reserveStep {
		t.Fatalf("the reserve gave %d bytes, want %d", ReserveBytes-size(), reserveStep)
	}
	fill()
	if err := s.FillReserve(); err != nil || size() != ReserveBytes-reserveStep {
		t.Errorf("on a full disk: %d bytes, %v", size(), err)
	}
	if err := os.Remove(filepath.Join(dir, "filler1")); err != nil {
		t.Fatal(err)
	}
	if err := s.FillReserve(); err != nil || size() != ReserveBytes {
		t.Errorf("with room: %d bytes, %v", size(), err)
	}
}
