package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/enginetest"
	"github.com/cove-sh/cove/internal/guest/agent"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newState(t *testing.T) *State {
	s := NewState(t.TempDir())
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestEngine(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) enginetest.Subject {
		s := newState(t)
		return enginetest.Subject{
			Open: func(*testing.T) engine.Engine { return New(s) },
			Spec: func(*testing.T) engine.Spec {
				return engine.Spec{Root: engine.Root{Dir: "/"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 128, DiskMiB: 64, MaxPIDs: 64}}
			},
			Fail: func(t *testing.T, id string) {
				if err := s.Kill(id, "killed by the test"); err != nil {
					t.Fatal(err)
				}
			},
			Traces: func(_ *testing.T, id string) []string {
				left, err := filepath.Glob(filepath.Join(s.dir, id))
				if err != nil {
					t.Fatal(err)
				}
				return left
			},
		}
	})
}

// TestListedUntilEnded checks that an instance that does not end yet is in the list and runs,
// whatever ends it, and that this is no failure.
func TestListedUntilEnded(t *testing.T) {
	for name, end := range map[string]func(*Engine) error{
		"destroy": func(e *Engine) error { return e.Destroy(context.Background(), "one") },
		"end":     func(e *Engine) error { return e.End(context.Background(), "one") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newState(t)
				e := New(s)
				a, err := agent.New(agent.Config{})
				if err != nil {
					t.Fatal(err)
				}
				i := &instance{id: "one", dir: filepath.Join(s.dir, "one"), agent: a, cancel: func() {}, served: make(chan error)}
				s.instances["one"] = i
				ended := make(chan error, 1)
				go func() { ended <- end(e) }()
				synctest.Wait()
				all, err := e.List(t.Context())
				if err != nil || len(all) != 1 || !all[0].Running {
					t.Errorf("while it ends, the list is %+v, %v", all, err)
				}
				if err := s.Kill("one", "killed"); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("it can fail while it is ended: %v", err)
				}
				i.served <- nil
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if _, err := e.Open(t.Context(), "one"); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("Open of what has ended: %v", err)
				}
			})
		})
	}
}

func TestTraps(t *testing.T) {
	boom := errors.New("boom")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	use := map[Step]func(context.Context, *Engine, engine.Instance) error{
		StepCreate: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			_, err := e.Create(ctx, engine.Spec{ID: "new"})
			return err
		},
		StepAdmit: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			return (&Keeper{e}).Admit(ctx, 1, engine.Source{}, &engine.Spec{})
		},
		StepOpen: func(ctx context.Context, e *Engine, i engine.Instance) error {
			_, err := e.Open(ctx, i.ID())
			return err
		},
		StepList: func(ctx context.Context, e *Engine, _ engine.Instance) error { _, err := e.List(ctx); return err },
		StepDial: func(ctx context.Context, _ *Engine, i engine.Instance) error {
			c, err := i.Dial(ctx)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		StepStats: func(ctx context.Context, _ *Engine, i engine.Instance) error { _, err := i.Stats(ctx); return err },
		StepSetLimits: func(ctx context.Context, _ *Engine, i engine.Instance) error {
			_, err := i.SetLimits(ctx, sandbox.Resources{VCPUs: 3})
			return err
		},
		StepSetNetwork: func(ctx context.Context, _ *Engine, i engine.Instance) error {
			return i.(engine.Gateway).SetNetwork(ctx, engine.Network{})
		},
		StepDialPort: func(ctx context.Context, _ *Engine, i engine.Instance) error {
			c, err := i.(engine.Gateway).DialPort(ctx, port, true)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		StepAnswer: func(ctx context.Context, e *Engine, i engine.Instance) error {
			e.Ask(i.ID(), engine.Question{ID: "q"})
			return i.(engine.Asking).AnswerQuestion(ctx, "q", true)
		},
		StepEnd:     func(ctx context.Context, e *Engine, i engine.Instance) error { return e.End(ctx, i.ID()) },
		StepDestroy: func(ctx context.Context, e *Engine, i engine.Instance) error { return e.Destroy(ctx, i.ID()) },
		StepCheckpoint: func(ctx context.Context, e *Engine, i engine.Instance) error {
			_, err := (&Keeper{e}).Checkpoint(ctx, i.ID(), "ckp-1", engine.CheckpointOptions{})
			return err
		},
		StepCommit: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			id := rand.Text()
			if _, err := e.Create(ctx, engine.Spec{ID: id}); err != nil {
				return err
			}
			_, err := (&Keeper{e}).Checkpoint(ctx, id, "ckp-"+id, engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return nil }})
			return err
		},
		StepCheckpoints: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			_, err := (&Keeper{e}).Checkpoints(ctx)
			return err
		},
		StepRemoveCheckpoint: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			return (&Keeper{e}).RemoveCheckpoint(ctx, "ckp-1")
		},
		StepSetAside: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			id := strings.ToLower(rand.Text())
			if _, err := e.Create(ctx, engine.Spec{ID: id}); err != nil {
				return err
			}
			k := &Keeper{e}
			if _, err := k.Checkpoint(ctx, id, "ckp-"+id, engine.CheckpointOptions{}); err != nil {
				return err
			}
			return k.SetAside(ctx, "ckp-"+id, filepath.Join(t.TempDir(), id))
		},
		StepBringBack: func(ctx context.Context, e *Engine, _ engine.Instance) error {
			id, dir := strings.ToLower(rand.Text()), t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, id+metaSuffix), fmt.Appendf(nil, `{"id":%q}`, id), 0o600); err != nil {
				return err
			}
			_, err := (&Keeper{e}).BringBack(ctx, id, dir)
			return err
		},
		StepChanges: func(ctx context.Context, e *Engine, i engine.Instance) error {
			_, err := (&Keeper{e}).Changes(ctx, engine.Source{Instance: i.ID()})
			return err
		},
	}
	for _, step := range Steps() {
		for _, when := range []When{Before, After} {
			t.Run(string(step)+" "+string(when), func(t *testing.T) {
				s := newState(t)
				e := New(s)
				i, err := e.Create(t.Context(), engine.Spec{ID: "old"})
				if err != nil {
					t.Fatal(err)
				}
				s.Fail(step, when, boom)
				if err := use[step](t.Context(), e, i); !errors.Is(err, boom) {
					t.Fatalf("the trap did not spring: %v", err)
				}
				_, err = os.Stat(filepath.Join(s.dir, "new"))
				if made := err == nil; step == StepCreate && made != (when == After) {
					t.Errorf("made: %v", made)
				}
				if err := use[step](t.Context(), e, i); err != nil && !(step == StepCreate && when == After) {
					t.Errorf("the trap sprang twice: %v", err)
				}
			})
		}
	}
}
