package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// snapshot returns a small snapshot of a team.
func snapshot(id, team, name string, created time.Duration) store.SnapshotRecord {
	return store.SnapshotRecord{
		Snapshot: sandbox.Snapshot{
			ID: id, Name: name, Team: team, Namespace: "default", SandboxID: "sbx-a", Kind: sandbox.SnapshotMemory, Template: "host", CreatedAt: epoch.Add(created),
		},
		Checkpoint: "cp-" + id,
	}
}

func keep(t *testing.T, s store.Store, records ...store.SnapshotRecord) {
	t.Helper()
	for _, r := range records {
		must(t, s.CreateSnapshot(t.Context(), r, store.Quota{}))
	}
}

func snapshotIDs(records []store.SnapshotRecord) []string {
	var all []string
	for _, r := range records {
		all = append(all, r.ID)
	}
	return all
}

func testSnapshotRoundTrip(t *testing.T, open Opener) {
	s := open(t)
	want := store.SnapshotRecord{
		Snapshot: sandbox.Snapshot{
			ID: "snap-a", Name: "ready", Team: "red", Namespace: "ns", SandboxID: "sbx-a", Kind: sandbox.SnapshotFiles, Automatic: true, Label: "make -j",
			ParentID: "snap-0", Template: "debian", Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 512, DiskMiB: 1024, MaxPIDs: 99},
			SizeBytes: 1 << 40, CreatedAt: epoch,
		},
		Checkpoint: "cp-a", Root: json.RawMessage(`{"layers": ["a", 1.0]}`), Origin: "sha256:1",
		BaseEnv: map[string]string{"PATH": "/bin"}, Env: map[string]string{"K": "v"}, User: "user", WorkDir: "/workspace", Step: 7,
		Network: policy(), Bindings: bindings(),
	}
	small := snapshot("snap-b", "red", "", 0)
	keep(t, s, want, small)
	must(t, s.Close())
	s = open(t)
	for _, w := range []store.SnapshotRecord{want, small} {
		got, err := s.Snapshot(t.Context(), w.ID)
		must(t, err)
		wantSame(t, got, w)
	}
	_, err := s.Snapshot(t.Context(), "snap-none")
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, s.DeleteSnapshot(t.Context(), "snap-a"))
	must(t, s.DeleteSnapshot(t.Context(), "snap-a"))
	_, err = s.Snapshot(t.Context(), "snap-a")
	wantCode(t, err, sandbox.CodeNotFound)
}

func testSnapshotNames(t *testing.T, open Opener) {
	s := open(t)
	keep(t, s, snapshot("1", "red", "x", 0), snapshot("2", "blue", "x", 0), snapshot("3", "red", "", 0), snapshot("4", "red", "", 0))
	wantCode(t, s.CreateSnapshot(t.Context(), snapshot("5", "red", "x", 0), store.Quota{}), sandbox.CodeConflict)
	wantCode(t, s.CreateSnapshot(t.Context(), snapshot("1", "red", "y", 0), store.Quota{}), sandbox.CodeConflict)
	for team, want := range map[string]string{"red": "1", "blue": "2"} {
		got, err := s.SnapshotByName(t.Context(), team, "default", "x")
		must(t, err)
		wantSame(t, got.ID, want)
	}
	for _, c := range [][2]string{{"green", "x"}, {"red", ""}, {"red", "y"}} {
		_, err := s.SnapshotByName(t.Context(), c[0], "default", c[1])
		wantCode(t, err, sandbox.CodeNotFound)
	}
	must(t, s.DeleteSnapshot(t.Context(), "1"))
	keep(t, s, snapshot("5", "red", "x", 0))
}

func testSnapshotQuota(t *testing.T, open Opener) {
	s := open(t)
	step := snapshot("step", "red", "", 0)
	step.Automatic, step.Step = true, 1
	keep(t, s, step, snapshot("blue", "blue", "", 0))
	must(t, s.CreateSnapshot(t.Context(), snapshot("a", "red", "", 0), store.Quota{Snapshots: 1}))
	wantCode(t, s.CreateSnapshot(t.Context(), snapshot("b", "red", "", 0), store.Quota{Snapshots: 1}), sandbox.CodeQuotaExceeded)
	step.ID = "step-2"
	must(t, s.CreateSnapshot(t.Context(), step, store.Quota{Snapshots: 1}))
	must(t, s.DeleteSnapshot(t.Context(), "a"))

	const n, limit = 16, 5
	errs := make(chan error, n)
	for i := range n {
		go func() {
			errs <- s.CreateSnapshot(t.Context(), snapshot(fmt.Sprint("c", i), "red", "", 0), store.Quota{Snapshots: limit})
		}()
	}
	made := 0
	for range n {
		if err := <-errs; err == nil {
			made++
		} else if sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
			t.Error(err)
		}
	}
	if made != limit {
		t.Errorf("%d snapshots were made under a quota of %d", made, limit)
	}
}

func testListSnapshots(t *testing.T, open Opener) {
	s := open(t)
	a, b, c := snapshot("a", "red", "", 1), snapshot("b", "red", "", 2), snapshot("c", "blue", "", 3)
	b.SandboxID, b.Automatic = "sbx-b", true
	keep(t, s, b, a, c)
	yes, no := true, false
	for _, x := range []struct {
		name string
		f    store.SnapshotFilter
		want []string
	}{
		{"all", store.SnapshotFilter{}, []string{"c", "b", "a"}},
		{"team", store.SnapshotFilter{Team: "red"}, []string{"b", "a"}},
		{"sandbox", store.SnapshotFilter{SandboxID: "sbx-a"}, []string{"c", "a"}},
		{"automatic", store.SnapshotFilter{Automatic: &yes}, []string{"b"}},
		{"not automatic", store.SnapshotFilter{Automatic: &no}, []string{"c", "a"}},
		{"together", store.SnapshotFilter{Team: "red", SandboxID: "sbx-a", Automatic: &no}, []string{"a"}},
		{"none", store.SnapshotFilter{Team: "red", SandboxID: "sbx-a", Automatic: &yes}, nil},
		{"injection", store.SnapshotFilter{Team: "' OR 1=1 --"}, nil},
	} {
		got, next, err := s.ListSnapshots(t.Context(), x.f, sandbox.Page{})
		must(t, err)
		if diff := cmp.Diff(x.want, snapshotIDs(got)); diff != "" || next != "" {
			t.Errorf("%s: next %q, differs (-want +got):\n%s", x.name, next, diff)
		}
	}
}

func testSnapshotPages(t *testing.T, open Opener) {
	s := open(t)
	var want []string
	for i := range 7 {
		// Pairs of equal times: the id decides.
		keep(t, s, snapshot(fmt.Sprint(i), "red", "", time.Duration(i/2)))
		want = append(want, fmt.Sprint(i))
	}
	slices.Reverse(want)
	var got []string
	p := sandbox.Page{Limit: 2}
	for pages := 0; ; pages++ {
		records, next, err := s.ListSnapshots(t.Context(), store.SnapshotFilter{Team: "red"}, p)
		must(t, err)
		got = append(got, snapshotIDs(records)...)
		switch pages {
		case 0:
			// The place of the cursor holds when its snapshot has gone.
			must(t, s.DeleteSnapshot(t.Context(), "5"))
		case 1:
			keep(t, s, snapshot("new", "red", "", time.Hour))
		}
		if next == "" {
			break
		}
		p.Cursor = next
	}
	wantSame(t, got, want)
	for _, limit := range []int{-1, sandbox.MaxPageSize + 1} {
		_, _, err := s.ListSnapshots(t.Context(), store.SnapshotFilter{}, sandbox.Page{Limit: limit})
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

func testCheckpoints(t *testing.T, open Opener) {
	s := open(t)
	wantCheckpoints := func(want ...string) {
		t.Helper()
		got, err := s.Checkpoints(t.Context())
		must(t, err)
		wantSame(t, got, want)
	}
	wantCheckpoints()
	make := func(id string, state sandbox.State, checkpoint, forkPoint string) {
		r := plain(id, "red", 0)
		r.State, r.Checkpoint, r.ForkPoint = state, checkpoint, forkPoint
		add(t, s, r)
	}
	make("running", sandbox.StateRunning, "", "")
	make("child-1", sandbox.StateRunning, "", "fork")
	make("child-2", sandbox.StateCreating, "", "fork")
	make("child-3", sandbox.StatePaused, "paused", "fork")
	make("stopping", sandbox.StateStopping, "stopping", "")
	make("killed", sandbox.StateKilled, "gone-1", "gone-2")
	make("failed", sandbox.StateFailed, "gone-3", "gone-4")
	shared := snapshot("b", "blue", "", 0)
	shared.Checkpoint = "paused"
	step := snapshot("c", "red", "", 0)
	step.Automatic, step.SandboxID = true, "killed"
	empty := snapshot("d", "red", "", 0)
	empty.Checkpoint = ""
	keep(t, s, snapshot("a", "red", "", 0), shared, step, empty)
	wantCheckpoints("cp-a", "cp-c", "fork", "paused", "stopping")

	change(t, s, "child-3", func(r *store.Record) { r.State, r.Checkpoint = sandbox.StateRunning, "" })
	wantCheckpoints("cp-a", "cp-c", "fork", "paused", "stopping")
	must(t, s.DeleteSnapshot(t.Context(), "b"))
	for _, id := range []string{"child-1", "child-2", "child-3"} {
		change(t, s, id, func(r *store.Record) { r.State = sandbox.StateKilled })
	}
	wantCheckpoints("cp-a", "cp-c", "stopping")

	change(t, s, "running", func(r *store.Record) {
		r.Kept.Last, r.Kept.Next = store.KeptState{Checkpoint: "last", SizeBytes: 3 << 20}, store.KeptState{Checkpoint: "next", SizeBytes: 2 << 20}
	})
	wantCheckpoints("cp-a", "cp-c", "last", "next", "stopping")
	for _, id := range []string{"last", "next"} {
		if was, err := s.WasNamed(t.Context(), id); err != nil || !was {
			t.Errorf("%s was named: %v, %v", id, was, err)
		}
	}
	before, err := s.SandboxUsage(t.Context(), "red")
	must(t, err)
	change(t, s, "running", func(r *store.Record) { r.Kept.Next = store.KeptState{} })
	after, err := s.SandboxUsage(t.Context(), "red")
	must(t, err)
	if before.DiskMiB-after.DiskMiB != 2 {
		t.Errorf("a checkpoint of 2 MiB counts for %d", before.DiskMiB-after.DiskMiB)
	}
	_, err = s.UpdateSandbox(t.Context(), "running", store.Change{Quota: store.Quota{DiskMiB: after.DiskMiB}, Apply: func(r *store.Record) error {
		r.Kept.Next = store.KeptState{Checkpoint: "next", SizeBytes: 2 << 20}
		return nil
	}})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	change(t, s, "running", func(r *store.Record) { r.State = sandbox.StateFailed })
	wantCheckpoints("cp-a", "cp-c", "stopping")
}
