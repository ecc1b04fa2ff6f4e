// Package interpreter is E2B's code interpreter of one sandbox. The caller was
// admitted and the sandbox runs.
package interpreter

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
		answer.JSON(w, http.StatusOK, "OK")
		return
	}
	answer.Plain(w, http.StatusNotFound, "Cove does not serve "+r.Method+" "+r.URL.Path+" of E2B's code interpreter")
}
