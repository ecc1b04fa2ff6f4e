package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// templateFile sets everything that a template can set, as a user writes it. Its start
// command writes another text each time that it runs.
const templateFile = `
from: {host: true}
files:
  - {path: /opt/mine, content: "mine\n", mode: "0600", owner: app}
  - {path: /opt/numbered, content: "numbered\n", owner: "1234:2345"}
  - {path: /opt/roots, content: "root's\n"}
run:
  - {run: id -un > step, user: app}
workdir: /srv/app
user: app
resources: {vcpus: 2, memory_mib: 512, disk_mib: 64, max_pids: 100}
start: {command: cat /proc/sys/kernel/random/uuid > /srv/app/begun, ready: test -s /srv/app/begun}
warm: {python: "import decimal; begun = decimal.Decimal(42)"}
`

// TestTemplateFile builds a file with the command line, and checks the template's
// sandboxes: they have its user, files and limits, and all continue one state in which
// its program has started and its code has run.
func TestTemplateFile(t *testing.T) {
	needs.Command(t, "python3")
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		cmd := d.Command(t.Context(), "template", "build", "of-file", "-f", "-")
		cmd.Stdin = strings.NewReader(templateFile)
		t.Cleanup(func() {
			if err := d.Client.DeleteTemplate(context.Background(), "of-file"); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				t.Error(err)
			}
		})
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		made, err := d.Client.GetTemplate(t.Context(), "of-file")
		if err != nil || made.WarmBytes == 0 {
			t.Fatalf("the template has no checkpoint: %+v, %v", made, err)
		}
		one, two := d.Create(t, sandbox.CreateRequest{Template: "of-file"}), d.Create(t, sandbox.CreateRequest{Template: "of-file"})
		want := sandbox.Resources{VCPUs: 2, MemoryMiB: 512, DiskMiB: 64, MaxPIDs: 100}
		begun := d.Sh(t, one.ID, "cat begun")
		for _, s := range []*sandbox.Sandbox{one, two} {
			if s.Resources != want || s.User != "app" || s.WorkDir != "/srv/app" {
				t.Errorf("the sandbox is %+v", s)
			}
			d.Shows(t, s.ID, "id -un; pwd; cat step; nproc; echo > of-its-own; cat /opt/mine /opt/numbered", "app\n/srv/app\napp\n2\nmine\nnumbered")
			if got := d.Sh(t, s.ID, "cat begun"); len(got) < 32 || got != begun {
				t.Errorf("the start command has run in it anew: %q and %q", got, begun)
			}
			res, err := d.Client.RunCode(t.Context(), s.ID, sandbox.RunCodeRequest{Language: sandbox.Python, Code: "print(begun)"}, nil)
			if err != nil || res.Stdout != "42\n" {
				t.Errorf("what the warm code has left: %+v, %v", res, err)
			}
		}
		// An ordinary user's daemon has no owners to give.
		if strings.HasSuffix(t.Name(), "/root") {
			d.Shows(t, one.ID, "stat -c '%U:%G %a' /opt/mine /opt/roots; stat -c '%u:%g' /opt/numbered; if echo > /opt/roots; then echo written; fi 2>/dev/null",
				"app:app 600\nroot:root 644\n1234:2345")
		}
		for _, limit := range []struct{ line, said string }{
			{"dd if=/dev/zero of=fill bs=1M count=200", "no space left"},
			{"rm fill; python3 -c 'import threading, time\nfor _ in range(150): threading.Thread(target=time.sleep, args=[60], daemon=True).start()'", "new thread"},
		} {
			res, err := d.Exec(t.Context(), two.ID, sandbox.ExecRequest{Shell: limit.line, TimeoutMS: 60_000})
			if err != nil || !strings.Contains(strings.ToLower(res.Stderr), limit.said) {
				t.Errorf("%s: %+v, %v; want %q", limit.line, res, err, limit.said)
			}
		}
	})
}
