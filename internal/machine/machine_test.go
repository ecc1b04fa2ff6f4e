package machine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/machine/cgroup"

	"github.com/cove-sh/cove/sandbox"
)

func TestProbeLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r := Probe(t.Context(), Config{StateDir: filepath.Join(dir, "not", "there")})
	for _, c := range r.Checks {
		t.Logf("%-4s %s: %s", c.Status, c.Name, c.Detail)
		if c.Name == "" || c.Detail == "" || c.Status != sandbox.CheckOK && c.Status != sandbox.CheckWarn && c.Status != sandbox.CheckFail {
			t.Errorf("incomplete check %+v", c)
		}
		if c.Status == sandbox.CheckFail && c.Fix == "" {
			t.Errorf("nothing to do about %+v", c)
		}
		if c.Status == sandbox.CheckFail && r.OK {
			t.Errorf("the machine is fine although %s failed", c.Name)
		}
	}
	if len(r.Checks) < 15 || len(r.Limits) != 4 {
		t.Errorf("%d checks, %d limits", len(r.Checks), len(r.Limits))
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat("/proc/self/fd"); err == nil {
		before, _ := os.ReadDir("/proc/self/fd")
		Probe(t.Context(), Config{StateDir: dir})
		if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before) {
			t.Errorf("%d open files, %d before", len(after), len(before))
		}
	}
}

func TestProbeGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Probe(ctx, Config{}); r.OK || len(r.Checks) != 0 {
		t.Errorf("report after cancel: %+v", r)
	}
}

func TestChecks(t *testing.T) {
	inContainer := func(p probe) sandbox.MachineCheck {
		p.foreignProc = true
		return p.procMount()
	}
	tests := []struct {
		name  string
		root  bool
		files map[string]string
		check func(probe) sandbox.MachineCheck
		want  sandbox.CheckStatus
		fix   string
	}{
		{"old kernel", true, map[string]string{"sys/kernel/osrelease": "4.4.0-generic"}, probe.kernel, sandbox.CheckWarn, "5.4"},
		{"new kernel", true, map[string]string{"sys/kernel/osrelease": "6.1.0-1-amd64"}, probe.kernel, sandbox.CheckOK, ""},
		{"no kernel version", true, nil, probe.kernel, sandbox.CheckWarn, ""},
		{"container root", true, map[string]string{"self/status": "CapEff:\t00000000a80425fb\n"}, probe.namespaces, sandbox.CheckFail, "CAP_SYS_ADMIN"},
		{"masked proc as user", false, map[string]string{"self/mountinfo": "1 2 0:1 / /proc/kcore rw - tmpfs t rw\n"}, probe.procMount, sandbox.CheckFail, "systempaths"},
		{"masked proc without children", false, map[string]string{"self/mountinfo": "1 2 0:1 / /proc/kcore rw - tmpfs t rw\n"}, inContainer, sandbox.CheckFail, "PROC_CHILDREN"},
		{"masked proc", false, map[string]string{"self/mountinfo": "1 2 0:1 / /proc/kcore rw - tmpfs t rw\n", "self/task/1/children": ""}, inContainer, sandbox.CheckOK, ""},
		{"masked proc as root", true, map[string]string{"self/mountinfo": "1 2 0:1 / /proc/kcore rw - tmpfs t rw\n"}, probe.procMount, sandbox.CheckOK, ""},
		{"binfmt", false, map[string]string{"self/mountinfo": "1 2 0:1 / /proc/sys/fs/binfmt_misc rw - autofs t rw\n"}, probe.procMount, sandbox.CheckOK, ""},
		{"does not support seccomp", true, nil, probe.seccomp, sandbox.CheckFail, "SECCOMP"},
		{"ptrace off", true, map[string]string{"sys/kernel/yama/ptrace_scope": "3\n"}, probe.ptrace, sandbox.CheckFail, "boot"},
		{"ptrace for root", true, map[string]string{"sys/kernel/yama/ptrace_scope": "2\n"}, probe.ptrace, sandbox.CheckOK, ""},
		{"ptrace for a user", false, map[string]string{"sys/kernel/yama/ptrace_scope": "2\n"}, probe.ptrace, sandbox.CheckFail, "ptrace_scope=1"},
		{"no ptrace setting", false, nil, probe.ptrace, sandbox.CheckOK, ""},
		{"uncounted swap", true, map[string]string{"meminfo": "SwapTotal: 1048576 kB\n"}, probe.swap, sandbox.CheckWarn, "swapaccount"},
		{"no swap", true, map[string]string{"meminfo": "SwapTotal: 0 kB\n"}, probe.swap, sandbox.CheckOK, ""},
		{"no cgroups", false, nil, probe.cgroup, sandbox.CheckWarn, "Delegate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := probe{root: tt.root, proc: t.TempDir(), cgroups: cgroup.Support{Version: "none"}}
			for name, content := range tt.files {
				f := filepath.Join(p.proc, name)
				if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := tt.check(p); got.Status != tt.want || !strings.Contains(got.Fix, tt.fix) {
				t.Errorf("%+v, want %s with %q", got, tt.want, tt.fix)
			}
		})
	}
}

func TestHasRange(t *testing.T) {
	const text = "alice:100000:65536\n1001:165536:65536\nbob:1:1000\nbroken\ncarol:x:y\n"
	got := map[string]bool{}
	for _, u := range [][2]string{{"alice", "1000"}, {"bert", "1001"}, {"bob", "1002"}, {"carol", "1003"}, {"", ""}} {
		got[u[0]] = hasRange(text, u[0], u[1])
	}
	if d := cmp.Diff(map[string]bool{"alice": true, "bert": true, "bob": false, "carol": false, "": false}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
