package service

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func init() {
	notOnSandbox["ListOrphans"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListOrphans(ctx, sandbox.Page{})
		return err
	}
	notOnSandbox["RecoverOrphan"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.RecoverOrphan(ctx, "ckp-none")
		return err
	}
	scopeOf["ListOrphans"], scopeOf["RecoverOrphan"] = sandbox.ScopeAdmin, sandbox.ScopeAdmin
}

// plenty reports a disk with enough room.
func plenty() (free, total int64, err error) { return 1 << 40, 1 << 41, nil }

// setsAside makes a harness keep volumes, and set aside what no record names.
func setsAside(t *testing.T) func(*Config) {
	dir := t.TempDir()
	return func(c *Config) {
		keepVolumes(filepath.Join(dir, "volumes"))(c)
		d, err := orphan.Open(filepath.Join(dir, "orphans"))
		if err != nil {
			panic(err)
		}
		c.Orphans, c.Room = d, plenty
	}
}

// operator is the user who runs the server.
func operator(t *testing.T) context.Context {
	return sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
}

// loseRecords ends the daemon, removes its database, and starts another daemon.
func (w *harness) loseRecords() {
	w.t.Helper()
	w.stop()
	w.path = filepath.Join(w.t.TempDir(), "cove.db")
	w.start()
}

// orphans returns the orphans that a caller sees, by the sandbox or volume they come
// from.
func (w *harness) orphans(ctx context.Context) map[string]sandbox.Orphan {
	w.t.Helper()
	list, err := w.ListOrphans(ctx, sandbox.Page{})
	must(w.t, err)
	by := map[string]sandbox.Orphan{}
	for _, o := range list.Items {
		if o.Name != "" {
			by[o.Name] = o
		} else {
			by[o.SandboxID] = o
		}
	}
	return by
}

func (w *harness) waitForOrphans(n int) map[string]sandbox.Orphan {
	w.t.Helper()
	ctx := sandbox.WithCaller(context.Background(), sandbox.LocalCaller())
	wait(w.t, func() bool {
		list, err := w.ListOrphans(ctx, sandbox.Page{})
		return err == nil && len(list.Items) == n
	}, func() string {
		list, err := w.ListOrphans(ctx, sandbox.Page{})
		return strings.Join([]string{"set aside are", sandboxText(list), "error", sandbox.MessageOf(err)}, " ")
	})
	return w.orphans(ctx)
}

func sandboxText(list *sandbox.List[sandbox.Orphan]) string {
	var all []string
	for _, o := range list.Items {
		all = append(all, o.ID+" "+o.Name)
	}
	return strings.Join(all, ", ")
}

// A lost database loses no state: snapshots, paused and running sandboxes and
// volumes are set aside, and come back as records.
func TestRecoverAfterALostDatabase(t *testing.T) {
	w := newHarness(t, setsAside(t))
	ctx := asRed(t)
	v, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data", SizeMiB: 77})
	must(t, err)
	_, err = w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "empty"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.cfg.Volumes.Path(v.ID), "file"), []byte("precious"), 0o600))
	req := mounts(sandbox.Mount{Target: "/data", Volume: "data"})
	req.Name, req.Network, req.Env = "work", &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages}, map[string]string{"A": "1"}
	work := w.create(req)
	snap := w.snapshot("work", "kept")
	w.pause("work")
	running := w.create(sandbox.CreateRequest{Name: "busy", Env: map[string]string{"B": "2"}})

	w.loseRecords()
	found := w.waitForOrphans(4)
	volume, kept, paused, ran := found["data"], found["kept"], found[work.ID], found[running.ID]
	if volume.ID != v.ID || volume.Kind != sandbox.OrphanVolume || volume.Team != "red" || volume.SizeBytes == 0 || !volume.EndsAt.Equal(volume.Since.Add(recovery.DefaultRetention)) {
		t.Errorf("the volume is %+v", volume)
	}
	if kept.Kind != sandbox.OrphanCheckpoint || kept.SandboxID != work.ID || paused.ID == "" || !strings.Contains(ran.Reason, "it was running") {
		t.Errorf("aside are %+v", found)
	}
	if ids := w.state.IDs(); len(ids) != 0 {
		t.Errorf("the instances %v run", ids)
	}
	if ids, err := w.cfg.Volumes.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("the volumes %v are there, %v", ids, err)
	}
	// Who sees it, and who may.
	if n := len(w.orphans(adminOf(t, "blue"))); n != 0 {
		t.Errorf("another team sees %d", n)
	}
	_, err = w.RecoverOrphan(adminOf(t, "blue"), volume.ID)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.RecoverOrphan(operator(t), "ckp-none")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.RecoverOrphan(operator(t), kept.ID)
	wantCode(t, err, sandbox.CodeConflict) // its volume is not recovered yet

	// If the name is taken by now, the orphan gets another.
	_, err = w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	got, err := w.RecoverOrphan(adminOf(t, "red"), volume.ID)
	must(t, err)
	if got.Volume == nil || got.Volume.ID != v.ID || !strings.HasPrefix(got.Volume.Name, "data-") || got.Volume.SizeMiB != 77 {
		t.Errorf("the volume is %+v", got.Volume)
	}
	if data, err := os.ReadFile(filepath.Join(w.cfg.Volumes.Path(v.ID), "file")); err != nil || string(data) != "precious" {
		t.Errorf("it holds %q, %v", data, err)
	}
	got, err = w.RecoverOrphan(operator(t), kept.ID)
	must(t, err)
	if got.Snapshot == nil || got.Snapshot.ID != snap.ID || got.Snapshot.Name != "kept" || got.Snapshot.Team != "red" {
		t.Errorf("the snapshot is %+v", got.Snapshot)
	}
	again, err := w.Create(ctx, sandbox.CreateRequest{Snapshot: "kept"})
	must(t, err)
	if again.Network.Preset != sandbox.NetworkPackages || again.Env["A"] != "1" || len(again.Mounts) != 1 {
		t.Errorf("a sandbox of it is %+v", again)
	}
	got, err = w.RecoverOrphan(operator(t), paused.ID)
	must(t, err)
	if got.Snapshot.Name != "" || got.Snapshot.SandboxID != work.ID || got.Snapshot.Label != "sandbox work" {
		t.Errorf("the paused sandbox is %+v", got.Snapshot)
	}
	// A running sandbox's network may have been denied since it began.
	got, err = w.RecoverOrphan(operator(t), ran.ID)
	must(t, err)
	again, err = w.Create(ctx, sandbox.CreateRequest{Snapshot: got.Snapshot.ID})
	must(t, err)
	if again.Network.Preset != sandbox.NetworkNone || again.Env["B"] != "2" {
		t.Errorf("a sandbox of it is %+v", again)
	}
	if n := len(w.orphans(operator(t))); n != 0 {
		t.Errorf("%d are still aside", n)
	}
	// The recovered records are there for the next daemon too.
	w.restart()
	must(t, w.collectNow(t.Context()))
	_, err = w.Create(ctx, sandbox.CreateRequest{Snapshot: "kept"})
	must(t, err)
	w.agree()
}

// adminOf returns the context of a team's admin key.
func adminOf(t *testing.T, team string) context.Context {
	return sandbox.WithCaller(t.Context(), sandbox.Caller{KeyID: "key-" + team, Team: team, Scopes: []sandbox.Scope{sandbox.ScopeAdmin}})
}

// Content that was deleted on request is removed and not set aside, even if the daemon
// ended before its files were removed. So is content that could not be recorded.
func TestDeletedIsNotSetAside(t *testing.T) {
	w := newHarness(t, setsAside(t))
	ctx := asRed(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.snapshot("x", "s")
	v, err := w.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "v"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.cfg.Volumes.Path(v.ID), "file"), []byte("x"), 0o600))
	_, err = w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{Name: "s"})
	wantCode(t, err, sandbox.CodeConflict)
	kept := w.state.Kept()[0]
	// As if the daemon ended after removing the record and before removing the files.
	must(t, w.cfg.Store.DeleteSnapshot(t.Context(), w.snapshots()[0].ID))
	must(t, w.cfg.Store.DeleteVolume(t.Context(), v.ID))
	w.restart()
	wait(t, func() bool { return len(w.state.Kept()) == 0 }, func() string { return "the checkpoint is not removed" })
	if n := len(w.orphans(operator(t))); n != 0 {
		t.Errorf("%d are aside", n)
	}
	for _, id := range []string{kept.ID, v.ID} {
		wait(t, func() bool { was, err := w.cfg.Store.WasNamed(t.Context(), id); return err == nil && !was }, func() string { return id + " is not forgotten" })
	}
	if ids, err := w.cfg.Volumes.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("the volumes %v are there, %v", ids, err)
	}
}

// snapshots returns the snapshots of the team red.
func (w *harness) snapshots() []sandbox.Snapshot {
	w.t.Helper()
	list, err := w.ListSnapshots(sandbox.WithCaller(context.Background(), sandbox.Caller{KeyID: "key-red", Team: "red", Scopes: sandbox.Scopes()}), sandbox.ListSnapshotsRequest{})
	must(w.t, err)
	return list.Items
}

// A checkpoint without a label becomes a snapshot without a network.
func TestRecoverUnlabelled(t *testing.T) {
	w := newHarness(t, setsAside(t))
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	_, err := w.checkpointer.Checkpoint(t.Context(), sbx.ID, "ckp-plain", engine.CheckpointOptions{})
	must(t, err)
	must(t, w.collectNow(t.Context()))
	w.waitForOrphans(1)
	if n := len(w.orphans(adminOf(t, "red"))); n != 0 {
		t.Error("a team sees what is nobody's")
	}
	got, err := w.RecoverOrphan(operator(t), "ckp-plain")
	must(t, err)
	if got.Snapshot.Team != sandbox.LocalCaller().Team || got.Snapshot.Resources != sbx.Resources {
		t.Errorf("the snapshot is %+v", got.Snapshot)
	}
	again, err := w.Create(operator(t), sandbox.CreateRequest{Snapshot: got.Snapshot.ID})
	must(t, err)
	if again.Network.Preset != sandbox.NetworkNone {
		t.Errorf("it reaches %+v", again.Network)
	}
}

// Content that cannot be set aside stays, and others are still set aside. A sandbox
// whose state cannot be kept is ended.
func TestCannotBeSetAside(t *testing.T) {
	w := newHarness(t, setsAside(t))
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	for _, id := range []string{"ckp-1", "ckp-2"} {
		_, err := w.checkpointer.Checkpoint(t.Context(), sbx.ID, id, engine.CheckpointOptions{})
		must(t, err)
	}
	w.state.Fail(memory.StepSetAside, memory.Before, syscall.EXDEV)
	must(t, w.collectNow(t.Context()))
	if aside := w.waitForOrphans(1); len(w.state.Kept()) != 1 {
		t.Errorf("kept are %v, aside %v", w.state.Kept(), aside)
	}
	must(t, w.collectNow(t.Context()))
	w.waitForOrphans(2)
	w.state.Fail(memory.StepCheckpoint, memory.Before, syscall.ENOSPC)
	w.loseRecords()
	if ids := w.state.IDs(); len(ids) != 0 {
		t.Errorf("the instances %v run", ids)
	}
	w.waitForOrphans(2)
}

// If a recovery fails, the orphan stays.
func TestRecoveryFails(t *testing.T) {
	w := newHarness(t, setsAside(t))
	w.create(sandbox.CreateRequest{Name: "x"})
	w.snapshot("x", "s")
	w.loseRecords()
	id := w.waitForOrphans(2)["s"].ID
	w.state.Fail(memory.StepBringBack, memory.Before, sandbox.Errorf(sandbox.CodeUnavailable, "it is damaged"))
	_, err := w.RecoverOrphan(operator(t), id)
	wantCode(t, err, sandbox.CodeUnavailable)
	w.waitForOrphans(2)
	_, err = w.RecoverOrphan(operator(t), id)
	must(t, err)
	_, err = w.RecoverOrphan(operator(t), id)
	wantCode(t, err, sandbox.CodeNotFound)
}

// Orphans are removed when their time is over, and the oldest first if the disk is
// nearly full.
func TestOrphansGo(t *testing.T) {
	w := newHarness(t, setsAside(t))
	sbx := w.create(sandbox.CreateRequest{})
	aside := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			c, err := w.checkpointer.Checkpoint(t.Context(), sbx.ID, id, engine.CheckpointOptions{})
			must(t, err)
			must(t, w.Recovery.SetAside(t.Context(), &c, "test"))
		}
	}
	left := func() (ids []string) {
		all, err := w.cfg.Orphans.List()
		must(t, err)
		for _, it := range all {
			ids = append(ids, it.ID)
		}
		slices.Sort(ids)
		return ids
	}
	aside("ckp-1", "ckp-2", "ckp-3")
	must(t, w.Recovery.Trim(time.Now().Add(recovery.DefaultRetention-time.Minute)))
	if got := left(); len(got) != 3 {
		t.Errorf("before their time, left are %v", got)
	}
	all, err := w.cfg.Orphans.List()
	must(t, err)
	oldest := all[0].ID
	asked := 0
	w.Service.cfg.Room = func() (free, total int64, err error) {
		if asked++; asked == 1 {
			return 1 << 20, 1 << 30, nil
		}
		return plenty()
	}
	must(t, w.Recovery.Trim(time.Now()))
	if got := left(); len(got) != 2 || slices.Contains(got, oldest) {
		t.Errorf("on a full disk, left are %v", got)
	}
	must(t, w.Recovery.Trim(time.Now().Add(recovery.DefaultRetention+time.Minute)))
	if got := left(); len(got) != 0 {
		t.Errorf("after their time, left are %v", got)
	}
}
