package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// tree imitates a unified hierarchy: new directories have the kernel's files.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T, own string, controllers string) *tree {
	root := t.TempDir()
	tr := &tree{t: t, root: root}
	tr.put("proc/self/cgroup", "0::"+own+"\n")
	tr.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	tr.put("sys/fs/cgroup/cgroup.controllers", controllers)
	tr.put("sys/fs/cgroup/cgroup.subtree_control", "")
	tr.put("sys/fs/cgroup/cgroup.procs", "1\n")
	return tr
}

func (tr *tree) put(file, content string) {
	tr.t.Helper()
	p := filepath.Join(tr.root, file)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) get(file string) string {
	tr.t.Helper()
	b, err := os.ReadFile(filepath.Join(tr.root, file))
	if err != nil {
		tr.t.Fatal(err)
	}
	return string(b)
}

// cgroup makes a directory as the kernel would below the top.
func (tr *tree) cgroup(dir, controllers, procs string) {
	for f, c := range map[string]string{
		"cgroup.type": "domain\n", "cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": procs,
		"cgroup.kill": "", "cpu.stat": "usage_usec 1500\nuser_usec 1000\n", "cpu.max": "max 100000",
		"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.current": "4096\n",
		"memory.events": "low 0\noom 3\noom_kill 2\n", "pids.max": "max", "pids.current": "7\n",
	} {
		tr.put(filepath.Join(dir, f), c)
	}
}

func (tr *tree) detect() *hierarchies {
	h := detect(tr.root)
	h.mkdir = func(d string) error {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		rel, _ := filepath.Rel(tr.root, d)
		tr.cgroup(rel, strings.TrimSpace(strings.ReplaceAll(tr.get(filepath.Join(filepath.Dir(rel), "cgroup.subtree_control")), "+", "")), "")
		return nil
	}
	h.rmdir = os.RemoveAll
	return h
}

func TestV2DelegatedSubtree(t *testing.T) {
	const own = "/user.slice/cove.scope"
	tr := newTree(t, own, "cpu memory pids")
	self := fmt.Sprint(os.Getpid())
	tr.cgroup("sys/fs/cgroup"+own, "cpu memory pids", self+"\n")
	// The imitation keeps the last controller written; that all are enabled shows what the
	// kernel would show afterwards.
	h := tr.detect()

	if got := h.support(); !got.Memory || !got.CPU || !got.PIDs || !got.Swap || got.Version != "v2" {
		t.Fatalf("support = %+v", got)
	}
	tr.put("sys/fs/cgroup"+own+"/cgroup.subtree_control", "cpu memory pids")
	g, err := h.create("sbx-1", Limits{MemoryBytes: 1 << 20, CPUs: 1.5, PIDs: 9})
	if err != nil {
		t.Fatal(err)
	}
	if got := tr.get("sys/fs/cgroup" + own + "/cove-daemon/cgroup.procs"); got != self {
		t.Errorf("moved out of the parent: %q, want %s", got, self)
	}
	dir := "sys/fs/cgroup" + own + "/cove/sbx-1"
	want := map[string]string{
		"memory.max": "1048576", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000", "pids.max": "9",
	}
	got := map[string]string{}
	for f := range want {
		got[f] = tr.get(dir + "/" + f)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
	s, err := g.Stats()
	if d := cmp.Diff(Stats{CPUNanos: 1500000, MemoryBytes: 4096, OOMKills: 2, PIDs: 7}, s); err != nil || d != "" {
		t.Errorf("stats: %v (-want +got):\n%s", err, d)
	}
	if err := g.Enter(4242); err != nil || tr.get(dir+"/cgroup.procs") != "4242" {
		t.Errorf("enter: %v, procs %q", err, tr.get(dir+"/cgroup.procs"))
	}
	if names, _ := h.list("sbx-"); !slices.Equal(names, []string{"sbx-1"}) {
		t.Errorf("list = %v", names)
	}
	// With a limit below the memory in use, the kernel would kill processes.
	tr.put(dir+"/memory.stat", "anon 600000\nfile 900000\nshmem 200000\n")
	if err := g.Update(Limits{MemoryBytes: 700_000, PIDs: 3}); !errors.Is(err, unix.EBUSY) || tr.get(dir+"/pids.max") != "9" {
		t.Errorf("a limit below what is in use: %v", err)
	}
	if err := g.Update(Limits{MemoryBytes: 800_000}); err != nil || tr.get(dir+"/memory.max") != "800000" {
		t.Errorf("a limit that fits: %v, %s", err, tr.get(dir+"/memory.max"))
	}
	// From its present leaf, the process finds the same groups.
	tr.put("proc/self/cgroup", "0::"+own+"/cove-daemon\n")
	if g2, err := tr.detect().open("sbx-1"); err != nil || g2.v2 != g.v2 {
		t.Errorf("open: %v, %v", g2, err)
	}
}

// TestRemoveWaits checks that Remove waits for the kernel, which may take time to
// release a group whose processes have just ended, and copes with delays of this process.
func TestRemoveWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		busy int           // how often the kernel reports that the group is in use
		stop time.Duration // how long this process then does not run
		want error
	}{
		{"a moment", 20, 0, nil},
		{"a standstill", 1, 2 * patience, nil},
		{"for ever", 1 << 30, 0, unix.EBUSY},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t, "/", "cpu memory pids")
			synctest.Test(t, func(t *testing.T) {
				h := tr.detect()
				g, err := h.create("sbx-1", Limits{PIDs: 9})
				if err != nil {
					t.Fatal(err)
				}
				tries := 0
				h.rmdir = func(dir string) error {
					if tries++; tries > tt.busy {
						return os.RemoveAll(dir)
					}
					time.Sleep(tt.stop)
					return unix.EBUSY
				}
				began := time.Now()
				if err := g.Remove(); !errors.Is(err, tt.want) {
					t.Errorf("remove: %v after %v, want %v", err, time.Since(began), tt.want)
				}
				if took := time.Since(began); tt.want != nil && (took < patience || took > patience+time.Second) {
					t.Errorf("gave up after %v, want %v", took, patience)
				}
			})
		})
	}
}

func TestV2EnablesMissingControllers(t *testing.T) {
	tr := newTree(t, "/", "cpu memory pids")
	h := tr.detect()
	p := h.prepare()
	if d := cmp.Diff(map[string]bool{cpu: true, memory: true, pids: true}, p.v2has); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := tr.get("sys/fs/cgroup/cgroup.subtree_control"); !strings.HasPrefix(got, "+") {
		t.Errorf("subtree_control = %q", got)
	}
}

func TestV2Missing(t *testing.T) {
	tests := []struct {
		name  string
		setup func(*tree)
		want  string
	}{
		{"no controllers", func(tr *tree) { tr.put("sys/fs/cgroup/cgroup.controllers", "cpu pids") }, "memory: the kernel offers no memory controller here"},
		{"crowded", func(tr *tree) {
			tr.put("sys/fs/cgroup/cgroup.type", "domain") // a container's part of the hierarchy
		}, "memory: other processes are in the same cgroup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t, "/", "cpu memory pids")
			tt.setup(tr)
			h := tr.detect()
			if got := strings.Join(h.support().Missing, "\n"); !strings.Contains(got, tt.want) {
				t.Errorf("missing = %q, want %q", got, tt.want)
			}
			g, err := h.create("x", Limits{MemoryBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(g.Missing(), "\n"); !strings.Contains(got, tt.want) {
				t.Errorf("group's missing = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNoCgroups(t *testing.T) {
	h := detect(t.TempDir())
	if got := h.support(); got.Version != "none" || len(got.Missing) != 3 {
		t.Errorf("support = %+v", got)
	}
	g, err := h.create("x", Limits{MemoryBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := g.Stats(); err != nil || s != (Stats{}) {
		t.Errorf("stats = %+v, %v", s, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

func TestParseMount(t *testing.T) {
	own := map[string]string{"": "/a/cove-daemon", "memory": "/docker/abc/x", "pids": "/../out", "cpu": "/s/cove/sbx-1"}
	tests := []struct {
		line string
		want mount
		ok   bool
	}{
		{"1 2 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw", mount{dir: "/sys/fs/cgroup", v2: true, at: "/sys/fs/cgroup/a/cove-daemon", own: "/sys/fs/cgroup/a"}, true},
		{"1 2 0:1 /docker/abc /c/m rw shared:1 - cgroup c rw,memory", mount{dir: "/c/m", controllers: []string{"memory"}, at: "/c/m/x", own: "/c/m/x"}, true},
		{"1 2 0:1 / /c/pids rw - cgroup c rw,pids", mount{dir: "/c/pids", controllers: []string{"pids"}, at: "/c/pids", own: "/c/pids"}, true},
		{"1 2 0:1 / /c/cpu rw - cgroup c rw,cpu,cpuacct", mount{dir: "/c/cpu", controllers: []string{"cpu", "cpuacct"}, at: "/c/cpu", own: "/c/cpu"}, true},
		{"1 2 0:1 / /c/d rw - cgroup c rw,devices", mount{}, false},
		{"1 2 0:1 / /tmp rw - tmpfs t rw", mount{}, false},
		{"garbage", mount{}, false},
		{"", mount{}, false},
	}
	for _, tt := range tests {
		got, ok := parseMount(tt.line, "/", own)
		if ok != tt.ok {
			t.Errorf("%q: ok = %v", tt.line, ok)
			continue
		}
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(mount{})); ok && d != "" {
			t.Errorf("%q (-want +got):\n%s", tt.line, d)
		}
	}
}
