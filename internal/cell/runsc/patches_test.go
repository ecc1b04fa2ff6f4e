package runsc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPatchesApply checks that the patches of gVisor apply to exactly the version that
// go.mod pins, and that they provide the names that the cell uses.
func TestPatchesApply(t *testing.T) {
	const root = "../../.."
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.CommandContext(t.Context(), "./scripts/patch-gvisor", out)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for name, want := range map[string][]string{
		"gvisor.mod": {"replace gvisor.dev/gvisor => " + out + "/gvisor"},
		"gvisor/pkg/sentry/state/stateipc/background.go":    {"func (*OpenResponse) ForkPatch() int", "BackgroundReads() (int, bool)"},
		"gvisor/pkg/sentry/control/ondemand.go":             {"func (s *State) LoadInBackground(", `json:"left_bytes"`, `json:"memory_bytes"`, `json:"failures"`, `json:"reads"`, `json:"files_only"`},
		"gvisor/pkg/sentry/control/freeze.go":               {"func (s *State) AccountMemory(", "func (s *State) Freezable(", "func (s *State) Freeze(", "func (s *State) Thaw(", `json:"id"`, `json:"keep"`, `json:"max_ranges"`, `json:"device"`, `json:"inode"`, `json:"ranges"`, `json:"files"`, `json:"whole"`},
		"gvisor/pkg/sentry/fsimpl/tmpfs/regular_file.go":    {"rf.unfreezeEnd(", "rf.translateFrozenLocked(", "rf.invalidateFrozen()", "rw.copyIn("},
		"gvisor/pkg/sentry/kernel/shm/shm.go":               {"s.unfreezeLocked("},
		"gvisor/runsc/container/procdir.go":                 {"func (Args) SetProcDir(dir func(pid int) string)"},
		"gvisor/runsc/container/container.go":               {`specutils.ProcPath(c.GoferPid.Load(), "root")`},
		"gvisor/pkg/sentry/mm/address_space.go":             {"setMapUnit(mf.LoadUnit())"},
		"gvisor/pkg/sentry/pgalloc/save_restore.go":         {"f.nextDataLocked(fr)", "f.withdrawFreezesLocked()", "f.releaseUnreferenced()"},
		"gvisor/pkg/sentry/platform/systrap/filters.go":     {"vars.GetUint64(processIDVarName)"},
		"gvisor/runsc/boot/filter/filter_precompiled.go":    {`HostFilesystem=true ProfileEnable=false`, `HostFilesystem=false ProfileEnable=false`},
		"gvisor/runsc/fsgofer/filter/filter_precompiled.go": {`DirectFS=true LisafsNeeded=true`},
		"gvisor/runsc/boot/restore.go":                      {"boostRestore()"},
	} {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s has no %q", name, w)
			}
		}
	}
	heads, err := filepath.Glob(root + "/patches/gvisor/*.patch")
	if err != nil || len(heads) == 0 {
		t.Fatalf("patches: %v, %v", heads, err)
	}
	for _, p := range heads {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\ndiff --git ")
		for _, want := range []string{"\nWhat: ", "\nWhy: ", "\nUpstream: ", "\nWhat would break it: "} {
			if !strings.Contains(head, want) {
				t.Errorf("the head of %s has no %q", p, strings.TrimSpace(want))
			}
		}
	}
}

// Tests are compiled with the unpatched module, which must say so.
func TestPatched(t *testing.T) {
	if Patched() || Freezes() || WorksInForeignProc() {
		t.Error("gVisor as it is says that it has patches")
	}
}
