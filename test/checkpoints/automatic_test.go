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

// TestMoreWaitsGoesBackToAutomaticCheckpoint kills the supervisor of a sandbox, while the daemon
// runs and while it does not: the sandbox continues, with its memory, from its last automatic
// checkpoint. In "make test", TestRewind, and TestFailedGoesBack of package service, stand for
// it.
func TestMoreWaitsGoesBackToAutomaticCheckpoint(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Start(t, covetest.Options{})
	seconds := int64(sandbox.MinCheckpointInterval / time.Second)
	// The number is in the memory of a shell, and lines in a file that it has opened once.
	const counter = `exec 3>/tmp/numbers; n=0; while :; do n=$((n+1)); echo $n >&3; sleep 0.05; done`
	create := func() string {
		sb := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.CheckpointIntervalSeconds = &seconds }))
		if _, err := d.Client.Exec(t.Context(), sb.ID, sandbox.ExecRequest{Shell: counter, Background: true, TimeoutMS: -1}, nil); err != nil {
			t.Fatal(err)
		}
		return sb.ID
	}
	last := func(id string) int {
		t.Helper()
		out := d.Sh(t, id, `awk 'NR != $1 { print "line " NR " is " $0; exit } END { print NR }' /tmp/numbers | tail -1`)
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatalf("the counter says %q", out)
		}
		return n
	}
	awaitKept := func(id string) {
		t.Helper()
		var got *sandbox.Sandbox
		if !covetest.Eventually(sandbox.MinCheckpointInterval+time.Minute, func() bool {
			var err error
			got, err = d.Client.Get(t.Context(), id)
			return err == nil && got.LastCheckpoint != nil && got.LastCheckpoint.At != nil
		}) {
			t.Fatalf("nothing is kept: %+v\n%s", got.LastCheckpoint, d.Output())
		}
	}
	kill := func(id string) {
		t.Helper()
		pid, ok := d.Cells()[id]
		if !ok {
			t.Fatalf("the cells are %v", d.Cells())
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	goesBack := func(id string, n int) {
		t.Helper()
		if !covetest.Eventually(covetest.DetectionLimit, func() bool {
			got, err := d.Client.Get(t.Context(), id)
			return err == nil && got.State == sandbox.StatePaused && got.LastCheckpoint != nil && got.LastCheckpoint.Restores == 1
		}) {
			t.Fatalf("the sandbox does not go back\n%s", d.Output())
		}
		after := last(id)
		if !covetest.Eventually(10*time.Second, func() bool { return last(id) > max(after, 1) }) {
			t.Errorf("the counter has stopped at %d", after)
		}
		t.Logf("the counter was at %d, and continued at %d", n, after)
	}
	up, down := create(), create()
	awaitKept(up)
	awaitKept(down)

	n := last(up)
	kill(up)
	goesBack(up, n)

	n = last(down)
	d.Kill()
	kill(down)
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesBack(down, n)
}
