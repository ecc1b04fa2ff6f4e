package storetest

import (
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func volume(id, team, name string, created time.Duration) store.VolumeRecord {
	return store.VolumeRecord{Team: team, Volume: sandbox.Volume{ID: id, Name: name, SizeMiB: 3, UsedBytes: 4, CreatedAt: epoch.Add(created)}}
}

// What was named stays so when its record goes, until it is forgotten.
func testNamed(t *testing.T, open Opener) {
	s := open(t)
	ctx := t.Context()
	want := func(id string, want bool) {
		t.Helper()
		got, err := s.WasNamed(ctx, id)
		must(t, err)
		if got != want {
			t.Errorf("%s was named: %v, want %v", id, got, want)
		}
	}
	forked := plain("sbx-1", "red", 0)
	forked.ForkPoint = "ckp-point"
	must(t, s.CreateSandbox(ctx, forked, store.Quota{}))
	want("ckp-paused", false)
	change(t, s, "sbx-1", func(r *store.Record) { r.State, r.Checkpoint = sandbox.StatePaused, "ckp-paused" })
	change(t, s, "sbx-1", func(r *store.Record) { r.State, r.Checkpoint, r.ForkPoint = sandbox.StateRunning, "", "ckp-later" })
	must(t, s.CreateSnapshot(ctx, store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-1", Team: "red", CreatedAt: epoch}, Checkpoint: "ckp-snap"}, store.Quota{}))
	must(t, s.CreateSnapshot(ctx, store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-2", Team: "red", CreatedAt: epoch}, Checkpoint: "ckp-snap"}, store.Quota{}))
	must(t, s.DeleteSnapshot(ctx, "snap-1"))
	must(t, s.DeleteSnapshot(ctx, "snap-2"))
	must(t, s.CreateVolume(ctx, volume("vol-a", "red", "x", 0), store.Quota{}))
	must(t, s.DeleteVolume(ctx, "vol-a"))
	must(t, s.DeleteSandbox(ctx, "sbx-1"))
	for _, id := range []string{"ckp-point", "ckp-paused", "ckp-later", "ckp-snap", "vol-a"} {
		want(id, true)
		must(t, s.ForgetNamed(ctx, id))
		want(id, false)
		must(t, s.ForgetNamed(ctx, id))
	}
	for _, id := range []string{"", "ckp-other", "vol-b"} {
		want(id, false)
	}
}

func testVolumes(t *testing.T, open Opener) {
	s := open(t)
	ctx := t.Context()
	must(t, s.CreateVolume(ctx, volume("vol-a", "red", "x", 0), store.Quota{Volumes: 2}))
	must(t, s.CreateVolume(ctx, volume("vol-b", "red", "y", 1), store.Quota{Volumes: 2}))
	must(t, s.CreateVolume(ctx, volume("vol-c", "blue", "x", 2), store.Quota{Volumes: 2}))
	wantCode(t, s.CreateVolume(ctx, volume("vol-d", "red", "z", 3), store.Quota{Volumes: 2}), sandbox.CodeQuotaExceeded)
	wantCode(t, s.CreateVolume(ctx, volume("vol-d", "red", "x", 3), store.Quota{}), sandbox.CodeConflict)
	got, err := s.VolumeByName(ctx, "red", "x")
	must(t, err)
	wantSame(t, got, volume("vol-a", "red", "x", 0))
	_, err = s.VolumeByName(ctx, "red", "z")
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, s.MeasureVolume(ctx, "vol-a", 99))
	got, err = s.Volume(ctx, "vol-a")
	must(t, err)
	wantSame(t, got.UsedBytes, int64(99))
	list, next, err := s.ListVolumes(ctx, "red", sandbox.Page{Limit: 1})
	must(t, err)
	if len(list) != 1 || list[0].ID != "vol-b" || next == "" {
		t.Errorf("the first page is %+v, %q", list, next)
	}
	list, _, err = s.ListVolumes(ctx, "", sandbox.Page{})
	must(t, err)
	wantSame(t, len(list), 3)

	// A sandbox has volumes of its team only, and keeps them from being deleted.
	r := plain("sbx-1", "red", 0)
	r.Mounts = []sandbox.Mount{{Target: "/t", Tmpfs: true}, {Target: "/data", Volume: "vol-a", ReadOnly: true}}
	foreign := plain("sbx-2", "red", 0)
	foreign.Mounts = []sandbox.Mount{{Target: "/data", Volume: "vol-c"}}
	wantCode(t, s.CreateSandbox(ctx, foreign, store.Quota{}), sandbox.CodeNotFound)
	must(t, s.CreateSandbox(ctx, r, store.Quota{}))
	for _, f := range []store.SandboxFilter{{VolumeID: "vol-a"}, {Mounted: true}} {
		records, _, err := s.ListSandboxes(ctx, f, sandbox.Page{})
		must(t, err)
		if len(records) != 1 {
			t.Fatalf("%+v finds %+v", f, records)
		}
		wantSame(t, records[0].Mounts, r.Mounts)
	}
	wantCode(t, s.DeleteVolume(ctx, "vol-a"), sandbox.CodeConflict)
	must(t, s.DeleteVolume(ctx, "vol-b"))
	must(t, s.CreateSnapshot(ctx, store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-1", Team: "red", CreatedAt: epoch}, Mounts: r.Mounts}, store.Quota{}))
	must(t, s.DeleteSandbox(ctx, "sbx-1"))
	wantCode(t, s.DeleteVolume(ctx, "vol-a"), sandbox.CodeConflict)
	snap, err := s.Snapshot(ctx, "snap-1")
	must(t, err)
	wantSame(t, snap.Mounts, r.Mounts)
	must(t, s.DeleteSnapshot(ctx, "snap-1"))
	must(t, s.DeleteVolume(ctx, "vol-a"))
	must(t, s.DeleteVolume(ctx, "vol-a"))
	_, err = s.Volume(ctx, "vol-a")
	wantCode(t, err, sandbox.CodeNotFound)
}

// testDiskQuota counts what a team's sandboxes and volumes may grow to, and what
// its snapshots hold.
func testDiskQuota(t *testing.T, open Opener) {
	s := open(t)
	ctx := t.Context()
	q := store.Quota{DiskMiB: 1000}
	large := func(id, team string, mib int64) store.Record {
		r := plain(id, team, 0)
		r.Resources.DiskMiB = mib
		return r
	}
	kept := func(id string, bytes int64) store.SnapshotRecord {
		r := snapshot(id, "red", "", 0)
		r.SizeBytes = bytes
		return r
	}
	sized := func(id string, mib int64) store.VolumeRecord {
		r := volume(id, "red", id, 0)
		r.SizeMiB = mib
		return r
	}
	must(t, s.CreateSandbox(ctx, large("other", "blue", 900), q))
	must(t, s.CreateSandbox(ctx, large("a", "red", 400), q))
	must(t, s.CreateVolume(ctx, sized("vol-a", 300), q))
	must(t, s.CreateSnapshot(ctx, kept("a", 200<<20), q))
	u, err := s.SandboxUsage(ctx, "red")
	must(t, err)
	wantSame(t, u, store.Usage{Sandboxes: 1, VCPUs: 1, MemoryMiB: 100, DiskMiB: 900})
	for what, err := range map[string]error{
		"sandbox":  s.CreateSandbox(ctx, large("b", "red", 101), q),
		"volume":   s.CreateVolume(ctx, sized("vol-b", 101), q),
		"snapshot": s.CreateSnapshot(ctx, kept("b", 100<<20+1), q),
	} {
		t.Run(what, func(t *testing.T) { wantCode(t, err, sandbox.CodeQuotaExceeded) })
	}
	// A paused sandbox has its files, one that has ended has none.
	_, err = s.UpdateSandbox(ctx, "a", store.Change{Quota: q, Apply: func(r *store.Record) error { r.State = sandbox.StatePaused; return nil }})
	must(t, err)
	wantCode(t, s.CreateSandbox(ctx, large("b", "red", 101), q), sandbox.CodeQuotaExceeded)
	_, err = s.UpdateSandbox(ctx, "a", store.Change{Apply: func(r *store.Record) error { r.State = sandbox.StateKilled; return nil }})
	must(t, err)
	must(t, s.CreateSandbox(ctx, large("b", "red", 500), q))
	wantCode(t, s.CreateSnapshot(ctx, kept("c", 1), q), sandbox.CodeQuotaExceeded)
	step := kept("step", 1<<20)
	step.Automatic = true
	must(t, s.CreateSnapshot(ctx, step, q))
}
