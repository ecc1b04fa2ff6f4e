// Package envd is E2B's data plane of one sandbox: the Connect services
// process.Process and filesystem.Filesystem, and files over HTTP. The caller was
// admitted and the sandbox runs.
package envd

import (
	"log/slog"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

// Config says what the plane stands on. All fields are required.
type Config struct {
	Service sandbox.Service
	Log     *slog.Logger
}

type plane struct{ cfg Config }

// New returns the handler of the plane.
func New(cfg Config) http.Handler { return &plane{cfg} }

// ServeHTTP implements [http.Handler].
func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer.Fail(w, http.StatusNotFound, "Cove does not serve "+r.Method+" "+r.URL.Path+" of E2B's data plane")
}
