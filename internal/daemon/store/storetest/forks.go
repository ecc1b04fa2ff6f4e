package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func testInstance(t *testing.T, open Opener) {
	s := open(t)
	fresh, old, older := plain("fresh", "red", 0), plain("old", "red", 2), plain("older", "red", 1)
	fresh.Instance = ""
	old.State, older.State = sandbox.StateKilled, sandbox.StateFailed
	old.Instance, older.Instance = "shared", "shared"
	add(t, s, fresh, old, older)
	byInstance := func(instance, want string) {
		t.Helper()
		got, err := s.SandboxByInstance(t.Context(), instance)
		must(t, err)
		wantSame(t, got.ID, want)
	}
	byInstance("fresh", "fresh")
	byInstance("shared", "old")
	change(t, s, "fresh", func(r *store.Record) { r.Instance = "shared" })
	byInstance("shared", "fresh")
	// Between two machines a sandbox may have none.
	change(t, s, "fresh", func(r *store.Record) { r.Instance = "" })
	byInstance("shared", "old")
	for _, instance := range []string{"", "fresh", "none"} {
		_, err := s.SandboxByInstance(t.Context(), instance)
		wantCode(t, err, sandbox.CodeNotFound)
	}
}

// children returns records of forks that are being made.
func children(names ...string) []store.Record {
	var all []store.Record
	for i, name := range names {
		r := plain(fmt.Sprint("child-", i), "red", time.Duration(i))
		r.Name, r.State, r.ForkedFrom, r.ForkPoint = name, sandbox.StateCreating, "parent", "cp-fork"
		all = append(all, r)
	}
	return all
}

func testCreateSeveral(t *testing.T, open Opener) {
	three := store.Quota{Sandboxes: 4, VCPUs: 4, MemoryMiB: 400}
	for _, c := range []struct {
		name  string
		names []string
		quota store.Quota
		want  sandbox.Code
	}{
		{"none", nil, store.Quota{Sandboxes: 1}, ""},
		{"within the quota", []string{"a", "b", "c"}, three, ""},
		{"without names", []string{"", "", ""}, store.Quota{}, ""},
		{"sandboxes", []string{"a", "b", "c"}, store.Quota{Sandboxes: 3}, sandbox.CodeQuotaExceeded},
		{"vcpus", []string{"a", "b", "c"}, store.Quota{VCPUs: 3}, sandbox.CodeQuotaExceeded},
		{"memory", []string{"a", "b", "c"}, store.Quota{MemoryMiB: 399}, sandbox.CodeQuotaExceeded},
		{"name of another", []string{"a", "b", "taken"}, three, sandbox.CodeConflict},
		{"name twice", []string{"a", "b", "a"}, three, sandbox.CodeConflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			parent := plain("parent", "red", 0)
			parent.Name = "taken"
			add(t, s, parent)
			records := children(c.names...)
			err := s.CreateSandboxes(t.Context(), records, c.quota)
			wantCode(t, err, c.want)
			var want []store.Record
			if err == nil {
				want = records
			}
			for _, w := range want {
				got, err := s.Sandbox(t.Context(), w.ID)
				must(t, err)
				wantSame(t, got, w)
			}
			u, err := s.SandboxUsage(t.Context(), "red")
			must(t, err)
			n := len(want) + 1
			wantSame(t, u, store.Usage{Sandboxes: n, VCPUs: n, MemoryMiB: int64(100 * n)})
			for _, r := range append(records, parent) {
				must(t, s.DeleteSandbox(t.Context(), r.ID))
			}
			must(t, s.Close())
		})
	}
}

func testCreateTwice(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0))
	wantCode(t, s.CreateSandboxes(t.Context(), []store.Record{plain("b", "blue", 0), plain("a", "red", 0)}, store.Quota{}), sandbox.CodeConflict)
	_, err := s.Sandbox(t.Context(), "b")
	wantCode(t, err, sandbox.CodeNotFound)
	// The quota is each team's own.
	must(t, s.CreateSandboxes(t.Context(), []store.Record{plain("b", "blue", 0), plain("c", "red", 0)}, store.Quota{Sandboxes: 2}))
}

func testUpdateSeveral(t *testing.T, open Opener) {
	s := open(t)
	parent, winner := plain("parent", "red", 0), plain("winner", "red", 1)
	parent.Name, winner.Name = "main", "try"
	add(t, s, parent, winner, plain("other", "red", 2))
	pair := []string{"parent", "winner"}

	// A merge: machine and name move, and the winner ends.
	merge := func(records map[string]*store.Record) error {
		p, w := records["parent"], records["winner"]
		if p.State != sandbox.StateRunning || w.State != sandbox.StateRunning {
			return sandbox.Errorf(sandbox.CodeNotRunning, "not both run")
		}
		p.Instance, w.Instance = w.Instance, p.Instance
		p.Name, w.Name = w.Name, p.Name
		w.State, w.EndedAt = sandbox.StateStopping, at(time.Minute)
		return nil
	}
	got, err := s.UpdateSandboxes(t.Context(), pair, merge)
	must(t, err)
	parent.Instance, parent.Name = "winner", "try"
	winner.Instance, winner.Name, winner.State, winner.EndedAt = "parent", "main", sandbox.StateStopping, at(time.Minute)
	merged := map[string]store.Record{"parent": parent, "winner": winner}
	wantSame(t, got, merged)
	stored := func() map[string]store.Record {
		t.Helper()
		all := map[string]store.Record{}
		for _, id := range pair {
			r, err := s.Sandbox(t.Context(), id)
			must(t, err)
			all[id] = r
		}
		return all
	}
	wantSame(t, stored(), merged)

	// Refused by its states: unchanged, and the records tell why.
	got, err = s.UpdateSandboxes(t.Context(), pair, merge)
	wantCode(t, err, sandbox.CodeNotRunning)
	wantSame(t, got, merged)

	rename := func(records map[string]*store.Record) error {
		records["parent"].Name, records["winner"].Name = "x", "x"
		return nil
	}
	for _, c := range []struct {
		name  string
		ids   []string
		apply func(map[string]*store.Record) error
		want  sandbox.Code
	}{
		{"error after a change", pair, func(records map[string]*store.Record) error {
			records["parent"].State = sandbox.StateKilled
			return sandbox.Errorf(sandbox.CodeTooLarge, "boom")
		}, sandbox.CodeTooLarge},
		{"one name for two", pair, rename, sandbox.CodeConflict},
		{"absent", []string{"parent", "none"}, func(map[string]*store.Record) error {
			t.Error("apply was called though a record is absent")
			return nil
		}, sandbox.CodeNotFound},
		{"nothing", nil, func(map[string]*store.Record) error { return nil }, ""},
		{"the map itself", []string{"parent"}, func(records map[string]*store.Record) error {
			r := plain("other", "red", 2)
			r.State = sandbox.StateKilled
			records["other"] = &r
			delete(records, "parent")
			return nil
		}, ""},
	} {
		_, err := s.UpdateSandboxes(t.Context(), c.ids, c.apply)
		if code := sandbox.CodeOf(err); code != c.want {
			t.Errorf("%s: error %v has code %q, want %q", c.name, err, code, c.want)
		}
		if diff := cmp.Diff(merged, stored()); diff != "" {
			t.Errorf("%s: the records changed (-want +got):\n%s", c.name, diff)
		}
		if r, err := s.Sandbox(t.Context(), "other"); err != nil || r.State != sandbox.StateRunning {
			t.Errorf("%s: other record is %q, %v; want running", c.name, r.State, err)
		}
	}

	// Of two that merge at once, one does.
	add(t, s, plain("p2", "red", 0), plain("w2", "red", 0))
	const n = 8
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := s.UpdateSandboxes(t.Context(), []string{"p2", "w2", "p2"}, func(records map[string]*store.Record) error {
				if records["w2"].State.Final() {
					return sandbox.Errorf(sandbox.CodeNotRunning, "merged already")
				}
				records["p2"].Resources.VCPUs++
				records["w2"].State = sandbox.StateKilled
				return nil
			})
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil && sandbox.CodeOf(err) != sandbox.CodeNotRunning {
			t.Error(err)
		}
	}
	r, err := s.Sandbox(t.Context(), "p2")
	must(t, err)
	wantSame(t, r.Resources.VCPUs, 2)
}

func testPausedQuota(t *testing.T, open Opener) {
	s := open(t)
	q := store.Quota{Sandboxes: 3, VCPUs: 2, MemoryMiB: 250}
	add(t, s, plain("a", "red", 0), plain("b", "red", 1))
	wantUsage := func(want store.Usage) {
		t.Helper()
		got, err := s.SandboxUsage(t.Context(), "red")
		must(t, err)
		wantSame(t, got, want)
	}
	set := func(id string, from, to sandbox.State) error {
		_, err := s.UpdateSandbox(t.Context(), id, store.Change{From: []sandbox.State{from}, Quota: q, Apply: setState(to)})
		return err
	}
	must(t, set("a", sandbox.StateRunning, sandbox.StatePaused))
	wantUsage(store.Usage{Sandboxes: 2, VCPUs: 1, MemoryMiB: 100})
	// What a uses no more, another may.
	must(t, s.CreateSandbox(t.Context(), plain("c", "red", 2), q))
	wantUsage(store.Usage{Sandboxes: 3, VCPUs: 2, MemoryMiB: 200})
	paused := plain("d", "red", 3)
	paused.State = sandbox.StatePaused
	wantCode(t, s.CreateSandbox(t.Context(), paused, q), sandbox.CodeQuotaExceeded)

	wantCode(t, set("a", sandbox.StatePaused, sandbox.StateRunning), sandbox.CodeQuotaExceeded)
	r, err := s.Sandbox(t.Context(), "a")
	must(t, err)
	wantSame(t, r.State, sandbox.StatePaused)
	must(t, set("c", sandbox.StateRunning, sandbox.StateKilled))
	must(t, set("a", sandbox.StatePaused, sandbox.StateRunning))
	wantUsage(store.Usage{Sandboxes: 2, VCPUs: 2, MemoryMiB: 200})

	// Paused ones grow freely, and are refused when they are to run.
	must(t, set("a", sandbox.StateRunning, sandbox.StatePaused))
	_, err = s.UpdateSandbox(t.Context(), "a", store.Change{Quota: q, Apply: func(r *store.Record) error { r.Resources.MemoryMiB = 151; return nil }})
	must(t, err)
	wantCode(t, set("a", sandbox.StatePaused, sandbox.StateRunning), sandbox.CodeQuotaExceeded)
	// Over the quota everything that asks for no more is admitted.
	q = store.Quota{Sandboxes: 1, VCPUs: 1, MemoryMiB: 1}
	must(t, set("b", sandbox.StateRunning, sandbox.StatePaused))
	must(t, set("b", sandbox.StatePaused, sandbox.StateFailed))
}
