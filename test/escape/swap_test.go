package escape

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: a user of a sandbox puts a link to a directory of root's where the
// agent, which is root there, makes or deletes a directory, as fast as can be. If
// the agent followed it, that user would own the link's target, or what is in it
// would be gone.
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
			// Each may well fail: what matters is what it did.
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
