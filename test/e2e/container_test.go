package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// containerUID is the user of a container, without an account on the machine.
const containerUID = 65534

// container starts a daemon as in a container: the kernel lets its cells mount no /proc of
// their own.
func container(t *testing.T) *covetest.Daemon {
	t.Helper()
	needs.Root(t) // to hide parts of /proc, and to be another user
	needs.GVisor(t)
	needs.Command(t, "unshare", "setpriv", "mount", "nsenter")
	covetest.Patched(t)
	return covetest.Start(t, covetest.Options{UID: containerUID, Container: true, Fresh: true})
}

// TestContainer runs sandboxes as a Pod does in a namespace that enforces the Pod Security
// standard "restricted", through all that happens to sandboxes.
func TestContainer(t *testing.T) {
	d := container(t)
	t.Run("the environment", func(t *testing.T) { restricted(t, d) })
	t.Run("doctor", func(t *testing.T) { doctorInContainer(t, d) })
	a := with(t, d)
	b := with(t, d)
	t.Run("programs", func(t *testing.T) {
		d.Shows(t, a.ID, "echo $((6*7)); test -r /proc/meminfo && cat /proc/1/comm", "42\nagent")
		r, err := d.Client.RunCode(t.Context(), a.ID, sandbox.RunCodeRequest{Language: sandbox.Python, Code: "print(6*7)"}, nil)
		if err != nil || strings.TrimSpace(r.Stdout) != "42" {
			t.Errorf("code: %+v, %v", r, err)
		}
	})
	t.Run("statistics", func(t *testing.T) { countsOwnProcesses(t, d, a.ID, b.ID) })
	t.Run("processors", func(t *testing.T) { pinned(t, a.ID) })
	t.Run("gVisor's roots", func(t *testing.T) { seesNoProc(t, a.ID) })
	t.Run("neighbours", func(t *testing.T) { readsNoNeighbours(t, d, a.ID, b.ID) })
	t.Run("time", func(t *testing.T) { travel(t, d, a.ID) })
	t.Run("a cell dies", func(t *testing.T) { cellDies(t, d, a.ID, b.ID) })
}

// TestMoreContainerVolumes keeps owners in volumes, which needs most of /proc: the supervisor
// performs calls of gVisor's processes, and gVisor has a user namespace of its own. In "make
// test", TestVolumes stands for it.
func TestMoreContainerVolumes(t *testing.T) { keepOwners(t, container(t)) }

// restricted checks that the daemon runs as the test says.
func restricted(t *testing.T, d *covetest.Daemon) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nUid:\t65534\t65534\t65534\t65534\n", "\nCapPrm:\t0000000000000000\n", "\nCapBnd:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the daemon has no %q:\n%s", want, status)
		}
	}
	out, err := d.Command(t.Context(), "version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// doctorInContainer checks that "cove doctor" finds nothing that prevents sandboxes, and
// says what the supervisors see.
func doctorInContainer(t *testing.T, d *covetest.Daemon) {
	out, err := d.Command(t.Context(), "doctor", "--json").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var report sandbox.MachineReport
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	for _, c := range report.Checks {
		if c.Name == "proc" && (c.Status != sandbox.CheckOK || !strings.Contains(c.Detail, "all processes of the container")) {
			t.Errorf("doctor says: %+v", c)
		}
	}
	if !report.OK {
		t.Errorf("doctor finds the machine unfit: %s", out)
	}
}

// countsOwnProcesses checks that what one sandbox uses is not counted for another.
func countsOwnProcesses(t *testing.T, d *covetest.Daemon, busy, idle string) {
	use := func(id string) *sandbox.Stats {
		st, err := d.Client.Stats(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if st.CPUSeconds <= 0 || st.MemoryBytes < 10<<20 {
			t.Errorf("%s uses %+v", id, st)
		}
		return st
	}
	busyBefore, idleBefore := use(busy), use(idle)
	d.Sh(t, busy, `python3 -c '
import time
block = b"x" * (64 << 20)
end = time.process_time() + 2
while time.process_time() < end: pass
'`)
	busyUsed, idleUsed := use(busy).CPUSeconds-busyBefore.CPUSeconds, use(idle).CPUSeconds-idleBefore.CPUSeconds
	if busyUsed < 1 || idleUsed > busyUsed/2 {
		t.Errorf("the busy sandbox used %.2f s, and the idle one %.2f s", busyUsed, idleUsed)
	}
}

// process returns the id of a process of a sandbox.
func process(t *testing.T, id, name string) int {
	t.Helper()
	pid, ok := covetest.ProcessOf(id, name)
	if !ok {
		t.Fatalf("%s has no %s", id, name)
	}
	return pid
}

// pinned checks that each thread of a sandbox's kernel may use as many processors as the
// sandbox has, which is one.
func pinned(t *testing.T, id string) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", process(t, id, "runsc-sandbox")))
	if err != nil || len(tasks) < 2 {
		t.Fatalf("threads: %v, %v", tasks, err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &set); err == nil && set.Count() != 1 {
			t.Errorf("thread %d may use %d processors", tid, set.Count())
		}
	}
}

// seesNoProc checks that gVisor's processes have no /proc, which would be the container's.
func seesNoProc(t *testing.T, id string) {
	for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
		pid := process(t, id, name)
		for _, file := range []string{"self", "1", "host-proc", "sandbox-proc", strconv.Itoa(pid)} {
			if _, err := os.Lstat(fmt.Sprintf("/proc/%d/root/proc/%s", pid, file)); !os.IsNotExist(err) {
				t.Errorf("%s sees /proc/%s: %v", name, file, err)
			}
		}
	}
}

// readsNoNeighbours has a supervisor that was taken over, which sees all processes of the
// container, read what belongs to the daemon and to another sandbox.
func readsNoNeighbours(t *testing.T, d *covetest.Daemon, id, other string) {
	cell := strconv.Itoa(process(t, id, "cove"))
	reads := func(pid int, file string) error {
		path := fmt.Sprintf("/proc/%d/%s", pid, file)
		// As the cell: root in its user namespace, in its mounts.
		out, err := exec.CommandContext(t.Context(), "nsenter", "--target", cell, "--user", "--mount", "--setuid", "0", "--",
			"setpriv", "--regid", "0", "--keep-groups", "--", "head", "-c1", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := reads(process(t, id, "runsc-sandbox"), "maps"); err != nil {
		t.Fatalf("the supervisor cannot read what is its own: %v", err)
	}
	for who, pid := range map[string]int{
		"the daemon": d.PID(), "another supervisor": process(t, other, "cove"), "another sandbox": process(t, other, "runsc-sandbox"),
		"another gofer": process(t, other, "runsc-gofer"),
	} {
		if err := reads(pid, "stat"); err != nil {
			t.Errorf("the supervisor does not see %s: %v", who, err)
		}
		for _, file := range []string{"maps", "environ", "mem", "fd/0", "cwd/etc/passwd", "root/etc/passwd"} {
			if err := reads(pid, file); err == nil || !strings.Contains(err.Error(), "Permission denied") {
				t.Errorf("the supervisor reads %s of %s: %v", file, who, err)
			}
		}
	}
}

// travel takes a sandbox through a pause, a fork and a snapshot, with a program that runs.
func travel(t *testing.T, d *covetest.Daemon, id string) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.Client.Exec(ctx, id, sandbox.ExecRequest{Background: true, Shell: "n=0; while sleep 0.05; do n=$((n+1)); echo $n > /tmp/n; done"}, nil)
	must(err)
	counts := func(id string) {
		t.Helper()
		counted := func() string { return d.Sh(t, id, "cat /tmp/n 2>/dev/null || true") }
		before := counted()
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { now := counted(); return now != "" && now != before }) {
			t.Errorf("the program in %s does not go on", id)
		}
	}
	counts(id)
	_, err = d.Client.Pause(ctx, id)
	must(err)
	_, err = d.Client.Resume(ctx, id, sandbox.ResumeRequest{})
	must(err)
	counts(id)
	forks, err := d.Client.Fork(ctx, id, sandbox.ForkRequest{Count: 2})
	must(err)
	for _, f := range forks.Items {
		counts(f.ID)
	}
	d.Sh(t, id, "echo kept > ~/file")
	_, err = d.Client.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Name: "kept"})
	must(err)
	d.Sh(t, id, "echo changed > ~/file")
	_, err = d.Client.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: "kept"})
	must(err)
	d.Shows(t, id, "cat ~/file", "kept")
	counts(id)
	for _, f := range forks.Items {
		_, err := d.Client.Kill(context.WithoutCancel(ctx), f.ID)
		must(err)
		d.NoTraces(t, f.ID)
	}
}

// cellDies checks that nothing of a sandbox is left when its supervisor is killed, and
// that others do not notice.
func cellDies(t *testing.T, d *covetest.Daemon, id, other string) {
	machines, err := d.Machines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	instance := machines.Instances[id]
	sentry, gofer := process(t, instance, "runsc-sandbox"), process(t, instance, "runsc-gofer")
	if err := unix.Kill(process(t, instance, "cove"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	failed := func() bool {
		s, err := d.Client.Get(t.Context(), id)
		return err == nil && s.State == sandbox.StateFailed
	}
	if !covetest.Eventually(covetest.DetectionLimit, failed) {
		t.Error("the sandbox of a killed cell does not fail")
	}
	d.NoTraces(t, instance)
	for _, pid := range []int{sentry, gofer} {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("process %d of the sandbox is left: %v", pid, err)
		}
	}
	d.Shows(t, other, "echo still here", "still here")
}
