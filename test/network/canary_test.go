package network

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: the value of a secret is read from any place where it may have been left: the
// store, a log, a snapshot, a crash's output, a command line, an environment, or the
// memory of any process except the gateways of the sandboxes that have the secret. The
// search follows everything that can happen to a sandbox after the secret was used: the
// secret's host sends back what it got, and the sandbox keeps that.
func TestCanary(t *testing.T) {
	needs.Root(t) // to read the memory of others
	needs.Command(t, "curl")
	n := internet.Here(t)
	own(t, func(t *testing.T, d *covetest.Daemon) {
		const canary, mark = "c4n4ry-Zq7fVxT2mLw9", "m4rk-of-a-program-Jt5cRg1"
		const value, rotated = canary + "-first", canary + "-second"
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// A request leaves the value in the daemon's memory; a new daemon has it only
		// from the store.
		again := func() {
			t.Helper()
			must(d.Stop())
			must(d.Run(ctx))
		}
		_, err := d.Client.CreateSecret(ctx, sandbox.CreateSecretRequest{
			Name: "canary", Value: sandbox.NewSecretValue(value), Hosts: []string{"api.example.com"}, Auth: &sandbox.SecretAuth{Type: "basic", User: "u"},
		})
		must(err)
		again()
		plain := d.Create(t, covetest.Small())
		// holders are the gateways that must know the value.
		holders := func() map[int]bool {
			pids := map[int]bool{}
			for id, pid := range d.Cells() {
				if id != plain.ID {
					pids[pid] = true
				}
			}
			return pids
		}
		absent := func(after string) {
			t.Helper()
			s := newSearcher(d, canary)
			s.files(t)
			s.arguments(t)
			n := s.memory(t, holders())
			if err := s.stream("the output of the daemon", strings.NewReader(d.Output())); err != nil {
				t.Error(err)
			}
			for where := range s.found {
				t.Errorf("after %s, %s has the value", after, where)
			}
			t.Logf("after %s: searched %d processes, %d MiB", after, n, s.bytes>>20)
		}
		uses := 0
		// use has the secret used in two ways.
		use := func(id, value string) {
			t.Helper()
			uses++
			path := fmt.Sprintf("/%s/%d", t.Name(), uses)
			works(t, d, id, curl("https://api.example.com"+path, `-u "u:$TOKEN" -H "X-Token: $TOKEN" -o`, fmt.Sprintf("/tmp/answer-%d", uses)))
			got := n.Request(path).Header
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+value))
			if !slices.Equal(got["X-Token"], []string{value}) || !slices.Equal(got["Authorization"], []string{basic}) {
				t.Errorf("the host of the secret got %v, want the value and %s", got, basic)
			}
		}
		x := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) {
			r.Name, r.Secrets, r.History = "x", map[string]string{"TOKEN": "canary"}, 1
		}))
		absent("create")
		controls(t, d, x.ID, canary, mark)
		use("x", value)
		recorded := func() bool {
			list, err := d.Client.NetworkLog(ctx, "x", sandbox.NetworkLogRequest{Kind: sandbox.NetworkRequest})
			must(err)
			return len(list.Items) > 0
		}
		if !covetest.Eventually(30*time.Second, recorded) {
			t.Error("the log has no request with the secret")
		}
		placeholder := d.Sh(t, x.ID, "printf %s $TOKEN; env >/tmp/env; cat /proc/self/environ >>/tmp/env")
		if len(placeholder) < 16 {
			t.Fatalf("the placeholder is %q", placeholder)
		}
		_, err = d.Client.Fork(ctx, "x", sandbox.ForkRequest{Count: 2, Name: "f"})
		must(err)
		d.Shows(t, "f-0", "printf %s $TOKEN", placeholder)
		use("f-0", value)
		use("f-1", value)
		absent("exec, use and fork")
		_, err = d.Client.Pause(ctx, "x")
		must(err)
		absent("pause")
		kept(t, d, mark)
		_, err = d.Client.Resume(ctx, "x", sandbox.ResumeRequest{})
		must(err)
		use("x", value)
		_, err = d.Client.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{Name: "s"})
		must(err)
		_, err = d.Client.Create(ctx, sandbox.CreateRequest{Name: "y", Snapshot: "s"})
		must(err)
		d.Shows(t, "y", "printf %s $TOKEN", placeholder)
		use("y", value)
		_, err = d.Client.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "of-secret", Spec: &sandbox.TemplateSpec{
			From: sandbox.TemplateSource{Snapshot: "s"}, BuildNetwork: &sandbox.NetworkPolicy{},
			Run: []sandbox.TemplateStep{{Run: `test -z "$TOKEN"; curl -fsSk -o /dev/null -H 'X-Token: ` + placeholder + `' https://api.example.com/in-a-build`}},
		}}, nil)
		must(err)
		if got := n.Request("/in-a-build").Header["X-Token"]; !slices.Equal(got, []string{placeholder}) {
			t.Errorf("a build sent %q", got)
		}
		absent("resume, snapshot and build")
		_, err = d.Client.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Snapshot: "s"})
		must(err)
		_, err = d.Client.SetNetwork(ctx, "x", sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
		must(err)
		_, err = d.Client.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f-0"})
		must(err)
		absent("restore and merge")

		_, err = d.Client.RotateSecret(ctx, "canary", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue(rotated)})
		must(err)
		again()
		use("y", rotated)
		use("f-1", rotated)
		absent("rotation")
		// The gateway of one dies as a program with a defect does, and says so.
		_, err = d.Client.Get(ctx, "f-1")
		must(err)
		crash(t, d, "f-1")
		d.Kill()
		must(d.Run(ctx))
		absent("crashes of the gateway and the daemon")
		must(d.Client.DeleteSecret(ctx, "canary"))
		for _, name := range []string{"x", "y"} {
			_, err = d.Client.Kill(ctx, name)
			must(err)
		}
		absent("deletion and kill")
		if left := holders(); len(left) != 0 {
			t.Errorf("gateways are left: %v", slices.Collect(maps.Keys(left)))
		}
	})
}

// controls checks that the search would find a value: in a file, in the gateway that
// must have the value, and in the memory of a program in a sandbox.
func controls(t *testing.T, d *covetest.Daemon, id, canary, mark string) {
	t.Helper()
	path := filepath.Join(d.StateDir, "control")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 1<<20-7)+canary), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSearcher(d, canary)
	s.files(t)
	if len(s.found) != 1 || !s.found[path] {
		t.Errorf("of files with the value %v were found", s.found)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s = newSearcher(d, canary)
	s.memory(t, nil)
	cell, ok := covetest.ProcessOf(id, "cove")
	if !ok || len(s.found) != 1 {
		t.Errorf("of processes with the value %v were found, want the cell %d", s.found, cell)
	}
	_, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Command: []string{"sleep", "600"}, Env: map[string]string{"MARK": mark}, Background: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s = newSearcher(d, mark)
	s.memory(t, map[int]bool{cell: true, d.PID(): true})
	if len(s.found) == 0 {
		t.Error("the mark of a program in a sandbox was not found")
	}
}

// kept checks that the search would find a value in a program's memory in a checkpoint.
func kept(t *testing.T, d *covetest.Daemon, mark string) {
	t.Helper()
	s := newSearcher(d, mark)
	s.files(t)
	for where := range s.found {
		if strings.Contains(where, "/checkpoints/") {
			return
		}
	}
	t.Errorf("the mark of a program in a paused sandbox was found in %v only", s.found)
}

// crash makes the cell of a sandbox end as Go programs with a defect do, with a dump of
// its stacks.
func crash(t *testing.T, d *covetest.Daemon, name string) {
	t.Helper()
	s, err := d.Client.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	pid, ok := covetest.ProcessOf(s.ID, "cove")
	if !ok {
		t.Fatal("found no cell")
	}
	if err := syscall.Kill(pid, syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	ended := covetest.Eventually(30*time.Second, func() bool {
		s, err = d.Client.Get(t.Context(), name)
		return err == nil && s.State == sandbox.StateFailed
	})
	if !ended {
		t.Errorf("after a crash of its gateway the sandbox is %+v, %v", s, err)
	}
}
