// Package envd is E2B's data plane of one sandbox: the Connect services
// process.Process and filesystem.Filesystem, and files over HTTP. The caller is
// authenticated and the sandbox runs.
//
// A process of E2B is a job of Cove, so jobs that were started through other doors are
// processes too. The only state of this package is the watches that clients poll, which
// end with the daemon.
package envd

import (
	"context"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb/filesystempbconnect"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb/processpbconnect"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// maxMessage bounds a message of a client: the largest input of a process, in base64,
// and some room for the rest of the JSON.
const maxMessage = sandbox.MaxStdinBytes/3*4 + 64<<10

// Config configures the plane. All fields are required.
type Config struct {
	Service sandbox.Service
	Log     *slog.Logger
}

type plane struct {
	cfg     Config
	watches watches
	mux     *http.ServeMux
}

// New returns the handler of the plane.
func New(cfg Config) http.Handler {
	p := &plane{cfg: cfg, mux: http.NewServeMux()}
	options := connect.WithHandlerOptions(connect.WithReadMaxBytes(maxMessage))
	p.mux.Handle(processpbconnect.NewProcessHandler(processes{p}, options))
	p.mux.Handle(filesystempbconnect.NewFilesystemHandler(filesystem{p}, options))
	p.mux.HandleFunc("GET /health", health)
	p.handle("GET /metrics", p.metrics)
	p.handle("GET /envs", p.envs)
	p.handle("GET /files", p.download)
	p.mux.HandleFunc("POST /files", p.upload)
	p.handle("POST /files/compose", p.compose)
	p.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer.Fail(w, http.StatusNotFound, "Cove does not serve "+r.Method+" "+r.URL.Path+" of E2B's data plane")
	})
	return p
}

func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// handle serves a pattern with a handler whose error is the answer.
func (p *plane) handle(pattern string, h func(http.ResponseWriter, *http.Request) error) {
	p.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			p.refuse(w, r, err)
		}
	})
}

func health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// sandboxOf returns the sandbox of a call.
func sandboxOf(ctx context.Context) (*sandbox.Sandbox, error) {
	box, ok := gate.SandboxOf(ctx)
	if !ok {
		return nil, fail(connect.CodeInternal, "no sandbox is named")
	}
	return box, nil
}

// accountOf returns the account of the user who is named in the header of a call.
func (p *plane) accountOf(ctx context.Context, h http.Header) (*account, error) {
	box, err := sandboxOf(ctx)
	if err != nil {
		return nil, err
	}
	user, err := userOf(h)
	if err != nil {
		return nil, err
	}
	return p.account(ctx, box, user)
}
