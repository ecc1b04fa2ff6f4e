package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func testBuilds(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	one := store.BuildRecord{Team: "red", Build: sandbox.Build{ID: "bld-1", Template: "a", State: sandbox.BuildRunning, CreatedAt: epoch}}
	two := store.BuildRecord{Team: "blue", Build: sandbox.Build{ID: "bld-2", Template: "b", State: sandbox.BuildRunning, CreatedAt: epoch.Add(time.Second)}}
	for _, b := range []store.BuildRecord{one, two} {
		if err := s.CreateBuild(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CreateBuild(ctx, one); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a second of one id: got %v", err)
	}
	if err := s.UpdateBuild(ctx, store.BuildRecord{Build: sandbox.Build{ID: "bld-none"}}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("an update of none: got %v", err)
	}
	if _, err := s.Build(ctx, "bld-none"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("one that is not there: got %v", err)
	}
	one.State, one.Reason, one.Step, one.Fraction, one.Version, one.EndedAt = sandbox.BuildFailed, "it ü", "2/3", 0.5, 7, at(time.Minute)
	if err := s.UpdateBuild(ctx, one); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t)
	got, err := s.Build(ctx, "bld-1")
	if diff := cmp.Diff(one, got); err != nil || diff != "" {
		t.Errorf("read back: %v %s", err, diff)
	}
	for _, c := range []struct {
		f    store.BuildFilter
		want []store.BuildRecord
	}{
		{store.BuildFilter{}, []store.BuildRecord{two, one}},
		{store.BuildFilter{Template: "a"}, []store.BuildRecord{one}},
		{store.BuildFilter{Running: true}, []store.BuildRecord{two}},
	} {
		all, _, err := s.ListBuilds(ctx, c.f, sandbox.Page{})
		if diff := cmp.Diff(c.want, all); err != nil || diff != "" {
			t.Errorf("list %+v: %v %s", c.f, err, diff)
		}
	}
	page, next, err := s.ListBuilds(ctx, store.BuildFilter{}, sandbox.Page{Limit: 1})
	if err != nil || len(page) != 1 || next == "" {
		t.Fatalf("first page: %v %v %q", page, err, next)
	}
	if page, _, err = s.ListBuilds(ctx, store.BuildFilter{}, sandbox.Page{Limit: 1, Cursor: next}); err != nil || len(page) != 1 || page[0].ID != "bld-1" {
		t.Errorf("second page: %v %v", page, err)
	}
	for _, step := range []struct {
		before time.Time
		want   []string
	}{{epoch, nil}, {epoch.Add(time.Hour), []string{"bld-1"}}, {epoch.Add(time.Hour), nil}} {
		if ids, err := s.TrimBuilds(ctx, step.before); err != nil || !cmp.Equal(ids, step.want) {
			t.Errorf("trim before %v: %v %v, want %v", step.before, ids, err, step.want)
		}
	}
}
