package janitor

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a service with a janitor.
type house struct {
	*service.Service
	t      *testing.T
	ctx    context.Context
	state  *memory.State
	engine *memory.Engine
	store  *sqlite.Store
	path   string
	cfg    Config // without Records and Keeper
	booted time.Time
	stop   func()
}

func newHouse(t *testing.T, cfg Config) *house {
	dir := t.TempDir()
	h := &house{t: t, ctx: sandbox.WithCaller(context.Background(), sandbox.LocalCaller()), state: memory.NewState(dir), path: filepath.Join(dir, "cove.db"), booted: time.Now(), cfg: cfg}
	sqlitetest.New(t, h.path)
	h.start()
	return h
}

func (h *house) start() {
	h.t.Helper()
	var err error
	if h.store, err = sqlite.Open(h.ctx, h.path); err != nil {
		h.t.Fatal(err)
	}
	h.engine = memory.New(h.state)
	log := slog.New(slog.NewTextHandler(h.t.Output(), nil))
	h.Service, err = service.New(service.Config{
		Store: h.store, Engine: h.engine, Templates: faketemplates.New("/", sandbox.Template{Name: "host", State: sandbox.TemplateReady}), Log: log, Boot: service.Boot{ID: "boot"},
		// The machine runs by the same clock as the test, which may be synctest's.
		Clock: func() (time.Time, time.Duration, error) { return time.Now(), time.Since(h.booted), nil },
	})
	must(h.t, err)
	must(h.t, h.Start(h.ctx))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cfg := h.cfg
		cfg.Records, cfg.Keeper, cfg.Log = h.store, h, log
		New(cfg).Run(ctx)
	}()
	h.stop = func() {
		cancel()
		<-done
		must(h.t, errors.Join(h.Close(), h.engine.Close(), h.store.Close()))
	}
}

func (h *house) close() {
	h.stop()
	must(h.t, h.state.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *house) create(lifetime, idle int64) string {
	h.t.Helper()
	sbx, err := h.Create(h.ctx, sandbox.CreateRequest{LifetimeSeconds: &lifetime, IdleTimeoutSeconds: &idle})
	must(h.t, err)
	return sbx.ID
}

// after lets time pass and checks a sandbox's state. With a reason, the sandbox must have
// ended for that reason.
func (h *house) after(d time.Duration, id string, want sandbox.State, reason string) {
	h.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	r, err := h.store.Sandbox(h.ctx, id)
	must(h.t, err)
	if r.State != want || !strings.Contains(r.Reason, reason) {
		h.t.Fatalf("after %v it is %s (%q), want %s (%q)", d, r.State, r.Reason, want, reason)
	}
}

func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Config{})
		defer h.close()
		id := h.create(60, 0)
		forever := h.create(0, 0)
		h.after(59*time.Second, id, sandbox.StateRunning, "")
		h.after(3*time.Second, id, sandbox.StateKilled, "lifetime of 1m0s ended")
		if ids := h.state.IDs(); len(ids) != 1 || ids[0] != forever {
			t.Errorf("instances are %v", ids)
		}
		// An update starts the time again.
		id = h.create(60, 0)
		time.Sleep(50 * time.Second)
		_, err := h.Update(h.ctx, id, sandbox.UpdateRequest{LifetimeSeconds: new(int64(30))})
		must(t, err)
		h.after(29*time.Second, id, sandbox.StateRunning, "")
		h.after(3*time.Second, id, sandbox.StateKilled, "lifetime of 30s ended")
		h.after(time.Minute, forever, sandbox.StateRunning, "")
	})
}

func TestLifetimeSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Config{})
		defer func() { h.close() }()
		long, short := h.create(100, 0), h.create(10, 0)
		time.Sleep(5 * time.Second)
		h.stop()
		time.Sleep(50 * time.Second)
		h.start()
		h.after(2*time.Second, short, sandbox.StateKilled, "lifetime")
		h.after(40*time.Second, long, sandbox.StateRunning, "")
		h.after(6*time.Second, long, sandbox.StateKilled, "lifetime")
	})
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Config{})
		defer func() { h.close() }()
		id := h.create(0, 60)
		h.after(50*time.Second, id, sandbox.StateRunning, "")
		_, err := h.StatFile(h.ctx, id, "/")
		must(t, err)
		h.after(55*time.Second, id, sandbox.StateRunning, "")
		h.after(8*time.Second, id, sandbox.StateKilled, "idle for 1m0s")

		// Idle time continues to count across a restart.
		id = h.create(0, 60)
		time.Sleep(30 * time.Second)
		h.stop()
		h.start()
		h.after(25*time.Second, id, sandbox.StateRunning, "")
		h.after(8*time.Second, id, sandbox.StateKilled, "idle")
	})
}

func TestCallsAreNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Config{})
		defer h.close()
		id := h.create(0, 60)
		_, err := h.WriteFile(h.ctx, id, sandbox.WriteFileRequest{Path: "file"}, strings.NewReader("x"))
		must(t, err)
		r, err := h.ReadFile(h.ctx, id, sandbox.ReadFileRequest{Path: "file"})
		must(t, err)
		h.after(90*time.Second, id, sandbox.StateRunning, "")
		must(t, r.Close())
		h.after(55*time.Second, id, sandbox.StateRunning, "")
		h.after(10*time.Second, id, sandbox.StateKilled, "idle")
	})
}

func TestRetention(t *testing.T) {
	if cfg := New(Config{}).cfg; cfg.Retention != 24*time.Hour || cfg.AuditAge != 30*24*time.Hour {
		t.Errorf("records stay for %v and audit events for %v, want a day and 30 days", cfg.Retention, cfg.AuditAge)
	}
	synctest.Test(t, func(t *testing.T) {
		// The times are shorter than the defaults: the service does something every few
		// seconds.
		h := newHouse(t, Config{Every: time.Minute, Retention: time.Hour, AuditAge: 3 * time.Hour})
		defer h.close()
		id := h.create(0, 0)
		_, err := h.Kill(h.ctx, id)
		must(t, err)
		h.after(59*time.Minute, id, sandbox.StateKilled, "killed by local")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if _, err := h.store.Sandbox(h.ctx, id); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("the record is still there: %v", err)
		}
		count := func() int {
			events, _, err := h.store.ListAudit(h.ctx, store.AuditFilter{}, sandbox.Page{})
			must(t, err)
			return len(events)
		}
		if n := count(); n != 2 {
			t.Errorf("%d audit events, want 2", n)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := count(); n != 0 {
			t.Errorf("%d audit events after 3 hours, want none", n)
		}
	})
}

func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Config{})
		defer h.close()
		id := h.create(100, 0)
		h.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
		h.after(105*time.Second, id, sandbox.StateStopping, "lifetime")
		h.after(time.Minute, id, sandbox.StateKilled, "lifetime")
		if ids := h.state.IDs(); len(ids) != 0 {
			t.Errorf("left are %v", ids)
		}
	})
}

// TestCommandsAreNotIdle runs in real time, since commands do.
func TestCommandsAreNotIdle(t *testing.T) {
	h := newHouse(t, Config{Every: 50 * time.Millisecond, CleanEvery: 50 * time.Millisecond})
	defer h.close()
	idle := h.create(0, 1)
	busy := h.create(0, 3600)
	job, err := h.Exec(h.ctx, busy, sandbox.ExecRequest{Shell: "read line", OpenStdin: true, Background: true}, nil)
	must(t, err)
	_, err = h.Update(h.ctx, busy, sandbox.UpdateRequest{IdleTimeoutSeconds: new(int64(1))})
	must(t, err)
	state := func(id string) sandbox.State {
		r, err := h.store.Sandbox(h.ctx, id)
		must(t, err)
		return r.State
	}
	wait := func(id string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); state(id) != sandbox.StateKilled; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is %s", id, state(id))
			}
		}
	}
	wait(idle)
	// Wait for two more rounds of the janitor, until another idle sandbox has ended.
	wait(h.create(0, 2))
	if got := state(busy); got != sandbox.StateRunning {
		t.Fatalf("with a command running it is %s", got)
	}
	must(t, h.WriteInput(h.ctx, busy, job.ID, []byte("\n"), false))
	wait(busy)
}
