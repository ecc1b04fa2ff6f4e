// Package toolbox is Daytona's toolbox of one sandbox: commands, sessions, terminals, an
// interpreter, files and git, by REST and WebSocket. The caller is authenticated and the
// sandbox runs.
//
// Terminals and sessions are jobs of Cove whose tags say what they are, so this package
// keeps no state: both survive a restart of the daemon, and continue in forks.
package toolbox

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures the plane. All fields are required.
type Config struct {
	Service sandbox.Service
	Log     *slog.Logger
}

type plane struct {
	svc sandbox.Service
	log *slog.Logger
}

// New returns the handler of the plane.
func New(cfg Config) http.Handler {
	p := &plane{cfg.Service, cfg.Log}
	rt := answer.NewRouter(answer.Toolbox, cfg.Log)
	rt.On("GET /user-home-dir", p.homeDir)
	rt.On("GET /work-dir", p.workDir)
	rt.On("GET /version", p.version)
	rt.On("GET /system/metrics", p.metrics)
	rt.On("POST /env", decoded(p.setEnv))
	rt.On("POST /process/execute", decoded(p.execute))
	rt.On("POST /process/code-run", decoded(p.codeRun))
	p.sessionRoutes(rt)
	p.ptyRoutes(rt)
	p.interpreterRoutes(rt)
	p.fileRoutes(rt)
	p.gitRoutes(rt)
	p.computerRoutes(rt)
	return rt
}

// boxOf returns the sandbox of a request.
func boxOf(r *http.Request) *sandbox.Sandbox {
	box, _ := gate.SandboxOf(r.Context()) // the door has put it there
	return box
}

// decoded is a handler that takes a JSON body.
func decoded[T any](h func(w http.ResponseWriter, r *http.Request, body *T) error) answer.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		body := new(T)
		if err := answer.Decode(w, r, body); err != nil {
			return err
		}
		return h(w, r, body)
	}
}

// ok answers with a value.
func ok(w http.ResponseWriter, v any) error {
	answer.JSON(w, http.StatusOK, v)
	return nil
}

// done answers without one.
func done(w http.ResponseWriter, status int) error {
	w.WriteHeader(status)
	return nil
}

func notFound(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeNotFound }

func missing(format string, args ...any) error {
	return answer.Fail(http.StatusNotFound, "NOT_FOUND", format, args...)
}

// detached returns a context for what must be done though the client is gone.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), endTime)
}
