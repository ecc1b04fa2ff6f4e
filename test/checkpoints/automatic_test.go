package checkpoints

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// TestGoesBackToAutomaticCheckpoint kills the supervisor of a sandbox, while the daemon runs
// and while it does not: the sandbox continues, with its memory, from its last automatic
// checkpoint.
func TestGoesBackToAutomaticCheckpoint(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Start(t, covetest.Options{})
	seconds := int64(sandbox.MinCheckpointInterval / time.Second)
	sb := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.CheckpointIntervalSeconds = &seconds }))
	// The number is in the memory of a shell, and lines in a file that it has opened once.
	const counter = `exec 3>/tmp/numbers; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.05; done`
	if _, err := d.Client.Exec(t.Context(), sb.ID, sandbox.ExecRequest{Shell: counter, Background: true, TimeoutMS: -1}, nil); err != nil {
		t.Fatal(err)
	}
	last := func() int {
		t.Helper()
		out := d.Sh(t, sb.ID, `awk 'NR != $1 { print "line " NR " is " $0; exit } END { print NR }' /tmp/numbers | tail -1`)
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("the counter says %q", out)
		}
		return n
	}
	keptAfter := func(at time.Time) (got *sandbox.Sandbox) {
		t.Helper()
		if !covetest.Eventually(sandbox.MinCheckpointInterval+time.Minute, func() bool {
			var err error
			got, err = d.Client.Get(t.Context(), sb.ID)
			return err == nil && got.LastCheckpoint != nil && got.LastCheckpoint.At != nil && got.LastCheckpoint.At.After(at)
		}) {
			t.Fatalf("nothing is kept: %+v\n%s", got.LastCheckpoint, d.Output())
		}
		return got
	}
	at := time.Time{}
	for _, down := range []bool{false, true} {
		at = *keptAfter(at).LastCheckpoint.At
		n := last()
		cells := d.Cells()
		if len(cells) != 1 {
			t.Fatalf("the cells are %v", cells)
		}
		if down {
			d.Kill()
		}
		for _, pid := range cells {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if down {
			if err := d.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if !covetest.Eventually(covetest.DetectionLimit, func() bool {
			got, err := d.Client.Get(t.Context(), sb.ID)
			return err == nil && got.State == sandbox.StatePaused && got.LastCheckpoint != nil && got.LastCheckpoint.Restores == 1
		}) {
			t.Fatalf("down %v: it does not go back\n%s", down, d.Output())
		}
		after := last()
		if !covetest.Eventually(10*time.Second, func() bool { return last() > max(after, 1) }) {
			t.Errorf("down %v: the counter has stopped at %d", down, after)
		}
		t.Logf("down %v: it was at %d, and continued at %d", down, n, after)
	}
}
