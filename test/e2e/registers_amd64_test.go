package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Programs compute what is right on a machine that has far fewer processors than busy threads:
// a thread that is interrupted continues with its own registers. In "make test", nothing stands
// for it.
func TestMoreRegistersSurviveLoad(t *testing.T) {
	needs.Command(t, "gcc")
	path := filepath.Join(t.TempDir(), "registers")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-O2", "-static", "-pthread", "-o", path, "testdata/registers.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The other programs share the sandbox's two processors with those that count.
	seconds := 5
	if needs.Soak() {
		seconds = 15
	}
	line := fmt.Sprintf(`bad=0
for i in 1 2 3 4 5; do perl -e 'select(undef, undef, undef, 0.02) while 1' & others="$others $!"; done
for i in 1 2 3; do ./registers %d & counting="$counting $!"; done
for pid in $counting; do wait $pid || bad=1; done
kill $others
exit $bad`, seconds)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		var ids []string
		for range 4 {
			id := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 2}}).ID
			if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/workspace/registers", Mode: "0755"}, bytes.NewReader(program)); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		var running errgroup.Group
		for _, id := range ids {
			running.Go(func() error {
				r, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line})
				if err != nil || r.Job.ExitCode != 0 {
					t.Errorf("a thread went on with wrong registers, or could not run:\n%s%s%v", r.Stdout, r.Stderr, err)
				}
				return nil
			})
		}
		_ = running.Wait()
	})
}
