package service

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// The error of a failed step names what the network policy blocked, even if the logs of
// sandboxes without a record were removed before.
func TestBuildTellsWhatWasBlocked(t *testing.T) {
	w := newHarness(t)
	end := filepath.Join(t.TempDir(), "end")
	b := w.beginBuild(sandbox.BuildTemplateRequest{Name: "blocked", Spec: steps("echo begun; until [ -e " + end + " ]; do sleep 0.01; done; exit 3")})
	begun := false
	var machines []string
	_, err := w.FollowBuild(asRed(t), b.ID, func(e sandbox.BuildEvent) error {
		if begun || !strings.Contains(e.Log, "begun") {
			return nil // the reason has it too
		}
		begun = true
		machines = slices.DeleteFunc(w.state.IDs(), func(id string) bool { return !w.Builder.Owns(id) })
		if len(machines) != 1 {
			t.Fatalf("sandboxes of the build: %v", machines)
		}
		for range 2 {
			w.state.AddEvent(sandbox.NetworkEvent{SandboxID: machines[0], Host: "example.com", Verdict: sandbox.NetworkBlocked, Reason: "denied by a rule"})
		}
		w.state.AddEvent(sandbox.NetworkEvent{SandboxID: machines[0], Host: "odd\n\x1b", Verdict: sandbox.NetworkBlocked, Reason: "denied by a rule"})
		must(t, w.Repair(t.Context()))
		return os.WriteFile(end, nil, 0o600)
	})
	must(t, err)
	got, _, _ := w.follow(b.ID)
	for _, want := range []string{"exit code 3", "example.com (denied by a rule)", `"odd\n\x1b" (denied`, "allow it in build_network"} {
		if got.State != sandbox.BuildFailed || !strings.Contains(got.Reason, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	if strings.Count(got.Reason, "example.com") != 1 {
		t.Errorf("it is told twice: %q", got.Reason)
	}
	if slices.ContainsFunc(machines, w.Builder.Owns) {
		t.Errorf("sandboxes of builds are noted for ever: %v", machines)
	}
	w.agree()
}
