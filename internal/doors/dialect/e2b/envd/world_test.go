package envd

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb/filesystempbconnect"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb/processpbconnect"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// world is a service over an engine in memory, with a sandbox whose processes are
// ones of this machine, and the plane of it.
type world struct {
	sandbox.Service
	ctx  context.Context
	box  *sandbox.Sandbox
	url  string
	proc processpbconnect.ProcessClient
	fs   filesystempbconnect.FilesystemClient
}

func newService(t *testing.T) *service.Service {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "cove.db")
	sqlitetest.New(t, path)
	st, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	state := memory.NewState(dir)
	eng := memory.New(state)
	templates := faketemplates.New("/", sandbox.Template{Name: "host", Source: "host", State: sandbox.TemplateReady, Digest: "sha256-1"})
	svc, err := service.New(service.Config{
		Store: st, Engine: eng, Templates: templates, Quota: store.Quota{Sandboxes: 5}, BuildDir: filepath.Join(dir, "builds"),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(svc.Close(), eng.Close(), state.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return svc
}

// newWorld makes a world whose clients speak JSON, as E2B's do.
func newWorld(t *testing.T, options ...connect.ClientOption) *world {
	t.Helper()
	svc := newService(t)
	w := &world{Service: svc, ctx: sandbox.WithCaller(t.Context(), sandbox.LocalCaller())}
	var err error
	if w.box, err = svc.Create(w.ctx, sandbox.CreateRequest{Template: "host", Env: map[string]string{"GIVEN": "1"}}); err != nil {
		t.Fatal(err)
	}
	plane := New(Config{Service: svc, Log: slog.New(slog.DiscardHandler)})
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// As the door does, which admits callers before.
		ctx := gate.WithSandbox(sandbox.WithCaller(r.Context(), sandbox.LocalCaller()), w.box)
		plane.ServeHTTP(rw, r.WithContext(ctx))
	}))
	t.Cleanup(srv.Close)
	w.url = srv.URL
	if options == nil {
		options = []connect.ClientOption{connect.WithProtoJSON()}
	}
	w.proc = processpbconnect.NewProcessClient(srv.Client(), srv.URL, options...)
	w.fs = filesystempbconnect.NewFilesystemClient(srv.Client(), srv.URL, options...)
	return w
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code {
		t.Errorf("%v, want %s", err, code)
	}
}
