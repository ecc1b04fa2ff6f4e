package e2b

import (
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// The headers that carry a sandbox's tokens.
const (
	headerToken   = "X-Access-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// serveSandbox serves a request to a port of a sandbox.
func (d *Door) serveSandbox(w http.ResponseWriter, r *http.Request, at target) {
	plane := d.planes[at.port]
	if plane == nil {
		d.servePort(w, r, at)
		return
	}
	if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		d.serveHealth(w, r, at, plane)
		return
	}
	caller, err := d.caller(r, at)
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Error(w, err)
		return
	}
	d.serveCaller(w, r, at, plane, caller)
}

// caller authenticates a request to a plane of a sandbox, by the sandbox's token or, for
// files, by a signature.
func (d *Door) caller(r *http.Request, at target) (sandbox.Caller, error) {
	if tokens := r.Header.Values(headerToken); len(tokens) > 0 {
		if len(tokens) > 1 {
			return sandbox.Caller{}, access.ErrToken
		}
		return d.cfg.Gate.Open(r.Context(), access.Envd, at.sandbox, tokens[0])
	}
	if tokens := r.Header.Values(headerTraffic); at.port == access.PortInterpreter && len(tokens) == 1 {
		return d.cfg.Gate.Open(r.Context(), access.Traffic, at.sandbox, tokens[0])
	}
	if at.port == access.PortEnvd && r.URL.Path == "/files" {
		return d.cfg.Gate.OpenSigned(r.Context(), at.sandbox, r)
	}
	return sandbox.Caller{}, access.ErrToken
}

// serveCaller serves a request of a known caller.
func (d *Door) serveCaller(w http.ResponseWriter, r *http.Request, at target, plane http.Handler, caller sandbox.Caller) {
	ctx := sandbox.WithCaller(r.Context(), caller)
	box, err := d.cfg.Service.Get(ctx, at.sandbox)
	if err == nil {
		box, err = d.resumed(ctx, box)
	}
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Gone(w, access.ToE2B(at.sandbox), err)
		return
	}
	plane.ServeHTTP(w, r.WithContext(gate.WithSandbox(ctx, box)))
}

// serveHealth reports whether a sandbox runs, without asking for a token.
func (d *Door) serveHealth(w http.ResponseWriter, r *http.Request, at target, plane http.Handler) {
	box, err := d.cfg.Gate.Look(r.Context(), at.sandbox)
	if err == nil && box.State != sandbox.StateRunning {
		err = errNotRunning
	}
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Gone(w, access.ToE2B(at.sandbox), err)
		return
	}
	plane.ServeHTTP(w, r)
}

// serveLink serves a signed link that names no sandbox.
func (d *Door) serveLink(w http.ResponseWriter, r *http.Request) {
	id, caller, err := d.cfg.Gate.FindSigned(r.Context(), r)
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Error(w, err)
		return
	}
	d.serveCaller(w, r, target{sandbox: id, port: access.PortEnvd}, d.planes[access.PortEnvd], caller)
}
