package covetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Shared runs a test as [Own] does, but on a daemon that such tests of the
// package share, one after the other: for tests that leave the daemon itself
// alone. What a test has made there is removed after it. The package's
// TestMain calls [Main].
func Shared(t *testing.T, test func(t *testing.T, d *Daemon), args ...string) {
	t.Helper()
	borrow(t, needs.Soak(), test, args)
}

// SharedEachUser is [EachUser] on the daemons of [Shared].
func SharedEachUser(t *testing.T, test func(t *testing.T, d *Daemon), args ...string) {
	t.Helper()
	borrow(t, true, test, args)
}

// borrow runs a test on a shared daemon for each user, or for the ordinary one.
func borrow(t *testing.T, both bool, test func(t *testing.T, d *Daemon), args []string) {
	t.Helper()
	needs.GVisor(t)
	ForUsers(t, both, func(t *testing.T, uid uint32) { test(t, Borrow(t, Options{UID: uid, Args: args})) })
}

// Borrow returns a daemon with these options that is shared in the same way,
// with the tests of the package that use it one after the other. What this one
// has made there is removed after it.
func Borrow(t testing.TB, opts Options) *Daemon {
	t.Helper()
	d, err := share.daemon(opts)
	if err != nil {
		t.Fatal(err)
	}
	before := len(d.Output())
	t.Cleanup(func() {
		if err := d.clear(context.Background()); err != nil {
			t.Errorf("remove what the test has made: %v", err)
		}
		if t.Failed() {
			t.Logf("the daemon said:\n%s", d.Output()[before:])
		}
	})
	return d
}

// Main runs a package's tests and ends the daemons that they shared. It returns
// the exit code.
func Main(m *testing.M) int {
	if !share.begin() {
		fmt.Fprintln(os.Stderr, "covetest: Main runs twice")
		return 1
	}
	code := m.Run()
	if err := share.end(); err != nil {
		fmt.Fprintln(os.Stderr, "end the shared daemons:", err)
		return max(code, 1)
	}
	return code
}

var share shared

// shared is the daemons that tests of a package share.
type shared struct {
	mu      sync.Mutex
	begun   bool
	daemons []*Daemon // guarded by mu
}

func (s *shared) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.begun = true }()
	return !s.begun
}

// daemon returns a running daemon with these options.
func (s *shared) daemon(opts Options) (*Daemon, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		return nil, errors.New("the package's TestMain does not run covetest.Main")
	}
	for _, d := range s.daemons {
		if reflect.DeepEqual(d.opts, opts) {
			return d, nil
		}
	}
	d, err := Launch(context.Background(), opts)
	if err != nil {
		return nil, err
	}
	s.daemons = append(s.daemons, d)
	return d, nil
}

func (s *shared) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, d := range s.daemons {
		if err := d.Shutdown(context.Background()); err != nil {
			errs = append(errs, fmt.Errorf("%w\n%s", err, d.Output()))
		}
	}
	s.daemons = nil
	return errors.Join(errs...)
}

// clear removes the sandboxes, snapshots and secrets of the daemon's own team.
func (d *Daemon) clear(ctx context.Context) error {
	if err := d.KillAll(ctx); err != nil {
		return err
	}
	snapshots, err := d.Client.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	for _, s := range snapshots.Items {
		if _, err := d.Client.DeleteSnapshot(ctx, s.ID); err != nil {
			return err
		}
	}
	secrets, err := d.Client.ListSecrets(ctx, sandbox.Page{})
	if err != nil {
		return err
	}
	for _, s := range secrets.Items {
		if err := d.Client.DeleteSecret(ctx, s.ID); err != nil {
			return err
		}
	}
	return nil
}
