// Package interpreter serves port 49999 of a sandbox for E2B's code interpreter SDK:
// it runs code in contexts, interpreters that keep their variables, streams events as
// JSON lines, and manages the contexts.
//
// The caller is authenticated and the sandbox runs.
package interpreter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxBody bounds a request: the code, the environment, and what JSON needs
	// to escape them.
	maxBody = 2*sandbox.MaxCodeBytes + 2*sandbox.MaxEnvBytes
	// headerTime is how long a run may be silent before its answer starts. A request
	// that is refused within that time has the status of its error.
	headerTime = time.Second
	// keepaliveTime is the interval of keepalives in a silent answer.
	keepaliveTime = 5 * time.Second
)

// Config configures the plane. All fields are required.
type Config struct {
	Service sandbox.Service
	Log     *slog.Logger
}

type plane struct {
	svc sandbox.Service
	log *slog.Logger
	// header and keepalive are headerTime and keepaliveTime, but in tests.
	header, keepalive time.Duration
}

// New returns the handler of the plane.
func New(cfg Config) http.Handler {
	return &plane{svc: cfg.Service, log: cfg.Log, header: headerTime, keepalive: keepaliveTime}
}

func (s *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sb, ok := gate.SandboxOf(r.Context())
	if !ok { // a health check, for which no token is needed
		answer.JSON(w, http.StatusOK, "OK")
		return
	}
	box := sb.ID
	head, tail, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	id, verb, hasVerb := strings.Cut(tail, "/")
	var err error
	switch route := r.Method + " " + head; {
	case route == "GET health" && tail == "":
		answer.JSON(w, http.StatusOK, "OK")
	case route == "POST execute" && tail == "":
		err = s.execute(w, r, box)
	case route == "GET contexts" && tail == "":
		err = s.list(w, r, box)
	case route == "POST contexts" && tail == "":
		err = s.create(w, r, box)
	case route == "POST contexts" && verb == "restart":
		err = s.restart(w, r, box, id)
	case route == "DELETE contexts" && id != "" && !hasVerb:
		err = s.remove(w, r, box, id)
	default:
		err = &refusal{http.StatusNotFound, "there is no " + clip.Text(r.Method+" "+r.URL.Path, 128) + " on port 49999"}
	}
	if err != nil {
		s.refuse(w, r, box, err)
	}
}

// A refusal is an error with the status by which clients choose its class.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func refused(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// refuse answers with an error, as the plain text that clients expect.
func (s *plane) refuse(w http.ResponseWriter, r *http.Request, box string, err error) {
	if own, ok := errors.AsType[*refusal](err); ok {
		answer.Plain(w, own.status, own.text)
		return
	}
	if s.gone(r.Context(), box) {
		answer.Gone(w, access.ToE2B(box), sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run"))
		return
	}
	f := answer.Of(err)
	if f.Code == http.StatusNotFound {
		f.Code = http.StatusInternalServerError // a missing language: clients take 404 for a missing context
	}
	if f.Code == http.StatusInternalServerError && sandbox.CodeOf(err) == sandbox.CodeInternal {
		s.log.ErrorContext(r.Context(), "serve E2B's code interpreter", "path", r.URL.Path, "error", err)
	}
	answer.Plain(w, f.Code, f.Message)
}

// gone reports whether the sandbox does not exist or no longer runs.
func (s *plane) gone(ctx context.Context, box string) bool {
	sb, err := s.svc.Get(context.WithoutCancel(ctx), box)
	if err != nil {
		return sandbox.CodeOf(err) == sandbox.CodeNotFound
	}
	return sb.State != sandbox.StateRunning
}

// decode reads a request's body. Unknown fields are refused, since they would have no
// effect.
func decode(w http.ResponseWriter, r *http.Request, to any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "put data into files")
	if err != nil || len(data) == 0 {
		return err
	}
	err = sdkdoor.DecodeJSON(data, to)
	if field, ok := sdkdoor.UnknownMember(err); ok {
		return refused(http.StatusBadRequest, "the field \"%s\" is not known here and would have no effect; leave it out", clip.Text(field, 64))
	}
	if err == nil {
		return nil
	}
	return refused(http.StatusBadRequest, "the request's JSON is not valid: %s", clip.Text(err.Error(), 200))
}

// languageOf parses the name of a language. Clients get status 500 for an unknown one.
func languageOf(name string) (sandbox.Language, error) {
	if strings.TrimSpace(name) == "" {
		return sandbox.Python, nil
	}
	l, err := sandbox.ParseLanguage(strings.TrimSpace(name))
	if err != nil {
		return "", refused(http.StatusInternalServerError, "%s", err.Error())
	}
	return l, nil
}
