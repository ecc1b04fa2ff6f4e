package escape

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: root in a sandbox stops the agent by tracing it, so that calls into the sandbox hang
// and with them the daemon, its other sandboxes, its restart, or the removal of this one; or so
// that the sandbox seems to be well for ever. In "make test", TestStoppedAgentKeepsNothing of
// package network, TestNetworkWithoutTheAgent of package service and TestSilence of package
// agentclient stand for it.
func TestMoreWaitsStoppedAgent(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		victim, err := d.Client.Get(t.Context(), arm(t, d))
		if err != nil {
			t.Fatal(err)
		}
		other := d.Create(t, sandbox.CreateRequest{Name: "other"})
		running, err := d.Client.Exec(t.Context(), victim.ID, sandbox.ExecRequest{Shell: "sleep 600", Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Client.Exec(t.Context(), victim.ID, sandbox.ExecRequest{User: "root", Shell: "sleep 0.2; exec /tmp/attacker hold " + holdPort, Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		silent := 0 // times in a row: one may be the machine's
		isStopped := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := d.Client.GetJob(ctx, victim.ID, running.ID); err != nil {
				silent++
			} else {
				silent = 0
			}
			return silent == 3
		}
		if !covetest.Eventually(30*time.Second, isStopped) {
			t.Fatal("the agent does not stop")
		}
		// A daemon that finds the sandbox in this state still starts.
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Less than calls to a cell or an agent that does not answer take.
		const soon = 14 * time.Second
		// A silent agent is given up after 30 seconds.
		const ending = 40 * time.Second
		memory := int64(512)
		calls := []struct {
			name   string
			within time.Duration
			ok     bool // it works without the agent
			call   func(ctx context.Context) error
		}{
			{"list", soon, true, func(ctx context.Context) error {
				_, err := d.Client.List(ctx, sandbox.ListRequest{})
				return err
			}},
			{"get", soon, true, func(ctx context.Context) error { _, err := d.Client.Get(ctx, victim.ID); return err }},
			{"stats", soon, true, func(ctx context.Context) error { _, err := d.Client.Stats(ctx, victim.ID); return err }},
			{"exec next door", soon, true, func(ctx context.Context) error {
				_, err := d.Client.Exec(ctx, other.ID, sandbox.ExecRequest{Command: []string{"true"}}, nil)
				return err
			}},
			{"update", ending, false, func(ctx context.Context) error {
				_, err := d.Client.Update(ctx, victim.ID, sandbox.UpdateRequest{MemoryMiB: &memory})
				return err
			}},
			{"snapshot", ending, true, func(ctx context.Context) error {
				_, err := d.Client.CreateSnapshot(ctx, victim.ID, sandbox.CreateSnapshotRequest{})
				return err
			}},
			{"exec", ending, false, func(ctx context.Context) error {
				_, err := d.Client.Exec(ctx, victim.ID, sandbox.ExecRequest{Command: []string{"true"}, TimeoutMS: 1000}, nil)
				return err
			}},
			{"stat file", ending, false, func(ctx context.Context) error {
				_, err := d.Client.StatFile(ctx, victim.ID, "/etc/hosts")
				return err
			}},
			{"jobs", ending, false, func(ctx context.Context) error {
				_, err := d.Client.ListJobs(ctx, victim.ID, sandbox.Page{})
				return err
			}},
			{"signal", ending, false, func(ctx context.Context) error {
				_, err := d.Client.SignalJob(ctx, victim.ID, running.ID, "KILL", 0)
				return err
			}},
		}
		var wg sync.WaitGroup
		for _, c := range calls {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
				defer cancel()
				began := time.Now()
				err := c.call(ctx)
				if took := time.Since(began); took > c.within {
					t.Errorf("%s took %v, want %v at most (%v)", c.name, took, c.within, err)
				}
				if c.ok && err != nil || !c.ok && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
					t.Errorf("%s: error %v; want it to work: %v", c.name, err, c.ok)
				}
			})
		}
		wg.Wait()
		if s, err := d.Client.Get(t.Context(), victim.ID); err != nil || s.Resources.MemoryMiB != victim.Resources.MemoryMiB {
			t.Errorf("after the failed update: %+v, %v", s, err)
		}
		toldSilent(t, d, victim.ID)
		// When the agent is released, the sandbox works as before.
		conn, err := d.Client.DialPort(t.Context(), victim.ID, holdPortNumber)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if !covetest.Eventually(30*time.Second, func() bool {
			s, err := d.Client.Get(t.Context(), victim.ID)
			return err == nil && s.Reason == ""
		}) {
			t.Error("the sandbox still counts as silent")
		}
		if out := d.Sh(t, victim.ID, "echo again"); out != "again\n" {
			t.Errorf("after the attack it says %q", out)
		}
		began := time.Now()
		if _, err := d.Client.Kill(t.Context(), victim.ID); err != nil || time.Since(began) > 25*time.Second {
			t.Errorf("kill: %v after %v", err, time.Since(began))
		}
		d.NoTraces(t, victim.ID)
	})
}

// holdPort is the port on which the attacker waits for the signal to release the agent.
const (
	holdPort       = "7070"
	holdPortNumber = 7070
)

// toldSilent fails the test unless callers learn that the agent does not answer, and
// what to do.
func toldSilent(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	const told = "its agent has not responded since "
	var s *sandbox.Sandbox
	if !covetest.Eventually(30*time.Second, func() (ok bool) {
		var err error
		s, err = d.Client.Get(t.Context(), id)
		return err == nil && strings.HasPrefix(s.Reason, told)
	}) {
		t.Fatalf("the record says %+v", s)
	}
	if s.State != sandbox.StateRunning {
		t.Errorf("a sandbox whose agent is silent is %s", s.State)
	}
	_, err := d.Client.StatFile(t.Context(), id, "/etc/hosts")
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), told) {
		t.Errorf("a call says %v", err)
	}
}
