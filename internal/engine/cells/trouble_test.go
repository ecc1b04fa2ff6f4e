package cells_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// wantNone checks that no checkpoint and no part of one is left.
func (r *rig) wantNone(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "checkpoints"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left of checkpoints: %v, %v", entries, err)
	}
}

// wantAlive checks that a sandbox runs, and can write and read.
func wantAlive(t *testing.T, c *agentclient.Client) {
	t.Helper()
	if got := shell(t, c, "echo alive > /srv/alive; cat /srv/alive"); got != "alive\n" {
		t.Errorf("the sandbox says %q", got)
	}
}

// TestDamagedCheckpoint checks that every use of a damaged checkpoint is refused, with a
// message for its owner.
func TestDamagedCheckpoint(t *testing.T) {
	r := newRig(t)
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "head -c 3000000 /dev/urandom > /srv/data")
	edit := func(name string, change func([]byte) []byte) func(string) error {
		return func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, name), change(data), 0o600)
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b }
	cut := func(b []byte) []byte { return b[:len(b)*2/3] }
	for name, tt := range map[string]struct {
		damage    func(dir string) error
		filesOnly bool
	}{
		"ckp-pages":      {edit("pages.img", flip), false},
		"ckp-state":      {edit("checkpoint.img", cut), false},
		"ckp-state-bit":  {edit("checkpoint.img", flip), false},
		"ckp-tree":       {edit("files_tree.tar.zst", flip), false},
		"ckp-manifest":   {func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) }, false},
		"ckp-files":      {edit("files_pages.img.zst", flip), true},
		"ckp-files-tree": {func(dir string) error { return os.Remove(filepath.Join(dir, "files_tree.tar.zst")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r.keep(t, "sbx-one", name, tt.filesOnly)
			if err := tt.damage(filepath.Join(r.dir, "checkpoints", name)); err != nil {
				t.Fatal(err)
			}
			spec := r.spec
			spec.ID, spec.Checkpoint = "sbx-two", name
			for _, filesOnly := range []bool{tt.filesOnly, true} {
				spec.FilesOnly = filesOnly
				_, err := r.Create(t.Context(), spec)
				wantDamaged(t, err)
			}
			_, err := r.Changes(t.Context(), engine.Source{Checkpoint: name})
			wantDamaged(t, err)
			all, err := r.List(t.Context())
			if err != nil || len(all) != 1 {
				t.Errorf("instances: %+v, %v", all, err)
			}
			if err := r.RemoveCheckpoint(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	r.wantNone(t)
	wantAlive(t, c)
}

// TestFilesLostWithCell checks that nobody reads the files of a checkpoint that is still being
// written before it is complete, and that every use of them is refused, with a message for
// their owner, if the cell that writes it has ended.
func TestFilesLostWithCell(t *testing.T) {
	r := newRig(t)
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "echo written > /srv/data")
	r.keep(t, "sbx-one", "ckp-one", false)
	dir := filepath.Join(r.dir, "checkpoints", "ckp-one")
	uses := map[string]func(context.Context) error{
		"changes": func(ctx context.Context) error {
			in, err := r.Changes(ctx, engine.Source{Checkpoint: "ckp-one"})
			if err == nil {
				err = in.Close()
			}
			return err
		},
		"boot": func(ctx context.Context) error {
			spec := r.spec
			spec.ID, spec.Checkpoint, spec.FilesOnly = "sbx-two", "ckp-one", true
			_, err := r.Create(ctx, spec)
			return err
		},
	}
	wantLost := func(use string, err error) {
		t.Helper()
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "are lost") {
			t.Errorf("%s: %v, want that the files are lost", use, err)
		}
	}
	for use, read := range uses {
		writing, err := cell.Listen(dir, cell.PagesSocket)
		if err != nil {
			t.Fatal(err)
		}
		wanted, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 2)
		go func() { done <- read(wanted) }()
		awaits := func() net.Conn {
			conn, err := writing.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		first := awaits()
		cancel(errors.New("the caller has gone"))
		if err := <-done; err == nil || sandbox.CodeOf(err) == sandbox.CodeUnavailable {
			t.Errorf("%s: it did not wait, or not only while it was wanted: %v", use, err)
		}
		first.Close()
		go func() { done <- read(t.Context()) }()
		second := awaits()
		// As when a cell is killed: the socket stays.
		writing.Close()
		second.Close()
		wantLost(use, <-done)
		wantLost(use, read(t.Context()))
	}
	if err := os.Remove(filepath.Join(dir, cell.PagesSocket)); err != nil {
		t.Fatal(err)
	}
	for use, read := range uses {
		if err := read(t.Context()); err != nil {
			t.Errorf("%s, of a complete checkpoint: %v", use, err)
		}
	}
}

func wantDamaged(t *testing.T, err error) {
	t.Helper()
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v, want that it is damaged", err)
	}
}

// TestDiskFull checks that a disk that becomes full while a checkpoint is written does no
// harm.
func TestDiskFull(t *testing.T) {
	needs.Root(t)
	r := newRig(t)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.dir, "checkpoints")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r.Engine = open(t, r.dir)
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "head -c 4000000 /dev/urandom > /srv/data; head -c 8000000 /dev/urandom > /dev/shm/memory")
	for _, opts := range []engine.CheckpointOptions{
		{Durable: true}, {FilesOnly: true}, {Commit: func(engine.Checkpoint) error { t.Error("committed"); return nil }},
	} {
		_, err := r.Checkpoint(t.Context(), "sbx-one", "ckp-one", opts)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("%+v: %v, want that the disk is full", opts, err)
		}
		r.wantNone(t)
		wantAlive(t, c)
	}
	// With room again, everything works again.
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	sum := shell(t, c, "cat /srv/data /dev/shm/memory | sha256sum")
	r.keep(t, "sbx-one", "ckp-one", false)
	if got := shell(t, r.create(t, "sbx-two", "ckp-one", false), "cat /srv/data /dev/shm/memory | sha256sum"); got != sum {
		t.Errorf("the restored one holds %q, want %q", got, sum)
	}
}

// TestCheckpointsAtOnce makes two checkpoints of one instance at once, which are made one
// after the other; of two with the same id, one is refused.
func TestCheckpointsAtOnce(t *testing.T) {
	r := newRig(t)
	c := r.create(t, "sbx-one", "", false)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i, id := range []string{"ckp-one", "ckp-two", "ckp-same", "ckp-same"} {
		wg.Go(func() { _, errs[i] = r.Checkpoint(t.Context(), "sbx-one", id, engine.CheckpointOptions{}) })
	}
	wg.Wait()
	if errs[0] != nil || errs[1] != nil || (errs[2] == nil) == (errs[3] == nil) {
		t.Errorf("errors: %v", errs)
	}
	list, err := r.Checkpoints(t.Context())
	if err != nil || len(list) != 3 {
		t.Errorf("kept: %+v, %v", list, err)
	}
	wantAlive(t, c)
	for _, id := range []string{"one", "two", "same"} {
		wantAlive(t, r.create(t, "sbx-of-"+id, "ckp-"+id, false))
	}
}

// TestDestroyDuringCheckpoint checks that Destroy during a checkpoint ends both, whatever
// stage the checkpoint has reached.
func TestDestroyDuringCheckpoint(t *testing.T) {
	r := newRig(t)
	for i, delay := range []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond} {
		r.create(t, "sbx-one", "", false)
		done := make(chan error, 1)
		go func() {
			_, err := r.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{})
			done <- err
		}()
		// Each delay hits a different step; the outcome may be either.
		awaitFile(t, filepath.Join(r.dir, "checkpoints", "*ckp-one"))
		time.Sleep(delay)
		if err := r.Destroy(t.Context(), "sbx-one"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Logf("after %s: %v", delay, err)
			if err == nil {
				wantAlive(t, r.create(t, "sbx-two", "ckp-one", false))
				if err := r.Destroy(t.Context(), "sbx-two"); err != nil {
					t.Fatal(err)
				}
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the checkpoint does not end")
		}
		if err := r.RemoveCheckpoint(t.Context(), "ckp-one"); err != nil {
			t.Error(err)
		}
		r.wantNone(t)
		if all, err := r.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%d: instances: %+v, %v", i, all, err)
		}
	}
}

// TestDestroyWhileHeld checks that Destroy of an instance that is held does not block the
// committed checkpoint.
func TestDestroyWhileHeld(t *testing.T) {
	r := newRig(t)
	r.create(t, "sbx-one", "", false)
	_, err := r.Checkpoint(t.Context(), "sbx-one", "ckp-one", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error {
		return r.Destroy(t.Context(), "sbx-one")
	}})
	if err != nil {
		t.Fatal(err)
	}
	wantAlive(t, r.create(t, "sbx-one", "ckp-one", false))
}

func awaitFile(t *testing.T, pattern string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %s", pattern)
		}
	}
}

// TestCellKilledDuringCheckpoint checks that a cell that is killed while it writes a
// checkpoint leaves none behind.
func TestCellKilledDuringCheckpoint(t *testing.T) {
	r := newRig(t)
	failed := make(chan engine.Status, 8)
	r.Notify(func(st engine.Status) { failed <- st })
	id, err := r.killWriting(t, killCell)
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("the checkpoint ended with %v", err)
	}
	r.wantNone(t)
	for end := time.After(time.Minute); ; {
		select {
		case st := <-failed:
			if st.ID == id {
				return
			}
			t.Logf("failed: %+v", st)
		case <-end:
			t.Fatal("no notice of the failure")
		}
	}
}

// TestSentryKilledDuringCheckpoint checks that a sandbox whose gVisor dies while it is
// saved is not reported as running.
func TestSentryKilledDuringCheckpoint(t *testing.T) {
	r := newRig(t)
	if _, err := r.killWriting(t, killSentry); err == nil || !strings.Contains(err.Error(), "ended while its state was being saved") {
		t.Errorf("the checkpoint ended with %v, want that the sandbox ended", err)
	}
	r.wantNone(t)
}

// killSentry kills the sentry of a cell, but not the cell.
func killSentry(t *testing.T, dir, id string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "cells", id, "process"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(data))[0])
	if err != nil {
		t.Fatal(err)
	}
	sentry, ok := covetest.SentryOf(pid)
	if !ok {
		t.Fatalf("cell %s has no sentry", id)
	}
	if err := unix.Kill(sentry, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// killWriting makes a sandbox and kills a process of it while it writes a checkpoint. If the
// checkpoint is finished before the process is killed, it tries again with another sandbox.
// It returns the sandbox and the error of the checkpoint.
func (r *rig) killWriting(t *testing.T, kill func(t *testing.T, dir, id string)) (id string, err error) {
	t.Helper()
	for try := range 5 {
		id = fmt.Sprint("sbx-", try)
		if err := r.killWritingOf(t, id, kill); err != nil {
			return id, err
		}
		if err := errors.Join(r.Destroy(t.Context(), id), r.RemoveCheckpoint(t.Context(), "ckp-one")); err != nil {
			t.Fatal(err)
		}
	}
	return id, nil
}

// killWritingOf is one attempt of killWriting.
func (r *rig) killWritingOf(t *testing.T, id string, kill func(t *testing.T, dir, id string)) error {
	t.Helper()
	shell(t, r.create(t, id, "", false), "head -c 100000000 /dev/urandom > /dev/shm/memory")
	done := make(chan error, 1)
	go func() {
		_, err := r.Checkpoint(t.Context(), id, "ckp-one", engine.CheckpointOptions{Durable: true})
		done <- err
	}()
	for {
		if _, err := os.Stat(filepath.Join(r.dir, "checkpoints", ".draft-ckp-one", "pages.img")); err == nil {
			kill(t, r.dir, id)
			return <-done
		}
		select {
		case err := <-done:
			return err
		case <-time.After(time.Millisecond):
		}
	}
}

// TestLimitsOfDeadCell checks that limits of an instance whose cell is gone do not fail
// as an internal error.
func TestLimitsOfDeadCell(t *testing.T) {
	r := newRig(t)
	spec := r.spec
	spec.ID = "sbx-one"
	one, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	killCell(t, r.dir, "sbx-one")
	if _, err := one.SetLimits(t.Context(), sandbox.Resources{MemoryMiB: 300}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("limits were changed with %v", err)
	}
}

// TestEngineClosedWhileHeld checks that an instance continues when the engine that holds
// it ends, and that the next engine finds it.
func TestEngineClosedWhileHeld(t *testing.T) {
	r := newRig(t)
	c := r.create(t, "sbx-one", "", false)
	shell(t, c, "echo before > /srv/before")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := r.Checkpoint(ctx, "sbx-one", "ckp-one", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error {
		cancel()
		return errors.Join(r.Close(), ctx.Err())
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the checkpoint ended with %v", err)
	}
	r.Engine = open(t, r.dir)
	r.wantNone(t)
	inst, err := r.Open(t.Context(), "sbx-one")
	if err != nil {
		t.Fatal(err)
	}
	c = agentclient.New("sbx-one", inst.Dial)
	t.Cleanup(c.Close)
	wantAlive(t, c)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { return r.KnowsLeft("sbx-one") }) {
		t.Error("the next one does not ask what the sandbox has yet to load")
	}
	r.keep(t, "sbx-one", "ckp-two", false)
	if got := shell(t, r.create(t, "sbx-two", "ckp-two", false), "cat /srv/before"); got != "before\n" {
		t.Errorf("the restored one has %q", got)
	}
}
