package cells_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/internal/testing/covetest"
)

// TestStandbysThatEnd checks that standbys that are killed while they wait leave nothing
// behind, and are replaced.
func TestStandbysThatEnd(t *testing.T) {
	r := newRig(t)
	r.create(t, "sbx-one", "", false)
	var waiting []string
	ready := func(not ...string) func() bool {
		return func() bool {
			waiting = r.Waiting()
			return len(waiting) > 0 && (len(not) == 0 || waiting[0] != not[0])
		}
	}
	if !covetest.Eventually(covetest.DetectionLimit, ready()) {
		t.Fatal("no standby is made ahead")
	}
	dead := waiting[0]
	group := filepath.Base(dead)
	data, err := os.ReadFile(filepath.Join(dead, "process"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(data))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone := func() bool {
		_, derr := os.Stat(dead)
		_, gerr := cgroup.Open(group)
		return errors.Is(derr, fs.ErrNotExist) && errors.Is(gerr, fs.ErrNotExist)
	}
	if !covetest.Eventually(covetest.DetectionLimit, gone) {
		t.Fatalf("a standby was killed and something of %s is left", group)
	}
	if !covetest.Eventually(covetest.DetectionLimit, ready(dead)) {
		t.Fatal("no other standby takes the place of the one that was killed")
	}
	next := filepath.Base(waiting[0])
	wantAlive(t, r.create(t, "sbx-two", "", false))
	data, err = os.ReadFile(filepath.Join(r.dir, "cells", "sbx-two", "origin.json"))
	if err != nil {
		t.Fatal(err)
	}
	var origin struct{ Group string }
	if err := json.Unmarshal(data, &origin); err != nil || origin.Group != next {
		t.Errorf("the next sandbox was made of %q (%v), want the standby that waits, %q", origin.Group, err, next)
	}
}
