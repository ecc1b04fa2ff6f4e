package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// testConcurrentAdmission has callers of two teams ask at the same time for all that
// a quota counts. Each team gets what the quota allows, and no more at any time.
func testConcurrentAdmission(t *testing.T, open Opener) {
	s := open(t)
	q := store.Quota{Sandboxes: 8, VCPUs: 6, DiskMiB: 100}
	const paused, callers = 4, 8
	teams := []string{"red", "blue"}
	for _, team := range teams {
		for i := range paused {
			r := plain(fmt.Sprintf("%s-paused-%d", team, i), team, 0)
			r.State = sandbox.StatePaused
			add(t, s, r)
		}
	}
	over := func(team string) {
		u, err := s.SandboxUsage(t.Context(), team)
		if err != nil || u.Sandboxes > q.Sandboxes || u.VCPUs > q.VCPUs || u.DiskMiB > q.DiskMiB {
			t.Errorf("%s uses %+v, %v; its quota is %+v", team, u, err, q)
		}
	}
	var wg sync.WaitGroup
	ask := func(team string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
				t.Error(err)
			}
			over(team)
		})
	}
	for _, team := range teams {
		for i := range callers {
			ask(team, func() error {
				return s.CreateSandboxes(t.Context(), []store.Record{
					plain(fmt.Sprintf("%s-%d-a", team, i), team, 0), plain(fmt.Sprintf("%s-%d-b", team, i), team, 0),
				}, q)
			})
			ask(team, func() error {
				_, err := s.UpdateSandbox(t.Context(), fmt.Sprintf("%s-paused-%d", team, i%paused), store.Change{Quota: q, Apply: setState(sandbox.StateRunning)})
				return err
			})
			ask(team, func() error {
				v := sandbox.Volume{ID: fmt.Sprintf("%s-vol-%d", team, i), Name: fmt.Sprint(i), SizeMiB: 30, CreatedAt: epoch}
				return s.CreateVolume(t.Context(), store.VolumeRecord{Volume: v, Team: team}, q)
			})
		}
	}
	wg.Wait()
	for _, team := range teams {
		over(team)
		// Whoever came first: six vCPUs fit, in twos and ones, and three volumes.
		u, err := s.SandboxUsage(t.Context(), team)
		must(t, err)
		if u.VCPUs < q.VCPUs-1 || u.DiskMiB != 90 {
			t.Errorf("%s has %+v, and more would have fitted", team, u)
		}
	}
}
