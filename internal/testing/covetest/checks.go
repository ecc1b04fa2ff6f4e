package covetest

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// DetectionLimit is how soon the daemon must notice a failure. The goal is 2 s, and
// tests allow for a busy machine. It is shorter than the 30 s after which calls to a
// silent agent end by themselves, so that such an end does not pass for detection.
const DetectionLimit = 25 * time.Second

// Small is a request for a sandbox that costs little, changed as a test needs.
func Small(change ...func(*sandbox.CreateRequest)) sandbox.CreateRequest {
	req := sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 256, DiskMiB: 64, MaxPIDs: 128}}
	for _, f := range change {
		f(&req)
	}
	return req
}

// Shows checks the output of a shell line in a sandbox.
func (d *Daemon) Shows(t testing.TB, id, line, want string) {
	t.Helper()
	if got := strings.TrimSpace(d.Sh(t, id, line)); got != want {
		t.Errorf("%s says %q, want %q", line, got, want)
	}
}

// WantCode checks the code of an error.
func WantCode(t testing.TB, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Errorf("got %v (%s), want %s", err, got, want)
	}
}

// CheckConsistent checks that every sandbox recorded as running does run, that nothing
// is left of any other, and that no cell runs that the daemon does not know.
func (d *Daemon) CheckConsistent(t testing.TB, ids map[string]bool) {
	t.Helper()
	all := []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed}
	list, err := d.Client.List(t.Context(), sandbox.ListRequest{States: all, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		t.Fatal(err)
	}
	var ended, running []string
	for _, s := range list.Items {
		ids[s.ID] = true
		switch s.State {
		case sandbox.StateRunning:
			running = append(running, s.ID)
			if out := d.Sh(t, s.ID, "echo here"); out != "here\n" {
				t.Errorf("%s is said to run but says %q", s.ID, out)
			}
		case sandbox.StateKilled, sandbox.StateFailed:
			ended = append(ended, s.ID)
		default:
			t.Errorf("%s is left in state %s", s.ID, s.State)
		}
	}
	d.NoTraces(t, ended...)
	slices.Sort(running)
	var dirs, living []string
	agree := func() bool {
		dirs, living = d.CellDirs(), d.Living()
		return slices.Equal(dirs, running) && slices.Equal(living, running)
	}
	if !Eventually(DetectionLimit, agree) {
		t.Errorf("the daemon has running %v, but there are directories of %v and cells of %v", running, dirs, living)
	}
}

// EndCell kills a cell and waits until it is gone.
func EndCell(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return !slices.Contains(PIDs(), pid) }
	if !Eventually(time.Minute, gone) {
		t.Fatalf("the cell %d does not end", pid)
	}
}

// Call runs f in a goroutine. The result of Call fails the test unless f returns soon
// after the victim has died.
func Call(f func() error) func(t testing.TB) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func(t testing.TB) error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(DetectionLimit):
			t.Errorf("the call in flight hangs")
			return nil
		}
	}
}

// Wait waits until done is closed, for at most a minute.
func Wait(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("nothing happened for a minute")
	}
}
