package checkpoints

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

var writtenLater = regexp.MustCompile(`msg="memory of a checkpoint is written".* bytes=(\d+) .* halted=(true|false) error=<nil>`)

// frozenMiB is how much of a sandbox's memory was written to checkpoints while it went on.
func frozenMiB(t testing.TB, d *covetest.Daemon, id string) (mib int64) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", id, "cell.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range writtenLater.FindAllSubmatch(log, -1) {
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		mib += n >> 20
	}
	return mib
}

// A sandbox that writes to all of its memory without end goes on while most of that is still
// to be written for its children and snapshots: each has it as of one instant, and nobody
// sees what another writes. A child's fork is like its parent's.
func TestGoesOnWhileWritten(t *testing.T) {
	covetest.Patched(t)
	mib := int64(256)
	if needs.Soak() {
		mib = 1500
	}
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 3 * mib, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(counters, mib))
		children := forksOf(t, d, s.ID, 1)
		children = append(children, forksOf(t, d, children[0], 1)...)
		snapshot := must(d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{}))(t)
		for _, id := range []string{s.ID, children[0]} {
			if n := frozenMiB(t, d, id); n < mib/2 {
				t.Errorf("%s has gone on before %d MiB were written, of %d", id, n, mib)
			}
		}
		children = append(children, forksOf(t, d, s.ID, 2)...)
		for _, id := range append(children, s.ID) {
			goesOn(t, d, id)
		}
		must(d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Snapshot: snapshot.ID}))(t)
		goesOn(t, d, s.ID)
		for _, id := range children {
			must(d.Client.Kill(t.Context(), id))(t)
		}
	})
}

// A sandbox that has more than half of its memory in use, and writes to it, is written in
// part before it goes on: what it copies meanwhile stays below its limit, and no program of it
// is ended.
func TestGoesOnBelowItsLimit(t *testing.T) {
	covetest.Patched(t)
	const limit, mib = 512, 300
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: limit, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(counters, mib))
		for range 3 {
			child := forksOf(t, d, s.ID, 1)[0]
			goesOn(t, d, s.ID)
			goesOn(t, d, child)
			must(d.Client.Kill(t.Context(), child))(t)
		}
		if n := frozenMiB(t, d, s.ID); n == 0 || n > 3*(limit-mib) {
			t.Errorf("it has gone on three times before %d MiB were written", n)
		}
	})
}
