package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// SIGKILL of the daemon: sandboxes and their commands continue, and a new daemon finds
// them.
func TestDaemonDies(t *testing.T) {
	covetest.EachUser(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "survivor"})
		background, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{
			Shell: "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; sleep 0.2; done", Background: true,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		foreground := make(chan error, 1)
		go func() {
			_, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{
				Shell: "until [ -e /workspace/go ]; do sleep 0.05; done; echo done > /workspace/foreground", TimeoutMS: 600_000,
			}, nil)
			foreground <- err
		}()
		begun := func() bool {
			jobs, err := d.Client.ListJobs(t.Context(), s.ID, sandbox.Page{})
			return err == nil && len(jobs.Items) == 2
		}
		if !covetest.Eventually(30*time.Second, begun) {
			t.Fatal("the call in flight does not begin")
		}
		d.Kill()
		if err := <-foreground; err == nil {
			t.Error("the call in flight gave no error although the daemon was killed")
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := d.Client.Get(t.Context(), "survivor")
		if err != nil || got.State != sandbox.StateRunning {
			t.Fatalf("after the restart: %v, %v; want running", got, err)
		}
		var out strings.Builder
		job, err := d.Client.Attach(t.Context(), s.ID, background.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error {
			out.Write(ev.Data)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if job.ExitCode != 0 || !strings.HasPrefix(out.String(), "line 1\n") || !strings.HasSuffix(out.String(), "line 10\n") {
			t.Errorf("the background job ended with %d and wrote %q; want lines 1 to 10", job.ExitCode, out.String())
		}
		d.Sh(t, s.ID, "touch /workspace/go")
		finished := func() bool {
			_, err := d.Client.StatFile(t.Context(), s.ID, "/workspace/foreground")
			return err == nil
		}
		if !covetest.Eventually(30*time.Second, finished) {
			t.Error("the command in flight did not go on when the daemon was killed")
		}
	})
}

// The daemon is killed at some times during creating, running and killing, and at many
// in "make soak". Afterwards the store and the machine agree.
func TestDaemonDiesAtAnyMoment(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		ids := map[string]bool{}
		moments := []time.Duration{5, 60, 150}
		if needs.Soak() {
			moments = []time.Duration{0, 5, 15, 30, 45, 60, 80, 100, 120, 150, 200, 300}
		}
		for _, after := range moments {
			after *= time.Millisecond
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := 0; ; i++ {
					s, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Name: fmt.Sprintf("r%d-%d", after.Milliseconds(), i)})
					if err != nil {
						return
					}
					if _, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"true"}}, nil); err != nil {
						return
					}
					if i%2 == 1 {
						continue
					}
					if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
						return
					}
				}
			}()
			<-time.After(after)
			d.Kill()
			<-done
			if err := d.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.CheckConsistent(t, ids)
		}
		list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
				t.Errorf("kill %s: %v", s.ID, err)
			}
		}
		for id := range ids {
			d.NoTraces(t, id)
		}
	})
}
