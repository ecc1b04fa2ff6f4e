package cells_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// sharingDir returns a directory whose file system can share extents.
func sharingDir(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	needs.Command(t, "mkfs.xfs", "mount", "umount")
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 4<<30); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.xfs", "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("mount a file with XFS: %w\n%s", err, out)
	}
	needs.NoError(t, err)
	t.Cleanup(func() {
		// Detach it: the last namespace of a cell may take a moment to end.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	return state
}

// written returns how many bytes of a file system are in use.
func written(t *testing.T, dir string) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

func shellLine(t *testing.T, i engine.Instance, line string) string {
	t.Helper()
	c := agentclient.New(i.ID(), i.Dial)
	defer c.Close()
	var out strings.Builder
	job, err := c.Exec(t.Context(), "", &sandbox.ExecRequest{Shell: line, TimeoutMS: 60_000}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil || job.ExitCode != 0 {
		t.Fatalf("%q: %v, %+v, %s", line, err, job, out.String())
	}
	return strings.TrimSpace(out.String())
}

// TestMoreCheckpointsShare checks that, on a file system that can share extents, checkpoints share
// what the sandbox has written, and that no sandbox sees what another writes afterwards. In
// "make test", TestCheckpoints stands for it.
func TestMoreCheckpointsShare(t *testing.T) {
	needs.GVisor(t)
	dir := sharingDir(t)
	e := open(t, dir)
	t.Cleanup(func() { e.Close() })
	spec := hostSpec(t)
	spec.User, spec.WorkDir = "root", "/"
	spec.Resources = sandbox.Resources{VCPUs: 1, MemoryMiB: 512, DiskMiB: 512, MaxPIDs: 64}
	create := func(id, checkpoint string) (engine.Instance, error) {
		s := spec
		s.ID, s.Hostname, s.Checkpoint = id, id, checkpoint
		t.Cleanup(func() {
			if err := e.Destroy(context.Background(), id); err != nil && !errors.Is(err, engine.ErrNotFound) {
				t.Error(err)
			}
		})
		return e.Create(t.Context(), s)
	}
	parent, err := create("parent", "")
	if err != nil {
		t.Fatal(err)
	}
	const digest, mib = "md5sum < /root/big", 100
	shellLine(t, parent, fmt.Sprintf("dd if=/dev/urandom of=/root/big bs=1M count=%d status=none; echo -n odd >> /root/big; echo small > /root/small", mib))
	sum := shellLine(t, parent, digest)

	before := written(t, dir)
	const children = 3
	for _, id := range []string{"first", "second"} {
		if _, err := e.Checkpoint(t.Context(), "parent", id, engine.CheckpointOptions{Durable: id == "second"}); err != nil {
			t.Fatal(err)
		}
	}
	instances := make([]engine.Instance, children)
	var g errgroup.Group
	for n := range children {
		g.Go(func() (err error) {
			instances[n], err = create(fmt.Sprintf("child-%d", n), "first")
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	// The children are still loading their pages.
	if err := e.RemoveCheckpoint(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	for n, i := range instances {
		if got := shellLine(t, i, digest+"; cat /root/small"); got != sum+"\nsmall" {
			t.Errorf("child %d has %q, its parent %q", n, got, sum)
		}
	}
	// Two checkpoints and three children would be 500 MiB.
	if grown := written(t, dir) - before; grown > mib<<20 {
		t.Errorf("two checkpoints and %d children of %d MiB took %d MiB", children, mib, grown>>20)
	}
	sums := map[string]bool{sum: true}
	for n, i := range instances {
		s := shellLine(t, i, fmt.Sprintf("head -c 5000000 /dev/urandom | dd of=/root/big bs=1000 seek=%d conv=notrunc status=none; echo %[1]d > /root/small; %s", n+1, digest))
		if sums[s] {
			t.Errorf("child %d has the file of another", n)
		}
		sums[s] = true
		if got := shellLine(t, parent, digest+"; cat /root/small"); got != sum+"\nsmall" {
			t.Errorf("after child %d wrote, the parent has %q instead of %q", n, got, sum)
		}
	}

	rounds(t, e, create, instances[0].ID(), digest)
	again, err := create("again", "second")
	if err != nil {
		t.Fatal(err)
	}
	if got := shellLine(t, again, digest); got != sum {
		t.Errorf("the kept state has %q instead of %q", got, sum)
	}
}

// rounds repeatedly pauses and resumes an instance, with small changes in between.
func rounds(t *testing.T, e *cells.Engine, create func(id, checkpoint string) (engine.Instance, error), id, digest string) {
	t.Helper()
	i, err := e.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		sum := shellLine(t, i, fmt.Sprintf("head -c 300000 /dev/urandom | dd of=/root/big bs=777 seek=%d conv=notrunc status=none; %s", n*997, digest))
		ckp := fmt.Sprintf("round-%d", n)
		if _, err := e.Checkpoint(t.Context(), id, ckp, engine.CheckpointOptions{Durable: true, Commit: func(engine.Checkpoint) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		id = fmt.Sprintf("resumed-%d", n)
		if i, err = create(id, ckp); err != nil {
			t.Fatal(err)
		}
		if err := e.RemoveCheckpoint(t.Context(), ckp); err != nil {
			t.Fatal(err)
		}
		if got := shellLine(t, i, digest); got != sum {
			t.Fatalf("after round %d the file is %q instead of %q", n, got, sum)
		}
	}
}
