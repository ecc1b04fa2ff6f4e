package e2e

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// TestMoreManyClients has ten clients, fifty in "make soak", create, work and kill at once: no
// error, and afterwards the machine is as before. In "make test", TestManyClients of package
// service, TestNoisyNeighbour of package escape and TestDaemonDiesAtAnyMoment stand for it;
// nothing looks for descriptors that are left open.
func TestMoreManyClients(t *testing.T) {
	clients := 10
	if needs.Soak() {
		clients = 50
	}
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		// One round first, so that everything that is opened only once is open.
		warm := d.Create(t, sandbox.CreateRequest{})
		d.Sh(t, warm.ID, "true")
		if _, err := d.Client.Kill(t.Context(), warm.ID); err != nil {
			t.Fatal(err)
		}
		d.Client.Close()
		before := d.Use(t)
		var mu sync.Mutex
		var ids []string
		var wg sync.WaitGroup
		for n := range clients {
			wg.Go(func() {
				id, err := oneClient(t, d, n)
				if err != nil {
					t.Errorf("client %d: %v", n, err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, id)
			})
		}
		wg.Wait()
		d.NoTraces(t, ids...)
		// The connections that this process keeps for later are its own affair.
		d.Client.Close()
		var after covetest.Use
		var dirs []string
		same := func() bool {
			after, dirs = d.Use(t, ids...), d.CellDirs()
			// The standbys that wait for the next sandboxes are not left over. Of
			// each the daemon holds two pipes and a descriptor of the process.
			waiting := len(d.Standbys())
			after.Children -= waiting
			after.Descriptors -= 3 * waiting
			return after.Descriptors <= before.Descriptors && after.Children <= before.Children &&
				after.Zombies == 0 && after.Mounts <= before.Mounts && after.Groups == 0 && len(dirs) == 0
		}
		if !covetest.Eventually(30*time.Second, same) {
			t.Errorf("the daemon has %+v, before it had %+v, and directories of %v are left", after, before, dirs)
		}
		idleDaemon(t, d)
	})
}

// idleDaemon checks that a daemon without sandboxes and callers has no goroutine for
// any of them. It ends the daemon with a signal that makes it print its stacks.
func idleDaemon(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	stacks := d.Goroutines(t)
	if len(stacks) == 0 {
		t.Fatal("the daemon told nothing of its goroutines")
	}
	for _, stack := range stacks {
		for _, f := range []string{"cells.(*Engine).follow(", "service.(*Service).Exec(", "service.(*Service).Create(", "agentclient.(*Client)"} {
			if strings.Contains(stack, f) {
				t.Errorf("a goroutine is left:\n%s", stack)
			}
		}
	}
	t.Logf("%d goroutines are left", len(stacks))
	if len(stacks) > 80 { // with those that watch the standbys that wait
		t.Errorf("%d goroutines are left of all clients:\n%s", len(stacks), strings.Join(stacks, "\n"))
	}
}

func oneClient(t *testing.T, d *covetest.Daemon, n int) (string, error) {
	req := sandbox.CreateRequest{Metadata: map[string]string{"client": fmt.Sprint(n)}}
	s, err := d.Client.Create(t.Context(), req)
	for tries := 0; tries < 10 && err != nil; tries++ {
		// On a slow machine, callers that waited for long are told when to try again.
		// Any other refusal is an error.
		busy, ok := errors.AsType[*sandbox.Error](err)
		if !ok || busy.Code != sandbox.CodeQuotaExceeded || !strings.Contains(busy.Message, "busy creating") {
			break
		}
		<-time.After(busy.RetryAfter)
		s, err = d.Client.Create(t.Context(), req)
	}
	if err != nil {
		return "", fmt.Errorf("create: %w", err)
	}
	res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: fmt.Sprintf("echo I am %d > me; cat me", n), WorkDir: "/workspace"})
	if err != nil {
		return s.ID, fmt.Errorf("exec: %w", err)
	}
	if want := fmt.Sprintf("I am %d\n", n); res.Stdout != want {
		return s.ID, fmt.Errorf("stdout %q, want %q (stderr %q)", res.Stdout, want, res.Stderr)
	}
	if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
		return s.ID, fmt.Errorf("kill: %w", err)
	}
	return s.ID, nil
}
