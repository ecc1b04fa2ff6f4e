package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// update changes a sandbox.
func update(t *testing.T, d *covetest.Daemon, id string, req sandbox.UpdateRequest) *sandbox.Sandbox {
	t.Helper()
	s, err := d.Client.Update(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// In "make test", TestExecEnforcedOrRefused, TestLimitsBite, and TestUpdateEnforcedOrRefused of
// package service, stand for it.
func TestMoreUpdateEnforcedOrRefused(t *testing.T) {
	everyField[sandbox.UpdateRequest](t, true, map[string]proof{
		"name": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Name = "before" })
			update(t, d, "before", sandbox.UpdateRequest{Name: ptr("after")})
			d.Shows(t, "after", "echo here", "here")
			_, err := d.Client.Get(t.Context(), "before")
			covetest.WantCode(t, err, sandbox.CodeNotFound)
			other := with(t, d)
			_, err = d.Client.Update(t.Context(), other.ID, sandbox.UpdateRequest{Name: ptr("after")})
			covetest.WantCode(t, err, sandbox.CodeConflict)
			// The host name is for life.
			d.Shows(t, s.ID, "hostname", "before")
		},
		"metadata": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Metadata = map[string]string{"k": "1"} })
			update(t, d, s.ID, sandbox.UpdateRequest{Metadata: map[string]string{"l": "2"}})
			found(t, d, s.ID, sandbox.ListRequest{Metadata: map[string]string{"l": "2"}}, sandbox.ListRequest{Metadata: map[string]string{"k": "1"}})
		},
		"env": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Env = map[string]string{"OLD": "1"} })
			update(t, d, s.ID, sandbox.UpdateRequest{Env: map[string]string{"NEW": "2"}})
			d.Shows(t, s.ID, `echo "$OLD-$NEW-${PATH:+path}"`, "-2-path")
		},
		"vcpus":      updateCPUs,
		"memory_mib": updateMemory,
		"max_pids": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.MaxPIDs = 40 })
			update(t, d, s.ID, sandbox.UpdateRequest{MaxPIDs: ptr(int64(80))})
			if n := processLimit(t, d, s.ID); n <= 40 || n > 80 {
				t.Errorf("%d processes at once after an update from 40 to 80", n)
			}
			update(t, d, s.ID, sandbox.UpdateRequest{MaxPIDs: ptr(int64(30))})
			if n := processLimit(t, d, s.ID); n > 30 {
				t.Errorf("%d processes at once after an update to 30", n)
			}
		},
		"lifetime_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small())
			u := update(t, d, s.ID, sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(1))})
			ends(t, d, s.ID, *u.ExpiresAt, "its lifetime of 1s ended")
		},
		"idle_timeout_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small())
			began := time.Now()
			update(t, d, s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(1))})
			ends(t, d, s.ID, began.Add(time.Second), "it was idle for 1s")
		},
		"checkpoint_interval_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small())
			keeps(t, d, s.ID, false)
			update(t, d, s.ID, sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(60))})
			keeps(t, d, s.ID, true)
			update(t, d, s.ID, sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(0))})
			keeps(t, d, s.ID, false)
		},
		"paused_lifetime_seconds": func(t *testing.T, d *covetest.Daemon) {
			s := d.Create(t, covetest.Small())
			if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			update(t, d, s.ID, sandbox.UpdateRequest{PausedLifetimeSeconds: ptr(int64(1))})
			endsPaused(t, d, s.ID)
		},
		"history": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d)
			hasSteps(t, d, s.ID, 0)
			update(t, d, s.ID, sandbox.UpdateRequest{History: ptr(2)})
			hasSteps(t, d, s.ID, 2)
			terminalStep(t, d, s.ID)
			update(t, d, s.ID, sandbox.UpdateRequest{History: ptr(0)})
			hasSteps(t, d, s.ID, 0)
		},
		"on_timeout": func(t *testing.T, d *covetest.Daemon) {
			s := with(t, d)
			update(t, d, s.ID, sandbox.UpdateRequest{OnTimeout: ptr(sandbox.ActionPause), IdleTimeoutSeconds: ptr(int64(1))})
			pauses(t, d, s.ID)
			if u := update(t, d, s.ID, sandbox.UpdateRequest{OnTimeout: ptr(sandbox.ActionKill)}); u.OnTimeout != sandbox.ActionKill {
				t.Errorf("on timeout %s", u.OnTimeout)
			}
		},
	})
}

// terminalStep checks that a step is made before a command on a terminal, as the
// command line runs them.
func terminalStep(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	term, err := d.Client.OpenTerminal(t.Context(), id, sandbox.ExecRequest{Command: []string{"date"}})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	if _, err := term.Run(nil); err != nil {
		t.Fatal(err)
	}
	list, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{Sandbox: id, Automatic: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 || list.Items[0].Label != "before date" {
		t.Errorf("after a command of a terminal the steps are %+v", list.Items)
	}
}

// Memory can be raised beyond its first value, and lowered. The figure that programs
// see stays, as the request's documentation says.
func updateMemory(t *testing.T, d *covetest.Daemon) {
	s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.MemoryMiB = 128 })
	if takes(t, d, s.ID, 200, 60) {
		t.Error("200 MiB fit into 128")
	}
	update(t, d, s.ID, sandbox.UpdateRequest{MemoryMiB: ptr(int64(384))})
	if !takes(t, d, s.ID, 260, 1) {
		t.Error("260 MiB do not fit after an update to 384")
	}
	if takes(t, d, s.ID, 480, 60) {
		t.Error("480 MiB fit after an update to 384")
	}
	d.Shows(t, s.ID, `awk '/MemTotal/ {print $2}' /proc/meminfo`, fmt.Sprint(128<<10))
	update(t, d, s.ID, sandbox.UpdateRequest{MemoryMiB: ptr(int64(128))})
	if takes(t, d, s.ID, 200, 60) {
		t.Error("200 MiB fit after an update back to 128")
	}
	// Lowered below what is in use: a program ends, the sandbox does not.
	update(t, d, s.ID, sandbox.UpdateRequest{MemoryMiB: ptr(int64(512))})
	started := make(chan struct{})
	hog := covetest.Call(func() error {
		res, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"perl", "-e", `$| = 1; my $n = 300 << 20; my $x = "x" x $n; print "up\n"; sleep 60`}}, func(ev sandbox.JobEvent) error {
			if len(ev.Data) > 0 {
				close(started)
			}
			return nil
		})
		if err == nil && res.EndCause != sandbox.EndOutOfMemory {
			err = fmt.Errorf("it ended with %+v", res)
		}
		return err
	})
	covetest.Wait(t, started)
	update(t, d, s.ID, sandbox.UpdateRequest{MemoryMiB: ptr(int64(64))})
	if err := hog(t); err != nil {
		t.Errorf("a program with 300 MiB after an update to 64: %v", err)
	}
	d.Shows(t, s.ID, "echo alive", "alive")
}

// cores returns how many processors a sandbox used on average over some time,
// as its cgroup says, or, without one, as the sandbox's statistics do.
func cores(t *testing.T, d *covetest.Daemon, over time.Duration, ids ...string) []float64 {
	t.Helper()
	read := func(id string) float64 {
		if seconds, ok := covetest.GroupCPU(id); ok {
			return seconds
		}
		st, err := d.Client.Stats(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return st.CPUSeconds
	}
	before, began := make([]float64, len(ids)), make([]time.Time, len(ids))
	for i, id := range ids {
		began[i], before[i] = time.Now(), read(id)
	}
	<-time.After(over)
	used := make([]float64, len(ids))
	for i, id := range ids {
		now := read(id)
		used[i] = (now - before[i]) / time.Since(began[i]).Seconds()
	}
	return used
}

// idleSeconds is how long the machine's processors have been idle in all.
func idleSeconds(t *testing.T) float64 {
	t.Helper()
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data))
	if len(fields) < 5 {
		t.Fatalf("/proc/stat begins with %q", fields)
	}
	ticks, err := strconv.ParseFloat(fields[4], 64)
	if err != nil {
		t.Fatal(err)
	}
	return ticks / 100 // USER_HZ, which is 100 on all that Go runs on
}

// spin starts programs in a sandbox that want a processor each.
func spin(t *testing.T, d *covetest.Daemon, id string, n int) {
	t.Helper()
	for range n {
		_, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"perl", "-e", "1 while 1"}, Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// processors is held while a test measures them, since the tests of both users run at
// once.
var processors sync.Mutex

func updateCPUs(t *testing.T, d *covetest.Daemon) {
	processors.Lock()
	defer processors.Unlock()
	s := with(t, d, func(r *sandbox.CreateRequest) { r.Resources.VCPUs = 1 })
	spin(t, d, s.ID, 3)
	// Others use the machine too, so more is a matter of patience.
	update(t, d, s.ID, sandbox.UpdateRequest{VCPUs: ptr(2)})
	var used, unused float64
	more := func() bool {
		idle := idleSeconds(t)
		began := time.Now()
		used = cores(t, d, 500*time.Millisecond, s.ID)[0]
		if used > 0.9 { // the programs have started
			unused = max(unused, (idleSeconds(t)-idle)/time.Since(began).Seconds())
		}
		return used > 1.2
	}
	switch {
	case covetest.Eventually(20*time.Second, more):
	case unused < 0.3:
		t.Logf("three programs use %.2f processors after an update from 1 to 2; the machine has no more", used)
	default:
		t.Errorf("three programs use %.2f processors after an update from 1 to 2, while %.2f were idle", used, unused)
	}
	update(t, d, s.ID, sandbox.UpdateRequest{VCPUs: ptr(1)})
	if used := cores(t, d, time.Second, s.ID)[0]; used > 1.2 {
		t.Errorf("three programs use %.2f processors after an update back to 1", used)
	}
	// What programs see is for life, as the request's documentation says.
	d.Shows(t, s.ID, "nproc", "1")
}

// One processor is one, however many programs want it, and sandboxes that want the same get the
// same. In "make test", TestNoisyNeighbour of package escape, and the tests of
// internal/machine/cgroup, stand for it.
func TestMoreProcessorLimitBites(t *testing.T) {
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		processors.Lock()
		defer processors.Unlock()
		a, b := with(t, d), with(t, d)
		spin(t, d, a.ID, 4)
		if used := cores(t, d, 2*time.Second, a.ID)[0]; used > 1.2 || used == 0 {
			t.Errorf("four programs use %.2f processors with a limit of 1", used)
		}
		spin(t, d, b.ID, 1)
		// Without cgroups, processors are shared by program, not by sandbox. Others use the
		// machine too; where nothing is shared by sandbox, no sample is fair.
		_, grouped := covetest.GroupCPU(a.ID)
		var used []float64
		fair := func() bool {
			used = cores(t, d, 2*time.Second, a.ID, b.ID)
			t.Logf("four programs use %.2f processors, one in another sandbox %.2f", used[0], used[1])
			return !grouped || used[1] >= 0.5*used[0]
		}
		if !covetest.Eventually(covetest.DetectionLimit, fair) {
			t.Errorf("%.2f processors for four programs and %.2f for one in another sandbox, want about the same", used[0], used[1])
		}
	})
}

// Programs choose their size by what they see, which must be the sandbox's own limits. In "make
// test", TestTemplateFile, which asks nproc, stands for it.
func TestMoreRuntimesSizeThemselves(t *testing.T) {
	const memory = 512
	type sizes struct{ cpus, heap float64 }
	runtimes := []struct {
		name, need string
		command    []string
	}{
		{"node", "/usr/bin/node", []string{"node", "-e", `console.log(require("os").cpus().length, require("v8").getHeapStatistics().heap_size_limit)`}},
		{"python", "/usr/bin/python3", []string{"/usr/bin/python3", "-c", `import os; print(os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))`}},
		{"java", "/usr/bin/java", []string{"java", "-XX:+PrintFlagsFinal", "-version"}},
		{"go", "/usr/bin/nproc", []string{"nproc"}},
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		counts := []int{1} // two stand for no limit on a machine with two
		if needs.Soak() {
			counts = append(counts, 2)
		}
		for _, cpus := range counts {
			s := with(t, d, func(r *sandbox.CreateRequest) {
				r.Resources.VCPUs, r.Resources.MemoryMiB, r.Resources.DiskMiB = cpus, memory, 256
			})
			for _, rt := range runtimes {
				t.Run(fmt.Sprintf("%s with %d", rt.name, cpus), func(t *testing.T) {
					needs.File(t, rt.need)
					res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: rt.command})
					if err != nil || res.Job.ExitCode != 0 {
						t.Fatalf("%v: %+v, %v", rt.command, res, err)
					}
					got := sizes{cpus: float64(cpus)}
					if rt.name == "java" {
						got.heap = javaHeap(t, res.Stdout)
					} else if _, err := fmt.Sscan(res.Stdout, &got.cpus, &got.heap); err != nil && rt.name != "go" {
						t.Fatalf("%q: %v", res.Stdout, err)
					}
					if got.cpus != float64(cpus) || got.heap > memory<<20 {
						t.Errorf("it sees %v processors and takes up to %.0f MiB; want %d, and at most %d MiB", got.cpus, got.heap/(1<<20), cpus, memory)
					}
				})
			}
		}
	})
}

// javaHeap reads MaxHeapSize from the flags that a Java machine prints.
func javaHeap(t *testing.T, out string) float64 {
	t.Helper()
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		var n float64
		if len(f) > 3 && f[1] == "MaxHeapSize" {
			if _, err := fmt.Sscan(f[3], &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no MaxHeapSize in %q", out)
	return 0
}
