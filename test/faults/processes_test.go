// Package faults kills each process of Cove's at many moments of each verb, and
// fills the disk: a sandbox is in its old state or its new one.
package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// serve is the daemon as a victim; the others are names of processes.
const (
	serve = "serve"
	agent = "agent"
)

// victims are the processes that SIGKILL can hit: the daemon and each process of a
// sandbox. The agent is not a process of the host; root inside kills it.
var victims = []string{serve, "cove", "runsc-sandbox", "runsc-gofer", agent}

// phases are what a sandbox is doing meanwhile. Each starts something in a running
// sandbox and returns a check for after the victim's death.
var phases = []struct {
	name  string
	begin func(t *testing.T, d *covetest.Daemon, id string) aftermath
}{
	{"idle", idle}, {"foreground command", foreground}, {"background command", background},
	{"upload", upload}, {"kill", killing},
}

// aftermath is the check after the victim's death. It depends on whether the sandbox
// continues.
type aftermath func(t *testing.T, lives bool)

// TestKillMatrix kills each victim in each phase in "make soak", and otherwise one
// victim, in turn, in each phase.
func TestKillMatrix(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		ids := map[string]bool{}
		d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Name = "neighbour" }))
		for i, victim := range victims {
			phases := phases
			if !needs.Soak() {
				phases = phases[i : i+1]
			}
			for _, phase := range phases {
				t.Run(victim+" during "+phase.name, func(t *testing.T) {
					killDuring(t, d, victim, phase.begin)
					d.CheckConsistent(t, ids)
					d.Shows(t, "neighbour", "echo fine", "fine")
				})
			}
		}
	})
}

func killDuring(t *testing.T, d *covetest.Daemon, victim string, begin func(*testing.T, *covetest.Daemon, string) aftermath) {
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 256}})
	if _, err := d.Client.WriteFile(t.Context(), s.ID, sandbox.WriteFileRequest{Path: "/workspace/promised"}, strings.NewReader("kept")); err != nil {
		t.Fatal(err)
	}
	after := begin(t, d, s.ID)
	died := time.Now()
	strike(t, d, victim, s.ID)
	if victim == serve {
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := settled(t, d, s.ID, victim)
	lives := got.State == sandbox.StateRunning
	t.Logf("%s %v after the kill: %s", got.State, time.Since(died).Round(time.Millisecond), got.Reason)
	after(t, lives)
	switch {
	case lives:
		if victim != serve && victim != agent {
			t.Errorf("the sandbox is %s without its %s", got.State, victim)
		}
		if out := d.Sh(t, s.ID, "cat /workspace/promised"); out != "kept" {
			t.Errorf("the file is %q, want what was written", out)
		}
		if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
			t.Errorf("kill: %v", err)
		}
	case got.Reason == "":
		t.Errorf("the sandbox %s without a reason", got.State)
	default:
		_, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"true"}})
		covetest.WantCode(t, err, sandbox.CodeNotRunning)
	}
	d.NoTraces(t, s.ID)
}

// strike kills the victim. One that has ended by itself is fine.
func strike(t *testing.T, d *covetest.Daemon, victim, id string) {
	t.Helper()
	switch victim {
	case serve:
		d.Kill()
	case agent:
		// As on Linux, SIGKILL does not reach the first process from inside;
		// SIGQUIT ends a Go program that does not expect it.
		ctx, cancel := context.WithTimeout(t.Context(), covetest.DetectionLimit)
		defer cancel()
		_, _ = d.Exec(ctx, id, sandbox.ExecRequest{Shell: "kill -KILL 1; kill -QUIT 1; kill -SEGV 1; kill -ABRT 1", User: "root"})
	default:
		pid, ok := covetest.ProcessOf(id, victim)
		if !ok {
			return
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
}

// settled waits until the daemon knows what became of the sandbox.
func settled(t *testing.T, d *covetest.Daemon, id, victim string) *sandbox.Sandbox {
	t.Helper()
	var got *sandbox.Sandbox
	var err error
	known := func() bool {
		got, err = d.Client.Get(t.Context(), id)
		if err != nil || victim == serve || victim == agent {
			return err == nil && got.State != sandbox.StateStopping
		}
		return got.State.Final()
	}
	if !covetest.Eventually(covetest.DetectionLimit, known) {
		t.Fatalf("%v after the kill of %s the sandbox is %+v, %v", covetest.DetectionLimit, victim, got, err)
	}
	if victim == agent && got.State == sandbox.StateRunning {
		// The process may just be ending: a call shows that.
		ctx, cancel := context.WithTimeout(t.Context(), covetest.DetectionLimit)
		defer cancel()
		if _, err := d.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"true"}}); err != nil {
			if got, err = d.Client.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	return got
}

// wantCutOff checks the error of a call that lost its other side.
func wantCutOff(t *testing.T, what string, err error) {
	t.Helper()
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnavailable, sandbox.CodeNotRunning:
	default:
		t.Errorf("%s: %v (%s), want unavailable or not_running", what, err, sandbox.CodeOf(err))
	}
}

func idle(*testing.T, *covetest.Daemon, string) aftermath { return func(*testing.T, bool) {} }

func foreground(t *testing.T, d *covetest.Daemon, id string) aftermath {
	started := make(chan struct{})
	var once sync.Once
	end := covetest.Call(func() error {
		_, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "echo started; until [ -e /workspace/go ]; do sleep 0.05; done; echo through > /workspace/through"}, func(ev sandbox.JobEvent) error {
			if len(ev.Data) > 0 {
				once.Do(func() { close(started) })
			}
			return nil
		})
		return err
	})
	covetest.Wait(t, started)
	return func(t *testing.T, lives bool) {
		if lives {
			d.Sh(t, id, "touch /workspace/go")
		}
		err := end(t)
		if !lives {
			wantCutOff(t, "the command in flight", err)
			return
		}
		// Either the call was answered, or the command went on without it.
		finished := func() bool {
			_, err := d.Client.StatFile(t.Context(), id, "/workspace/through")
			return err == nil
		}
		if !covetest.Eventually(covetest.DetectionLimit, finished) {
			t.Errorf("the command did not go on; its caller was told %v", err)
		}
	}
}

func background(t *testing.T, d *covetest.Daemon, id string) aftermath {
	job, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{
		Shell: "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.1; done", Background: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, lives bool) {
		if !lives {
			return
		}
		var out strings.Builder
		ended, err := d.Client.Attach(t.Context(), id, job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error {
			out.Write(ev.Data)
			return nil
		})
		if err != nil || ended.ExitCode != 0 || out.String() != "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\n" {
			t.Errorf("the background command ended with %+v, %v, and wrote %q", ended, err, out.String())
		}
	}
}

// upload leaves a file half sent.
func upload(t *testing.T, d *covetest.Daemon, id string) aftermath {
	r, w := io.Pipe()
	end := covetest.Call(func() error {
		_, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/workspace/big"}, r)
		r.CloseWithError(io.ErrClosedPipe) // whoever still sends is released
		return err
	})
	if _, err := w.Write(bytes.Repeat([]byte("half"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, lives bool) {
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = w.Write(bytes.Repeat([]byte("rest"), 1<<18))
			w.Close()
		}()
		err := end(t)
		covetest.Wait(t, sent)
		if !lives {
			wantCutOff(t, "the upload", err)
			return
		}
		only := func() bool {
			out, shErr := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "cd /workspace && ls -A"})
			names := strings.Fields(out.Stdout)
			whole := err == nil
			return shErr == nil && slices.Contains(names, "big") == whole && len(names) == map[bool]int{true: 2, false: 1}[whole]
		}
		if !covetest.Eventually(covetest.DetectionLimit, only) {
			t.Errorf("the upload ended with %v, but there are\n%s", err, d.Sh(t, id, "ls -lA /workspace"))
		}
		if err != nil {
			wantCutOff(t, "the upload", err)
		}
	}
}

// killing strikes while the sandbox is being killed.
func killing(t *testing.T, d *covetest.Daemon, id string) aftermath {
	end := covetest.Call(func() error {
		_, err := d.Client.Kill(t.Context(), id)
		return err
	})
	return func(t *testing.T, lives bool) {
		err := end(t)
		if err == nil && lives {
			t.Error("the caller was told that the sandbox is killed, but it runs")
		}
		if err != nil {
			wantCutOff(t, "kill", err)
		}
	}
}

// Each victim dies at many moments of a creation: the caller gets a sandbox
// that is said to fail later, or a clear error and nothing that is left. Outside
// "make soak" each dies at one moment.
func TestKillMatrixOfCreation(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		ids := map[string]bool{}
		delays := []time.Duration{0, 50, 100, 15, 30, 70, 85}
		for i, victim := range []string{"cove", "runsc-sandbox", "runsc-gofer"} {
			delays := delays
			if !needs.Soak() {
				delays = delays[i : i+1]
			}
			for _, delay := range delays {
				t.Run(fmt.Sprintf("%s %d ms after it appeared", victim, delay), func(t *testing.T) {
					killCreation(t, d, victim, delay*time.Millisecond)
					d.CheckConsistent(t, ids)
				})
			}
		}
	}, "--warm=0") // each is booted
}

func killCreation(t *testing.T, d *covetest.Daemon, victim string, delay time.Duration) {
	before := d.CellDirs()
	var made *sandbox.Sandbox
	end := covetest.Call(func() (err error) {
		made, err = d.Client.Create(t.Context(), sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 256}})
		return err
	})
	var id string
	var pid int
	appeared := func() bool {
		for _, dir := range d.CellDirs() {
			if !slices.Contains(before, dir) {
				id = dir
			}
		}
		if id == "" {
			return false
		}
		var ok bool
		pid, ok = covetest.ProcessOf(id, victim)
		return ok
	}
	if !covetest.Eventually(covetest.DetectionLimit, appeared) {
		t.Fatalf("no %s of the new sandbox %q appeared", victim, id)
	}
	<-time.After(delay)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
	died := time.Now()
	err := end(t)
	t.Logf("create answered %v after the kill: %v", time.Since(died).Round(time.Millisecond), err)
	if err != nil {
		if code := sandbox.CodeOf(err); code == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has the code %q: %v", code, err)
		}
	} else if now, ok := covetest.ProcessOf(made.ID, victim); ok && now != pid {
		// Another instance took its place before the call returned.
		if out := d.Sh(t, made.ID, "echo fine"); strings.TrimSpace(out) != "fine" {
			t.Errorf("the sandbox whose %s was replaced says %q", victim, out)
		}
		if _, err := d.Client.Kill(t.Context(), made.ID); err != nil {
			t.Errorf("kill: %v", err)
		}
	} else if got := settled(t, d, made.ID, victim); got.State != sandbox.StateFailed || got.Reason == "" {
		t.Errorf("the sandbox is %s, reason %q; want failed with a reason", got.State, got.Reason)
	}
	d.NoTraces(t, id)
}
