package cells_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// groupOf returns the cgroup of an instance, which has the name of the standby
// that the instance was made from.
func (r *rig) groupOf(t *testing.T, id string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "cells", id, "origin.json"))
	if err != nil {
		t.Fatal(err)
	}
	var origin struct{ Group string }
	if err := json.Unmarshal(data, &origin); err != nil {
		t.Fatal(err)
	}
	return origin.Group
}

// Instances that are expected are made from the standbys that were made for
// them, which nobody else gets, and what none of them has taken goes.
func TestExpected(t *testing.T) {
	r := newRig(t)
	r.create(t, "sbx-one", "", false)
	done := r.Expect(t.Context(), "sbx-one", []string{"sbx-two", "sbx-three", "sbx-four"}, r.spec.Root, r.spec.Resources)
	var made []string
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { made = r.Expected(); return len(made) == 3 }) {
		t.Fatalf("there are standbys %q, want three", made)
	}
	wantAlive(t, r.create(t, "sbx-other", "", false))
	r.keep(t, "sbx-one", "ckp-one", false)
	wantAlive(t, r.create(t, "sbx-two", "ckp-one", false))
	wantAlive(t, r.create(t, "sbx-three", "ckp-one", false))
	if other := r.groupOf(t, "sbx-other"); slices.Contains(made, other) {
		t.Errorf("another instance was made from %s, of those that were expected", other)
	}
	for _, id := range []string{"sbx-two", "sbx-three"} {
		if group := r.groupOf(t, id); !slices.Contains(made, group) {
			t.Errorf("%s was made from %s, want one of %q", id, group, made)
		}
	}
	done()
	for _, name := range made {
		if _, err := os.Stat(filepath.Join(r.dir, "standby", name)); !os.IsNotExist(err) {
			t.Errorf("of %s, which nobody took, something is left: %v", name, err)
		}
	}
	wantAlive(t, r.create(t, "sbx-four", "ckp-one", false))
}

// What is expected goes though the standbys for it are still being made, and of
// an instance that is gone nothing is.
func TestExpectedInVain(t *testing.T) {
	r := newRig(t)
	r.create(t, "sbx-one", "", false)
	r.Expect(t.Context(), "sbx-none", []string{"sbx-two"}, r.spec.Root, r.spec.Resources)()
	ctx, cancel := context.WithCancel(t.Context())
	done := r.Expect(ctx, "sbx-one", []string{"sbx-two", "sbx-three"}, r.spec.Root, r.spec.Resources)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(r.Expected()) > 0 }) {
		t.Fatal("no standby is made")
	}
	made := r.Expected()
	cancel()
	done()
	for _, name := range made {
		if _, err := os.Stat(filepath.Join(r.dir, "standby", name)); !os.IsNotExist(err) {
			t.Errorf("of %s, which nobody came for, something is left: %v", name, err)
		}
	}
	if left := r.Expected(); len(left) > 0 {
		t.Errorf("%q are still expected", left)
	}
}
