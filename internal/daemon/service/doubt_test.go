package service

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// doubtful is a store whose connection breaks at the commit of one change.
type doubtful struct {
	store.Store
	// at chooses the change by what it makes of a record, or is nil.
	at atomic.Pointer[func(*store.Record) bool]
	// stored says whether the change is stored, and away whether the store does not answer
	// afterwards, until gone is false again.
	stored, away bool
	gone         atomic.Bool
}

var errLost = errors.New("the connection was lost")

func (d *doubtful) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	if d.gone.Load() {
		return store.Record{}, sandbox.Wrap(sandbox.CodeUnavailable, errLost, "the database is not responding")
	}
	hit, apply := false, c.Apply
	c.Apply = func(r *store.Record) error {
		if err := apply(r); err != nil {
			return err
		}
		if at := d.at.Load(); at != nil && (*at)(r) {
			hit = true
			if !d.stored {
				return errLost
			}
		}
		return nil
	}
	r, err := d.Store.UpdateSandbox(ctx, id, c)
	if !hit {
		return r, err
	}
	d.at.Store(nil)
	d.gone.Store(d.away)
	return store.Record{}, sandbox.Wrap(sandbox.CodeUnavailable, store.ErrInDoubt, "the change may or may not be stored")
}

// TestInDoubt breaks the connection to the database at the commit of a pause and of a resume:
// the sandbox is what its record says, and neither its instance nor its checkpoint is lost.
func TestInDoubt(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, away := range []bool{false, true} {
			name := map[bool]string{false: "lost", true: "stored"}[stored] + map[bool]string{false: "", true: ", and away"}[away]
			t.Run("pause "+name, func(t *testing.T) {
				w, d := inDoubt(t, stored, away)
				sbx := w.create(sandbox.CreateRequest{})
				w.shell(sbx.ID, "echo kept > file")
				d.breakAt(sandbox.StatePaused)
				_, err := w.Pause(asRed(t), sbx.ID)
				d.answered(t, err)
				if stored {
					w.waitState(sbx.ID, sandbox.StatePaused)
				}
				w.agree()
				if got := w.shell(sbx.ID, "cat file"); got != "kept" {
					t.Errorf("the file has %q", got)
				}
				w.agree()
			})
			t.Run("resume "+name, func(t *testing.T) {
				w, d := inDoubt(t, stored, away)
				sbx := w.create(sandbox.CreateRequest{})
				w.shell(sbx.ID, "echo kept > file")
				_, err := w.Pause(asRed(t), sbx.ID)
				must(t, err)
				d.breakAt(sandbox.StateRunning)
				_, err = w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{})
				d.answered(t, err)
				w.agree()
				want := sandbox.StatePaused
				if stored {
					want = sandbox.StateRunning
				}
				w.wantState(sbx.ID, want)
				if got := w.shell(sbx.ID, "cat file"); got != "kept" {
					t.Errorf("the file has %q", got)
				}
				w.agree()
			})
		}
	}
}

// TestFailureInDoubt breaks the connection when the end of a sandbox is recorded: no call
// uses the instance that has ended.
func TestFailureInDoubt(t *testing.T) {
	for name, want := range map[string]sandbox.State{"it fails": sandbox.StateFailed, "it goes back": sandbox.StatePaused} {
		t.Run(name, func(t *testing.T) {
			w, d := inDoubt(t, true, false)
			req := sandbox.CreateRequest{}
			if want == sandbox.StatePaused {
				req = minutely()
			}
			sbx := w.create(req)
			w.keep(sbx.ID)
			d.breakAt(want)
			must(t, w.state.Kill(w.record(sbx.ID).Instance, "it was hit"))
			w.waitState(sbx.ID, want)
			wait(t, func() bool { return !w.isOpen(sbx.ID) }, func() string { return "the connection to what has ended stays" })
			w.agree()
		})
	}
}

func inDoubt(t *testing.T, stored, away bool) (*harness, *doubtful) {
	t.Helper()
	d := &doubtful{stored: stored, away: away}
	w := &harness{wrapStore: func(s store.Store) store.Store { d.Store = s; return d }}
	return w.begin(t), d
}

// breakAt lets the connection break at the next change that makes a sandbox be in a state.
func (d *doubtful) breakAt(state sandbox.State) {
	at := func(r *store.Record) bool { return r.State == state }
	d.at.Store(&at)
}

// answered checks the answer to the call whose change was in doubt, and lets the store answer
// again.
func (d *doubtful) answered(t *testing.T, err error) {
	t.Helper()
	if d.at.Load() != nil {
		t.Fatal("nothing was in doubt")
	}
	if d.stored && !d.away {
		must(t, err)
	} else {
		wantCode(t, err, sandbox.CodeUnavailable)
	}
	d.gone.Store(false)
}
