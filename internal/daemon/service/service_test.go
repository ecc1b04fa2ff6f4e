package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitForNotice has calls wait for as long as it takes that an end is recorded. It is called
// before the harness is made.
func waitForNotice(t *testing.T) {
	was := failureNotice
	failureNotice = time.Minute
	t.Cleanup(func() { failureNotice = was })
}

// harness is a service with everything that it works with. All except the service
// itself survives a restart.
type harness struct {
	*Service
	t      testing.TB
	state  *memory.State
	engine *memory.Engine
	// bare is set on a harness whose engine keeps no states.
	bare bool
	// mortal is set on a harness that can crash; see [mortality].
	mortal    *mortality
	store     *sqlite.Store
	path      string
	templates *faketemplates.Provider
	// wrap, if it is set, makes the service's engine.
	wrap func(*memory.Keeper) engine.Engine
	// wrapStore, if it is set, is what the service sees of the store.
	wrapStore func(store.Store) store.Store
	// provider replaces templates, if it is set.
	provider TemplateProvider
	cfg      Config
}

func newHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	return (&harness{}).begin(t, change...)
}

// bareHarness is a harness whose engine keeps no states.
func bareHarness(t testing.TB) *harness {
	t.Helper()
	return (&harness{bare: true}).begin(t)
}

func (w *harness) begin(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	w.t, w.state, w.path, w.templates = t, memory.NewState(dir), filepath.Join(dir, "cove.db"), newTemplates(t.TempDir())
	w.cfg = Config{Boot: Boot{ID: "boot-1", At: time.Unix(1, 0)}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), BuildDir: filepath.Join(dir, "builds")}
	// What is done at intervals is done by the tests of it.
	w.cfg.checkpointLook, w.cfg.statsInterval = time.Hour, time.Hour
	v, err := vault.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Vault = v
	for _, f := range change {
		f(&w.cfg)
	}
	sqlitetest.New(t, w.path)
	w.start()
	t.Cleanup(func() {
		w.stop()
		if err := w.state.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *harness) start() {
	w.t.Helper()
	w.open()
	if err := w.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

// open makes a service that is not started yet.
func (w *harness) open() {
	w.t.Helper()
	var err error
	if w.store, err = sqlite.Open(context.Background(), w.path); err != nil {
		w.t.Fatal(err)
	}
	keeper := memory.NewKeeper(w.state)
	w.engine = keeper.Engine
	w.cfg.Store, w.cfg.Engine, w.cfg.Templates = w.store, keeper, w.templates
	if w.provider != nil {
		w.cfg.Templates = w.provider
	}
	if w.bare {
		w.cfg.Engine = w.engine
	}
	if w.wrap != nil {
		w.cfg.Engine = w.wrap(keeper)
	}
	if w.wrapStore != nil {
		w.cfg.Store = w.wrapStore(w.store)
	}
	if w.mortal != nil {
		w.cfg.Store, w.cfg.Engine = &mortalStore{w.store, w.mortal}, &mortalEngine{keeper, w.state, w.mortal}
	}
	if w.Service, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *harness) stop() {
	w.t.Helper()
	if err := errors.Join(w.Close(), w.engine.Close(), w.store.Close()); err != nil {
		w.t.Error(err)
	}
}

func (w *harness) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// stuck makes the removal of the next instance fail for as long as the service runs. The
// channel is closed when the service has begun to try again.
func (w *harness) stuck() <-chan struct{} {
	again := make(chan struct{})
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	w.state.Trap(memory.StepDestroy, memory.Before, func(ctx context.Context) error {
		close(again)
		<-ctx.Done()
		return ctx.Err()
	})
	return again
}

// as returns a context of a caller.
func as(ctx context.Context, team string, scopes ...sandbox.Scope) context.Context {
	if len(scopes) == 0 {
		scopes = []sandbox.Scope{sandbox.ScopeAdmin}
	}
	return sandbox.WithCaller(ctx, sandbox.Caller{KeyID: "key-" + team, Team: team, Scopes: scopes})
}

// asRed returns a context whose caller is of the team red, as in most tests.
func asRed(t testing.TB) context.Context { return as(t.Context(), "red") }

func (w *harness) create(req sandbox.CreateRequest) *sandbox.Sandbox {
	w.t.Helper()
	sbx, err := w.Create(asRed(w.t), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return sbx
}

func (w *harness) get(id string) *sandbox.Sandbox {
	w.t.Helper()
	sbx, err := w.Get(asRed(w.t), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return sbx
}

// record reads a sandbox of any team from the store.
func (w *harness) record(id string) store.Record {
	w.t.Helper()
	r, err := w.store.Sandbox(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// waitState waits until a sandbox is in a state.
func (w *harness) waitState(id string, want sandbox.State) *sandbox.Sandbox {
	w.t.Helper()
	var got *sandbox.Sandbox
	wait(w.t, func() bool { got = w.get(id); return got.State == want }, func() string { return fmt.Sprintf("%s is %s, want %s", id, got.State, want) })
	return got
}

// wait polls until something has happened.
func wait(t testing.TB, happened func() bool, otherwise func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !happened(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(otherwise())
		}
	}
}

// untilGo is shell for waiting until [harness.goOn] is called.
const untilGo = "until [ -e go ]; do sleep 0.01; done"

func (w *harness) goOn(ref string) error {
	_, err := w.WriteFile(asRed(w.t), ref, sandbox.WriteFileRequest{Path: "go"}, strings.NewReader(""))
	return err
}

// agree waits until the engine has exactly the instances and checkpoints that the
// store's records refer to, and no change is under way.
func (w *harness) agree() {
	w.t.Helper()
	var wrong string
	wait(w.t, func() bool { wrong = w.differences(); return wrong == "" }, func() string { return wrong })
}

func (w *harness) differences() string {
	var want []string
	all, _, err := w.store.ListSandboxes(context.Background(), store.SandboxFilter{}, sandbox.Page{Limit: sandbox.MaxPageSize})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range all {
		switch {
		case r.State == sandbox.StateRunning && r.Held && !r.Applying && r.PausedAt == nil && r.Checkpoint == "":
			want = append(want, r.Instance)
		case r.State == sandbox.StatePaused && r.Held && !r.Applying && r.PausedAt != nil && r.Checkpoint != "":
		case !r.State.Final() || r.Held || r.EndedAt == nil || r.Reason == "":
			return fmt.Sprintf("record %s is left %s, held %v, applying %v, ended %v, reason %q", r.ID, r.State, r.Held, r.Applying, r.EndedAt, r.Reason)
		}
	}
	slices.Sort(want)
	if got := w.state.IDs(); !slices.Equal(got, want) {
		return fmt.Sprintf("the engine has %v, the store says %v run", got, want)
	}
	if want, err = w.store.Checkpoints(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if got := w.kept(); !slices.Equal(got, want) {
		return fmt.Sprintf("the engine keeps %v, the store refers to %v", got, want)
	}
	return ""
}

// kept lists the checkpoints that the engine has, without golden ones.
func (w *harness) kept() (kept []string) {
	for _, c := range w.state.Kept() {
		if !strings.HasPrefix(c.ID, ids.Golden) {
			kept = append(kept, c.ID)
		}
	}
	return kept
}

func wantCode(t *testing.T, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("error %v has code %q, want %q", err, got, want)
	}
	if err == nil {
		return
	}
	if _, ok := errors.AsType[*sandbox.Error](err); !ok {
		t.Fatalf("error %v is no sandbox.Error", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			t.Fatal(e.Detail())
		}
		t.Fatal(err)
	}
}

func ptr[T any](v T) *T { return &v }

// newTemplates returns the templates that a harness begins with.
func newTemplates(dir string) *faketemplates.Provider {
	return faketemplates.New(dir,
		sandbox.Template{Name: "host", Source: "host", State: sandbox.TemplateReady},
		sandbox.Template{
			Name: "full", Source: "debian", State: sandbox.TemplateReady, Digest: "sha256:full", User: "user", WorkDir: "/workspace",
			Env: map[string]string{"LANG": "C.UTF-8", "A": "template"}, Resources: sandbox.Resources{VCPUs: 3, MemoryMiB: 300, DiskMiB: 3000, MaxPIDs: 333},
		},
		sandbox.Template{Name: "unbuilt", Source: "debian", State: sandbox.TemplateAvailable},
	)
}

// ago moves all times of a sandbox into the past by d.
func (w *harness) ago(id string, d time.Duration) {
	w.t.Helper()
	past := func(at *time.Time) *time.Time {
		if at == nil {
			return nil
		}
		return ptr(at.Add(-d))
	}
	r, err := w.store.UpdateSandbox(w.t.Context(), id, store.Change{Apply: func(r *store.Record) error {
		r.CreatedAt, r.LastActiveAt, r.ExpiresAt = r.CreatedAt.Add(-d), r.LastActiveAt.Add(-d), past(r.ExpiresAt)
		return nil
	}})
	must(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.handles[id]; h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.active, h.stored = r.LastActiveAt, r.LastActiveAt
	}
}
