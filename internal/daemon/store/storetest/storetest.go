// Package storetest is the suite that every implementation of [store.Store]
// passes.
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

// Opener opens the store of one test. Called twice in a test after the first
// was closed, it opens the same store again.
type Opener func(t *testing.T) store.Store

// Run runs the suite. open is called with the test it opens a new store for.
func Run(t *testing.T, fresh func(t *testing.T) Opener) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"SandboxRoundTrip", testSandboxRoundTrip},
		{"NameUnique", testNameUnique},
		{"ByName", testByName},
		{"Namespaces", testNamespaces},
		{"CompareAndSet", testCompareAndSet},
		{"ConcurrentTransitions", testConcurrentTransitions},
		{"Quota", testQuota},
		{"ConcurrentQuota", testConcurrentQuota},
		{"ConcurrentAdmission", testConcurrentAdmission},
		{"ListFilters", testListFilters},
		{"ListPages", testListPages},
		{"HostileCursors", testHostileCursors},
		{"Touch", testTouch},
		{"Due", testDue},
		{"DeleteEnded", testDeleteEnded},
		{"Clock", testClock},
		{"ObjectKey", testObjectKey},
		{"Files", testFiles},
		{"Instance", testInstance},
		{"CreateSeveral", testCreateSeveral},
		{"CreateTwice", testCreateTwice},
		{"UpdateSeveral", testUpdateSeveral},
		{"PausedQuota", testPausedQuota},
		{"SnapshotRoundTrip", testSnapshotRoundTrip},
		{"SnapshotNames", testSnapshotNames},
		{"SnapshotQuota", testSnapshotQuota},
		{"ListSnapshots", testListSnapshots},
		{"SnapshotPages", testSnapshotPages},
		{"Checkpoints", testCheckpoints},
		{"BoundTo", testBoundTo},
		{"Volumes", testVolumes},
		{"DiskQuota", testDiskQuota},
		{"Named", testNamed},
		{"Secrets", testSecrets},
		{"SecretQuota", testSecretQuota},
		{"SecretPages", testSecretPages},
		{"Previews", testPreviews},
		{"PreviewPages", testPreviewPages},
		{"PreviewsExpire", testPreviewsExpire},
		{"PreviewsHadKeys", testPreviewsHadKeys},
		{"PreviewQuota", testPreviewQuota},
		{"Deliveries", testDeliveries},
		{"DeliveryQuota", testDeliveryQuota},
		{"Builds", testBuilds},
		{"Requests", testRequests},
		{"Keys", testKeys},
		{"Sessions", testSessions},
		{"SessionsOfKey", testSessionsOfKey},
		{"Audit", testAudit},
		{"AuditTrim", testAuditTrim},
		{"Templates", testTemplates},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

var epoch = time.Date(2026, 3, 4, 5, 6, 7, 123456789, time.UTC)

func at(d time.Duration) *time.Time {
	t := epoch.Add(d)
	return &t
}

// full returns a record with every field set.
func full(id string) store.Record {
	return store.Record{
		Sandbox: sandbox.Sandbox{
			ID: id, Name: "name-" + id, Team: "red", Namespace: "ns",
			Metadata: map[string]string{"a": "1", `odd "key'`: "o'clock"}, Template: "host",
			State: sandbox.StateRunning, Reason: "because",
			Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 512, DiskMiB: 1024, MaxPIDs: 99},
			Env:       map[string]string{"K": "v"}, User: "user", WorkDir: "/workspace",
			LifetimeSeconds: 60, IdleTimeoutSeconds: 30, OnTimeout: sandbox.ActionKill,
			CreatedAt: epoch, StartedAt: at(time.Second), LastActiveAt: epoch.Add(2 * time.Second),
			ExpiresAt: at(time.Minute), EndedAt: at(time.Hour), Unenforced: []string{"cpu"},
			ForkedFrom: "sbx-parent", Snapshot: "snap-a", MadeFrom: &sandbox.MadeFrom{SandboxID: "sbx-other", Snapshot: "snap-a", StateAt: epoch}, History: 3, PausedAt: at(3 * time.Second), Dedicated: true,
			CheckpointIntervalSeconds: 60, PausedLifetimeSeconds: 90, PausedExpiresAt: at(93 * time.Second),
			Moments: []sandbox.Moment{
				{Kind: sandbox.MomentPaused, At: epoch, Until: at(time.Second)},
				{Kind: sandbox.MomentRestored, At: epoch, SandboxID: "sbx-other", Snapshot: "snap-a", StateAt: at(-time.Hour)},
				{Kind: sandbox.MomentMerged, At: epoch, SandboxID: "sbx-won", Merge: sandbox.MergeFiles, KillWinner: true},
			},
			Network: policy(), Ports: []sandbox.PublishedPort{{Host: 8080, Guest: 80, Address: "127.0.0.1"}, {Host: 9, Guest: 9}},
		},
		Bindings: bindings(),
		Answers: []store.Answer{{
			ID: "apr-1", ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Host: "a.example", Address: "192.0.2.1", Port: 443},
			Allow: true, Until: epoch.Add(time.Hour), By: "key-1", At: epoch,
		}},
		Family:  "sbx-first",
		BaseEnv: map[string]string{"PATH": "/bin"}, BootID: "boot-1", Held: true, Applying: true,
		Instance: "machine-" + id, Checkpoint: "cp-paused", ForkPoint: "cp-fork", Origin: "sha256:1",
		Root: json.RawMessage(`{"layers": ["a", 1.0]}`),
		Kept: store.Kept{
			Last:  store.KeptState{Checkpoint: "cp-last", At: epoch, SizeBytes: 3 << 20},
			Next:  store.KeptState{Checkpoint: "cp-next", At: epoch.Add(time.Second), SizeBytes: 1 << 20},
			Since: epoch, FailedAt: epoch.Add(time.Minute), Failure: "full", Restores: 2,
		},
	}
}

// plain returns a small running record of a team.
func plain(id, team string, created time.Duration) store.Record {
	return store.Record{Sandbox: sandbox.Sandbox{
		ID: id, Team: team, Namespace: "default", Template: "host", State: sandbox.StateRunning,
		Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 100}, OnTimeout: sandbox.ActionKill,
		CreatedAt: epoch.Add(created), LastActiveAt: epoch.Add(created),
	}, Instance: id}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("error %v has code %q, want %q", err, got, want)
	}
}

func wantSame(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("differs (-want +got):\n%s", diff)
	}
}

func add(t *testing.T, s store.Store, records ...store.Record) {
	t.Helper()
	for _, r := range records {
		must(t, s.CreateSandbox(t.Context(), r, store.Quota{}))
	}
}

func setState(state sandbox.State) func(*store.Record) error {
	return func(r *store.Record) error {
		r.State = state
		return nil
	}
}

func change(t *testing.T, s store.Store, id string, f func(*store.Record)) {
	t.Helper()
	_, err := s.UpdateSandbox(t.Context(), id, store.Change{Apply: func(r *store.Record) error { f(r); return nil }})
	must(t, err)
}

func ids(records []store.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, r.ID)
	}
	return all
}

func testSandboxRoundTrip(t *testing.T, open Opener) {
	s := open(t)
	want := full("sbx-a")
	small := plain("sbx-b", "red", 0)
	add(t, s, want, small)
	must(t, s.Close())
	s = open(t)
	for _, w := range []store.Record{want, small} {
		got, err := s.Sandbox(t.Context(), w.ID)
		must(t, err)
		wantSame(t, got, w)
	}
	_, err := s.Sandbox(t.Context(), "sbx-none")
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, s.DeleteSandbox(t.Context(), "sbx-a"))
	must(t, s.DeleteSandbox(t.Context(), "sbx-a"))
	_, err = s.Sandbox(t.Context(), "sbx-a")
	wantCode(t, err, sandbox.CodeNotFound)
}

func testNameUnique(t *testing.T, open Opener) {
	s := open(t)
	named := func(id, team, name string, state sandbox.State) store.Record {
		r := plain(id, team, 0)
		r.Name, r.State = name, state
		return r
	}
	add(t, s, named("1", "red", "x", sandbox.StateKilled), named("2", "red", "x", sandbox.StateFailed), named("3", "red", "x", sandbox.StateCreating),
		named("4", "blue", "x", sandbox.StateRunning), named("5", "red", "", sandbox.StateRunning), named("6", "red", "", sandbox.StateRunning),
		named("7", "red", "y", sandbox.StateRunning))
	for _, st := range []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping} {
		wantCode(t, s.CreateSandbox(t.Context(), named("8", "red", "x", st), store.Quota{}), sandbox.CodeConflict)
	}
	_, err := s.UpdateSandbox(t.Context(), "7", store.Change{Apply: func(r *store.Record) error { r.Name = "x"; return nil }})
	wantCode(t, err, sandbox.CodeConflict)
	got, err := s.Sandbox(t.Context(), "7")
	must(t, err)
	if got.Name != "y" {
		t.Fatalf("name is %q after a refused change, want y", got.Name)
	}
	_, err = s.UpdateSandbox(t.Context(), "3", store.Change{Apply: setState(sandbox.StateKilled)})
	must(t, err)
	add(t, s, named("8", "red", "x", sandbox.StateCreating))
}

func testByName(t *testing.T, open Opener) {
	s := open(t)
	for i, st := range []sandbox.State{sandbox.StateKilled, sandbox.StateRunning, sandbox.StateFailed, sandbox.StateKilled} {
		r := plain(fmt.Sprint(i), "red", time.Duration(i))
		r.Name, r.State = "x", st
		add(t, s, r)
	}
	got, err := s.SandboxByName(t.Context(), "red", "default", "x")
	must(t, err)
	wantSame(t, got.ID, "1")
	must(t, s.DeleteSandbox(t.Context(), "1"))
	got, err = s.SandboxByName(t.Context(), "red", "default", "x")
	must(t, err)
	wantSame(t, got.ID, "3")
	for _, c := range [][3]string{{"blue", "default", "x"}, {"red", "default", ""}, {"red", "", ""}, {"red", "default", "y"}, {"red", "other", "x"}} {
		_, err = s.SandboxByName(t.Context(), c[0], c[1], c[2])
		wantCode(t, err, sandbox.CodeNotFound)
	}
}

// testNamespaces has one name in several namespaces.
func testNamespaces(t *testing.T, open Opener) {
	s := open(t)
	in := func(id, namespace string, st sandbox.State) store.Record {
		r := plain(id, "red", 0)
		r.Name, r.Namespace, r.State = "x", namespace, st
		return r
	}
	find := func(namespace, want string) {
		t.Helper()
		got, err := s.SandboxByName(t.Context(), "red", namespace, "x")
		must(t, err)
		wantSame(t, got.ID, want)
	}
	add(t, s, in("dead", "default", sandbox.StateKilled), in("a", "a", sandbox.StateRunning))
	find("a", "a")
	find("default", "dead")
	find("", "a") // the one that lives
	add(t, s, in("b", "b", sandbox.StateRunning))
	wantCode(t, s.CreateSandbox(t.Context(), in("b2", "b", sandbox.StateCreating), store.Quota{}), sandbox.CodeConflict)
	find("b", "b")
	_, err := s.SandboxByName(t.Context(), "red", "", "x")
	wantCode(t, err, sandbox.CodeConflict)
	add(t, s, in("mine", "default", sandbox.StateRunning))
	find("", "mine")

	kept := func(id, namespace string) store.SnapshotRecord {
		r := snapshot(id, "red", "x", 0)
		r.Namespace = namespace
		return r
	}
	keep(t, s, kept("sa", "a"), kept("sb", "b"))
	wantCode(t, s.CreateSnapshot(t.Context(), kept("sb2", "b"), store.Quota{}), sandbox.CodeConflict)
	_, err = s.SnapshotByName(t.Context(), "red", "", "x")
	wantCode(t, err, sandbox.CodeConflict)
	keep(t, s, kept("sd", "default"))
	for namespace, want := range map[string]string{"a": "sa", "b": "sb", "": "sd"} {
		got, err := s.SnapshotByName(t.Context(), "red", namespace, "x")
		must(t, err)
		wantSame(t, got.ID, want)
	}
	list, _, err := s.ListSnapshots(t.Context(), store.SnapshotFilter{Team: "red", Namespace: "b"}, sandbox.Page{})
	must(t, err)
	wantSame(t, snapshotIDs(list), []string{"sb"})
}

func testCompareAndSet(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0))
	got, err := s.UpdateSandbox(t.Context(), "a", store.Change{From: []sandbox.State{sandbox.StateCreating}, Apply: setState(sandbox.StateKilled)})
	wantCode(t, err, sandbox.CodeNotRunning)
	wantSame(t, got.State, sandbox.StateRunning)
	got, err = s.UpdateSandbox(t.Context(), "a", store.Change{From: []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}, Apply: setState(sandbox.StateStopping)})
	must(t, err)
	wantSame(t, got.State, sandbox.StateStopping)
	boom := sandbox.Errorf(sandbox.CodeTooLarge, "boom")
	got, err = s.UpdateSandbox(t.Context(), "a", store.Change{Apply: func(r *store.Record) error {
		r.State = sandbox.StateKilled
		return boom
	}})
	wantCode(t, err, sandbox.CodeTooLarge)
	wantSame(t, got.State, sandbox.StateStopping)
	got, err = s.Sandbox(t.Context(), "a")
	must(t, err)
	wantSame(t, got.State, sandbox.StateStopping)
	_, err = s.UpdateSandbox(t.Context(), "none", store.Change{Apply: setState(sandbox.StateKilled)})
	wantCode(t, err, sandbox.CodeNotFound)
}

func testConcurrentTransitions(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0))
	const n = 16
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := s.UpdateSandbox(t.Context(), "a", store.Change{From: []sandbox.State{sandbox.StateRunning}, Apply: setState(sandbox.StateStopping)})
			errs <- err
		}()
	}
	won := 0
	for range n {
		if err := <-errs; err == nil {
			won++
		} else if sandbox.CodeOf(err) != sandbox.CodeNotRunning {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d concurrent changes from running won, want 1", won, n)
	}
}

func testQuota(t *testing.T, open Opener) {
	s := open(t)
	ended := plain("ended", "red", 0)
	ended.State = sandbox.StateFailed
	add(t, s, ended, plain("blue", "blue", 0), plain("a", "red", 0))
	u, err := s.SandboxUsage(t.Context(), "red")
	must(t, err)
	wantSame(t, u, store.Usage{Sandboxes: 1, VCPUs: 1, MemoryMiB: 100})
	u, err = s.SandboxUsage(t.Context(), "")
	must(t, err)
	wantSame(t, u, store.Usage{Sandboxes: 2, VCPUs: 2, MemoryMiB: 200})
	for _, q := range []store.Quota{{Sandboxes: 1}, {VCPUs: 1}, {MemoryMiB: 199}} {
		wantCode(t, s.CreateSandbox(t.Context(), plain("b", "red", 0), q), sandbox.CodeQuotaExceeded)
	}
	must(t, s.CreateSandbox(t.Context(), plain("b", "red", 0), store.Quota{Sandboxes: 2, VCPUs: 2, MemoryMiB: 200}))
	grow := func(n int) store.Change {
		return store.Change{Quota: store.Quota{Sandboxes: 1, VCPUs: 3}, Apply: func(r *store.Record) error { r.Resources.VCPUs = n; return nil }}
	}
	_, err = s.UpdateSandbox(t.Context(), "b", grow(3))
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	_, err = s.UpdateSandbox(t.Context(), "b", grow(2))
	must(t, err)
	_, err = s.UpdateSandbox(t.Context(), "b", grow(1))
	must(t, err)
}

func testConcurrentQuota(t *testing.T, open Opener) {
	s := open(t)
	const n, limit = 16, 5
	errs := make(chan error, n)
	for i := range n {
		go func() {
			errs <- s.CreateSandbox(t.Context(), plain(fmt.Sprint(i), "red", 0), store.Quota{Sandboxes: limit})
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
		t.Errorf("%d sandboxes were made under a quota of %d", made, limit)
	}
}

func testListFilters(t *testing.T, open Opener) {
	s := open(t)
	a, b, c := plain("a", "red", 1), plain("b", "red", 2), plain("c", "blue", 3)
	a.Namespace, a.Name, a.Metadata = "ns", "x", map[string]string{"k": "v", `o'd"d.[0]$`: "1"}
	b.State, b.Template, b.Metadata, b.Held = sandbox.StateKilled, "debian", map[string]string{"k": "w"}, true
	add(t, s, a, b, c)
	for _, x := range []struct {
		name string
		f    store.SandboxFilter
		want []string
	}{
		{"all", store.SandboxFilter{}, []string{"c", "b", "a"}},
		{"team", store.SandboxFilter{Team: "red"}, []string{"b", "a"}},
		{"namespace", store.SandboxFilter{Team: "red", Namespace: "ns"}, []string{"a"}},
		{"states", store.SandboxFilter{States: []sandbox.State{sandbox.StateKilled, sandbox.StateFailed}}, []string{"b"}},
		{"name", store.SandboxFilter{Name: "x"}, []string{"a"}},
		{"template", store.SandboxFilter{Template: "debian"}, []string{"b"}},
		{"metadata", store.SandboxFilter{Metadata: map[string]string{"k": "v"}}, []string{"a"}},
		{"metadata pairs", store.SandboxFilter{Metadata: map[string]string{"k": "v", `o'd"d.[0]$`: "1"}}, []string{"a"}},
		{"metadata none", store.SandboxFilter{Metadata: map[string]string{"k": "v", "z": ""}}, nil},
		{"held", store.SandboxFilter{Held: true}, []string{"b"}},
		{"injection", store.SandboxFilter{Team: "' OR 1=1 --"}, nil},
	} {
		got, next, err := s.ListSandboxes(t.Context(), x.f, sandbox.Page{})
		must(t, err)
		if diff := cmp.Diff(x.want, ids(got)); diff != "" || next != "" {
			t.Errorf("%s: next %q, differs (-want +got):\n%s", x.name, next, diff)
		}
	}
}

func testListPages(t *testing.T, open Opener) {
	s := open(t)
	var want []string
	for i := range 7 {
		// Pairs of equal times: the id decides.
		add(t, s, plain(fmt.Sprint(i), "red", time.Duration(i/2)))
		want = append(want, fmt.Sprint(i))
	}
	slices.Reverse(want)
	var got []string
	p := sandbox.Page{Limit: 2}
	for pages := 0; ; pages++ {
		records, next, err := s.ListSandboxes(t.Context(), store.SandboxFilter{Team: "red"}, p)
		must(t, err)
		got = append(got, ids(records)...)
		if pages == 1 {
			// A new one between two pages does not move the rest.
			add(t, s, plain("new", "red", time.Hour))
		}
		if next == "" {
			break
		}
		p.Cursor = next
	}
	wantSame(t, got, want)
	for _, limit := range []int{-1, sandbox.MaxPageSize + 1} {
		_, _, err := s.ListSandboxes(t.Context(), store.SandboxFilter{}, sandbox.Page{Limit: limit})
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

func testHostileCursors(t *testing.T, open Opener) {
	s := open(t)
	for _, cursor := range []string{"x", "'; DROP TABLE sandboxes; --", "AAAA", "\x00", string(make([]byte, 1000))} {
		p := sandbox.Page{Cursor: cursor}
		_, _, err := s.ListSandboxes(t.Context(), store.SandboxFilter{}, p)
		wantCode(t, err, sandbox.CodeInvalid)
		_, _, err = s.ListSnapshots(t.Context(), store.SnapshotFilter{}, p)
		wantCode(t, err, sandbox.CodeInvalid)
		_, _, err = s.ListKeys(t.Context(), "", p)
		wantCode(t, err, sandbox.CodeInvalid)
		_, _, err = s.ListAudit(t.Context(), store.AuditFilter{}, p)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, _, err := s.ListAudit(t.Context(), store.AuditFilter{}, sandbox.Page{Cursor: store.PlaceAt(epoch, "sbx-a").Cursor("sandboxes")})
	wantCode(t, err, sandbox.CodeInvalid)
}

func testTouch(t *testing.T, open Opener) {
	s := open(t)
	ended := plain("ended", "red", 0)
	ended.State = sandbox.StateKilled
	add(t, s, plain("a", "red", 0), ended)
	must(t, s.TouchSandboxes(t.Context(), nil))
	for _, d := range []time.Duration{time.Minute, time.Second} {
		now := epoch.Add(d)
		must(t, s.TouchSandboxes(t.Context(), map[string]time.Time{"a": now, "ended": now, "none": now}))
	}
	for id, want := range map[string]time.Time{"a": epoch.Add(time.Minute), "ended": epoch} {
		got, err := s.Sandbox(t.Context(), id)
		must(t, err)
		wantSame(t, got.LastActiveAt, want)
	}
}

func testDue(t *testing.T, open Opener) {
	s := open(t)
	make := func(id string, state sandbox.State, expires *time.Time, idle int64) {
		r := plain(id, "red", 0)
		r.State, r.ExpiresAt, r.IdleTimeoutSeconds = state, expires, idle
		add(t, s, r)
	}
	make("expired", sandbox.StateRunning, at(10*time.Second), 0)
	make("expired-paused", sandbox.StatePaused, at(9*time.Second), 0)
	make("idle", sandbox.StateRunning, nil, 10)
	make("idle-paused", sandbox.StatePaused, nil, 1)
	make("later", sandbox.StateRunning, at(11*time.Second), 11)
	make("unbounded", sandbox.StateRunning, nil, 0)
	make("later-paused", sandbox.StatePaused, at(11*time.Second), 0)
	make("pause-expired", sandbox.StateRunning, at(10*time.Second), 0)
	make("pause-idle", sandbox.StateRunning, nil, 10)
	make("pause-paused", sandbox.StatePaused, at(0), 1)
	for id, after := range map[string]time.Duration{"x-paused": 10, "x-paused-later": 11} {
		make(id, sandbox.StatePaused, nil, 0)
		change(t, s, id, func(r *store.Record) { r.OnTimeout, r.PausedExpiresAt = sandbox.ActionPause, at(after*time.Second) })
	}
	make("ended", sandbox.StateKilled, at(0), 1)
	make("stopping", sandbox.StateStopping, at(0), 1)
	for _, id := range []string{"pause-expired", "pause-idle", "pause-paused"} {
		change(t, s, id, func(r *store.Record) { r.OnTimeout = sandbox.ActionPause })
	}
	due := func() []string {
		got, err := s.DueSandboxes(t.Context(), epoch.Add(10*time.Second))
		must(t, err)
		slices.Sort(got)
		return got
	}
	wantSame(t, due(), []string{"expired", "expired-paused", "idle", "pause-expired", "pause-idle", "x-paused"})
	// A paused sandbox of an update to "kill" is due by the time it had.
	change(t, s, "pause-paused", func(r *store.Record) { r.OnTimeout = sandbox.ActionKill })
	wantSame(t, due(), []string{"expired", "expired-paused", "idle", "pause-expired", "pause-idle", "pause-paused", "x-paused"})
}

func testDeleteEnded(t *testing.T, open Opener) {
	s := open(t)
	make := func(id string, state sandbox.State, ended *time.Time, held bool) {
		r := plain(id, "red", 0)
		r.State, r.EndedAt, r.Held = state, ended, held
		add(t, s, r)
	}
	make("a-old", sandbox.StateKilled, at(-2), false)
	make("b-old", sandbox.StateFailed, at(-1), false)
	make("c-held", sandbox.StateFailed, at(-1), true)
	make("d-new", sandbox.StateKilled, at(0), false)
	make("e-running", sandbox.StateRunning, nil, false)
	n, err := s.DeleteEndedSandboxes(t.Context(), epoch)
	must(t, err)
	wantSame(t, n, 2)
	got, _, err := s.ListSandboxes(t.Context(), store.SandboxFilter{}, sandbox.Page{})
	must(t, err)
	wantSame(t, ids(got), []string{"e-running", "d-new", "c-held"})
}
