package escape

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: while the agent, which is root in a sandbox, makes or deletes a directory, a
// user of the sandbox quickly puts a link to one of root's directories in its place. If
// the agent followed the link, that user would own the link's target, or the target's
// content would be deleted.
func TestSwappedDirectories(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		root := func(line string) string {
			t.Helper()
			res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, User: "root"})
			if err != nil || res.Job.ExitCode != 0 {
				t.Fatalf("%s: %v, %+v, %s", line, err, res.Job, res.Stderr)
			}
			return res.Stdout
		}
		root("mkdir -p /root-only/sub /tmp/ours && touch /root-only/file /root-only/sub/file && chmod 755 /root-only /root-only/sub && chown user /tmp/ours")
		const look = "stat -c '%n %U %a' /root-only /root-only/sub /root-only/file /root-only/sub/file"
		before := root(look)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		attacked := make(chan covetest.Result, 1)
		go func() {
			res, _ := d.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/tmp/attacker", "swap", "/tmp/ours/dir", "/root-only", "8s"}, User: "user"})
			attacked <- res
		}()
		var res covetest.Result
		calls := 0
		for over := false; !over; calls++ {
			// Each call may fail; only its effect matters.
			_, _ = d.Client.MakeDir(t.Context(), id, sandbox.MakeDirRequest{Path: "/tmp/ours/dir", Mode: "0777"})
			_ = d.Client.DeleteFile(t.Context(), id, "/tmp/ours/dir", true)
			select {
			case res = <-attacked:
				over = true
			default:
			}
		}
		if !strings.Contains(res.Stdout, "swapped: ok") {
			t.Errorf("the attack did not come about in %d calls: %q, %q", calls, res.Stdout, res.Stderr)
		}
		if after := root(look); after != before {
			t.Errorf("before:\n%safter %d calls:\n%s", before, calls, after)
		}
	})
}
