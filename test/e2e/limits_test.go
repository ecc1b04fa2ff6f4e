package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// The attacks on the machine's resources. Beside the attacked sandbox there is
// a neighbour that must not notice, and the attacked one must stay usable or
// say why not.
func TestLimitsBite(t *testing.T) {
	attacks := []struct {
		name string
		line string
		// check checks the caller's result.
		check func(t *testing.T, res covetest.Result)
	}{
		{
			// Each process starts two more, for ever. The bomb is ended or dies out; the
			// shell continues until one of its own forks fails too.
			"fork bomb", `bomb() { bomb | bomb & }; bomb; for i in $(seq 60); do sleep 1 || break; done; echo survived`,
			func(t *testing.T, res covetest.Result) {
				if res.Job.EndCause != sandbox.EndProcessLimit && !strings.Contains(res.Stderr, "fork") {
					t.Errorf("end cause %q, exit code %d, stderr %.200q: want process_limit, or a word about fork", res.Job.EndCause, res.Job.ExitCode, res.Stderr)
				}
			},
		},
		{
			"memory hog", `exec perl -e 'my @a; push @a, "x" x (8<<20) while 1'`,
			func(t *testing.T, res covetest.Result) {
				if res.Job.EndCause != sandbox.EndOutOfMemory {
					t.Errorf("end cause %q, exit code %d: want out_of_memory", res.Job.EndCause, res.Job.ExitCode)
				}
			},
		},
		{
			"disk filler", `dd if=/dev/zero of=/workspace/fill bs=1M`,
			func(t *testing.T, res covetest.Result) {
				if !strings.Contains(res.Stderr, "No space left") {
					t.Errorf("stderr %.300q: want no space left", res.Stderr)
				}
			},
		},
		{
			"descriptor exhaustion", `exec perl -MPOSIX -e '1 while defined POSIX::dup(0); die "dup: $!\n"'`,
			func(t *testing.T, res covetest.Result) {
				if !strings.Contains(res.Stderr, "Too many open files") {
					t.Errorf("stderr %.300q: want too many open files", res.Stderr)
				}
			},
		},
		{
			"kill everything", `kill -9 -1; sleep 1`,
			func(t *testing.T, res covetest.Result) {
				if res.Job.Signal == "" && res.Job.ExitCode != 137 && res.Job.ExitCode != 0 {
					t.Errorf("exit code %d, signal %q", res.Job.ExitCode, res.Job.Signal)
				}
			},
		},
	}
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		neighbour := d.Create(t, sandbox.CreateRequest{Name: "neighbour"})
		for _, a := range attacks {
			t.Run(a.name, func(t *testing.T) {
				s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 256, DiskMiB: 64, MaxPIDs: 64}})
				res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: a.line, TimeoutMS: 120_000})
				if err != nil {
					t.Fatalf("exec: %v", err)
				}
				a.check(t, res)
				if got := d.Sh(t, neighbour.ID, "echo fine"); got != "fine\n" {
					t.Errorf("the neighbour says %q", got)
				}
				usable := func() bool {
					res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"/bin/echo", "alive"}, TimeoutMS: 10_000})
					return err == nil && res.Stdout == "alive\n"
				}
				if !covetest.Eventually(30*time.Second, usable) {
					got, _ := d.Client.Get(t.Context(), s.ID)
					t.Errorf("the sandbox is not usable afterwards: state %s, reason %q", got.State, got.Reason)
				}
				if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
				d.NoTraces(t, s.ID)
			})
		}
	})
}

// A flood of output passes whole where it is read, is cut where it is kept, on
// the sandbox's disk and nowhere else.
func TestOutputFlood(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		var total int64
		job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "head -c 100000000 /dev/zero"}, func(ev sandbox.JobEvent) error {
			total += int64(len(ev.Data))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if total != 100_000_000 || job.StdoutBytes != total {
			t.Errorf("got %d bytes, the job says %d, want 100000000", total, job.StdoutBytes)
		}
		out, err := d.Client.ReadOutput(t.Context(), s.ID, job.ID, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if out.Offset != 1<<20 || len(out.Data) != sandbox.MaxOutputRead || out.TotalBytes != total {
			t.Errorf("%d bytes of kept output at %d of %d, want all", len(out.Data), out.Offset, out.TotalBytes)
		}
		// The conversation with the agent is not traffic of the sandbox.
		if st, err := d.Client.Stats(t.Context(), s.ID); err != nil || st.NetworkOutBytes > 10_000_000 {
			t.Errorf("it has sent %+v (%v), want next to nothing", st, err)
		}
	})
}
