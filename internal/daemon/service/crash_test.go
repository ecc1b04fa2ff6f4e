package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

var errCrash = errors.New("the daemon was killed")

// mortality makes the daemon of a harness die at a chosen change: neither that change
// nor any later one of the store or the engine is made.
type mortality struct {
	mu    sync.Mutex
	armed bool   // guarded by mu
	left  int    // guarded by mu; changes until it dies
	dead  bool   // guarded by mu
	last  string // guarded by mu; the change at which it died

	// before is called with the name of each change before it is made; its error
	// becomes the change's.
	before func(change string) error
}

// arm makes the daemon die at the n-th change from now, counted from 0.
func (m *mortality) arm(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed, m.left = true, n
}

// revive ends the effect for the next daemon. It reports whether the last one has died.
func (m *mortality) revive() (died bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	died = m.dead
	m.armed, m.dead = false, false
	return died
}

func (m *mortality) change(name string) error {
	m.mu.Lock()
	f := m.before
	switch {
	case m.dead:
	case m.armed && m.left == 0:
		m.dead, m.last = true, name
	case m.armed:
		m.left--
	}
	dead := m.dead
	m.mu.Unlock()
	if dead {
		return errCrash
	}
	if f != nil {
		return f(name)
	}
	return nil
}

// mortalStore is a store whose changes are counted.
type mortalStore struct {
	store.Store
	m *mortality
}

func (s *mortalStore) CreateSandbox(ctx context.Context, r store.Record, q store.Quota) error {
	if err := s.m.change("CreateSandbox"); err != nil {
		return err
	}
	return s.Store.CreateSandbox(ctx, r, q)
}

func (s *mortalStore) CreateSandboxes(ctx context.Context, r []store.Record, q store.Quota) error {
	if err := s.m.change("CreateSandboxes"); err != nil {
		return err
	}
	return s.Store.CreateSandboxes(ctx, r, q)
}

func (s *mortalStore) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	if err := s.m.change("UpdateSandbox"); err != nil {
		return store.Record{}, err
	}
	return s.Store.UpdateSandbox(ctx, id, c)
}

func (s *mortalStore) UpdateSandboxes(ctx context.Context, ids []string, f func(map[string]*store.Record) error) (map[string]store.Record, error) {
	if err := s.m.change("UpdateSandboxes"); err != nil {
		return nil, err
	}
	return s.Store.UpdateSandboxes(ctx, ids, f)
}

func (s *mortalStore) DeleteSandbox(ctx context.Context, id string) error {
	if err := s.m.change("DeleteSandbox"); err != nil {
		return err
	}
	return s.Store.DeleteSandbox(ctx, id)
}

func (s *mortalStore) CreateSnapshot(ctx context.Context, r store.SnapshotRecord, q store.Quota) error {
	if err := s.m.change("CreateSnapshot"); err != nil {
		return err
	}
	return s.Store.CreateSnapshot(ctx, r, q)
}

func (s *mortalStore) DeleteSnapshot(ctx context.Context, id string) error {
	if err := s.m.change("DeleteSnapshot"); err != nil {
		return err
	}
	return s.Store.DeleteSnapshot(ctx, id)
}

func (s *mortalStore) Checkpoints(ctx context.Context) ([]string, error) {
	if err := s.m.change("Checkpoints"); err != nil {
		return nil, err
	}
	return s.Store.Checkpoints(ctx)
}

// mortalEngine is an engine whose changes are counted.
type mortalEngine struct {
	*memory.Keeper
	state *memory.State
	m     *mortality
}

func (e *mortalEngine) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	if err := e.m.change("Create"); err != nil {
		return nil, err
	}
	i, err := e.Keeper.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &mortalInstance{i, e.m}, nil
}

func (e *mortalEngine) Open(ctx context.Context, id string) (engine.Instance, error) {
	i, err := e.Keeper.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return &mortalInstance{i, e.m}, nil
}

// mortalInstance is an instance whose changes are counted.
type mortalInstance struct {
	engine.Instance
	m *mortality
}

func (i *mortalInstance) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	if err := i.m.change("SetLimits"); err != nil {
		return nil, err
	}
	return i.Instance.SetLimits(ctx, r)
}

func (i *mortalInstance) SetNetwork(ctx context.Context, n engine.Network) error {
	if err := i.m.change("SetNetwork"); err != nil {
		return err
	}
	return i.Instance.(engine.Gateway).SetNetwork(ctx, n)
}

func (i *mortalInstance) DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error) {
	return i.Instance.(engine.Gateway).DialPort(ctx, port, loopback)
}

func (i *mortalInstance) Dial(ctx context.Context) (net.Conn, error) {
	i.m.mu.Lock()
	dead := i.m.dead
	i.m.mu.Unlock()
	if dead {
		return nil, errCrash
	}
	return i.Instance.Dial(ctx)
}

func (e *mortalEngine) End(ctx context.Context, id string) error {
	if err := e.m.change("End"); err != nil {
		return err
	}
	return e.Keeper.End(ctx, id)
}

func (e *mortalEngine) Destroy(ctx context.Context, id string) error {
	if err := e.m.change("Destroy"); err != nil {
		return err
	}
	return e.Keeper.Destroy(ctx, id)
}

// Changes counts too: what a merge of files does next is the agent's work.
func (e *mortalEngine) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	if err := e.m.change("Changes"); err != nil {
		return nil, err
	}
	return e.Keeper.Changes(ctx, of)
}

func (e *mortalEngine) RemoveCheckpoint(ctx context.Context, id string) error {
	if err := e.m.change("RemoveCheckpoint"); err != nil {
		return err
	}
	return e.Keeper.RemoveCheckpoint(ctx, id)
}

func (e *mortalEngine) Checkpoint(ctx context.Context, name, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	if err := e.m.change("Checkpoint"); err != nil {
		return engine.Checkpoint{}, err
	}
	if commit := opts.Commit; commit != nil {
		opts.Commit = func(c engine.Checkpoint) error {
			if err := commit(c); err != nil {
				return err
			}
			if err := e.m.change("end of checkpoint"); err != nil {
				e.state.Fail(memory.StepCommit, memory.After, err)
			}
			return nil
		}
	}
	return e.Keeper.Checkpoint(ctx, name, id, opts)
}

// crash ends the dead daemon and starts the next one.
func (w *harness) crash() (died bool) {
	w.t.Helper()
	_ = w.Close() // it cannot store anything any more
	if err := errors.Join(w.engine.Close(), w.store.Close()); err != nil {
		w.t.Error(err)
	}
	died = w.mortal.revive()
	w.start()
	return died
}

// TestCrashes kills the daemon before each change that a verb makes, and starts it
// again: the verb has taken effect completely or not at all, nothing is left over, and
// all sandboxes work.
func TestCrashes(t *testing.T) {
	type outcome struct {
		States map[string]string // name or index to state and the content of its file
	}
	prepared := func(t *testing.T) *harness {
		w := (&harness{mortal: &mortality{}}).begin(t)
		w.create(sandbox.CreateRequest{Name: "parent", History: 1})
		w.shell("parent", "echo begun > file; echo same > other")
		return w
	}
	pause := func(t *testing.T, w *harness) {
		_, err := w.Pause(asRed(t), "parent")
		must(t, err)
	}
	fork := func(t *testing.T, w *harness) {
		_, err := w.Fork(asRed(t), "parent", sandbox.ForkRequest{Name: "child"})
		must(t, err)
		w.shell("child", "echo child > file; echo new > added")
	}
	keep := func(t *testing.T, w *harness) {
		_, err := w.Update(asRed(t), "parent", sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(60))})
		must(t, err)
		w.keep(w.get("parent").ID)
	}
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, *harness)
		verb    func(context.Context, *harness) error
	}{
		{"pause", nil, func(ctx context.Context, w *harness) error { _, err := w.Pause(ctx, "parent"); return err }},
		{"resume", pause, func(ctx context.Context, w *harness) error {
			_, err := w.Resume(ctx, "parent", sandbox.ResumeRequest{})
			return err
		}},
		{"fork", nil, func(ctx context.Context, w *harness) error {
			_, err := w.Fork(ctx, "parent", sandbox.ForkRequest{Name: "new", Count: 2})
			return err
		}},
		{"fork of a paused one", pause, func(ctx context.Context, w *harness) error {
			_, err := w.Fork(ctx, "parent", sandbox.ForkRequest{Name: "new"})
			return err
		}},
		{"snapshot", nil, func(ctx context.Context, w *harness) error {
			_, err := w.CreateSnapshot(ctx, "parent", sandbox.CreateSnapshotRequest{Name: "s"})
			return err
		}},
		{"restore", nil, func(ctx context.Context, w *harness) error {
			_, err := w.RestoreSnapshot(ctx, "parent", sandbox.RestoreRequest{Step: -1})
			return err
		}},
		{"restore of a paused one", pause, func(ctx context.Context, w *harness) error {
			_, err := w.RestoreSnapshot(ctx, "parent", sandbox.RestoreRequest{Step: -1})
			return err
		}},
		{"merge whole", fork, func(ctx context.Context, w *harness) error {
			_, err := w.Merge(ctx, "parent", sandbox.MergeRequest{Winner: "child"})
			return err
		}},
		{"merge files", fork, func(ctx context.Context, w *harness) error {
			_, err := w.Merge(ctx, "parent", sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles})
			return err
		}},
		{"command with a step", nil, func(ctx context.Context, w *harness) error {
			_, err := w.Exec(ctx, "parent", sandbox.ExecRequest{Shell: "true"}, nil)
			return err
		}},
		{"automatic checkpoint", keep, func(ctx context.Context, w *harness) error {
			r := w.record(w.get("parent").ID)
			h, err := w.openRecord(ctx, &r)
			must(t, err)
			return w.takeCheckpoint(ctx, h)
		}},
		{"return to an automatic checkpoint", keep, func(ctx context.Context, w *harness) error {
			r := w.record(w.get("parent").ID)
			_, err := w.fail(ctx, &r, "it was hit")
			return err
		}},
		{"kill of a paused one", pause, func(ctx context.Context, w *harness) error { _, err := w.Kill(ctx, "parent"); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			look := func(w *harness) outcome {
				o := outcome{map[string]string{}}
				list, err := w.List(asRed(t), sandbox.ListRequest{})
				must(t, err)
				for _, s := range list.Items {
					text := string(s.State) + fmt.Sprint(s.PausedAt != nil)
					if s.State == sandbox.StateRunning {
						text += w.output(s.ID, sandbox.ExecRequest{Shell: "cat file other added 2>/dev/null; true"})
						if spec, _ := w.state.Spec(w.record(s.ID).Instance); spec.Hostname != s.Name {
							t.Errorf("%s has the host name %q", s.Name, spec.Hostname)
						}
					}
					o.States[s.Name] = text
				}
				return o
			}
			var before outcome
			var wrong []outcome
			for n := 0; ; n++ {
				w := prepared(t)
				if c.prepare != nil {
					c.prepare(t, w)
				}
				w.agree()
				if n == 0 {
					before = look(w)
				}
				w.mortal.arm(n)
				err := c.verb(asRed(t), w)
				died := w.crash()
				w.agree()
				got := look(w)
				w.agree()
				if died || err != nil {
					if diff := cmp.Diff(before, got); diff != "" {
						wrong = append(wrong, got)
						t.Logf("killed at change %d, %s: differs from before the verb (-before +now):\n%s", n, w.mortal.last, diff)
					}
					if n > 40 {
						t.Fatal("the verb does not end")
					}
					continue
				}
				for _, o := range wrong {
					if diff := cmp.Diff(got, o); diff != "" {
						t.Errorf("after a crash it is neither as before nor as after the verb (-after +crash):\n%s", diff)
					}
				}
				if n < 1 {
					t.Error("the verb changes nothing")
				}
				return
			}
		})
	}
}
