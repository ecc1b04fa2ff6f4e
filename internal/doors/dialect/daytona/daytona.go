// Package daytona is the door for Daytona's SDK, which works with Cove unmodified, with
// only Daytona's own environment variables set. The door uses only [sandbox.Service],
// so policies, quotas, secrets, scopes and the audit record apply as in every door.
//
// Clients speak to two planes, each of which is a package:
//
//   - control: REST (sandboxes, snapshots, volumes, previews), below [Prefix]/api;
//   - toolbox: REST and WebSocket of one sandbox, below [Prefix]/toolbox/ID.
//
// This package finds the plane and the sandbox of a request, and authenticates the
// caller: by API key, or by a token or a signature for one sandbox. The request's
// context carries both: [gate.SandboxOf] and [sandbox.CallerOf].
package daytona

import (
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/control"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/toolbox"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which the planes are on the server's own address.
const Prefix = "/daytona"

// The paths of the planes below [Prefix].
const (
	ControlPath = "/api"
	toolboxPath = "/toolbox"
)

// Tested says with which versions of the SDK the door is tested.
const Tested = "@daytonaio/sdk 0.205.1 to 0.218.0, @daytona/sdk 0.216.0 (JavaScript)"

// Config configures a [Door]. All fields are required.
type Config struct {
	// Service does everything.
	Service sandbox.Service
	// Gate authenticates callers. It comes from [access.NewGate].
	Gate *gate.Gate
	// Trusted reports whether a request comes from the user who runs the daemon.
	Trusted func(*http.Request) bool
	// Bound limits the concurrent requests of a caller.
	Bound func(http.Handler) http.Handler
	// Previews serves the ports of sandboxes.
	Previews http.Handler
	// Refuse is called before a request is refused whose body nobody has read.
	Refuse func(http.ResponseWriter, *http.Request)
	// Domain is the parent domain of previews' host names.
	Domain string
	// Base is the URL of [Prefix] as clients reach it; empty if it is not known.
	Base func() string
	Log  *slog.Logger
}

// Door serves Daytona's planes. It is safe for concurrent use.
type Door struct {
	cfg     Config
	domain  string
	control http.Handler
	toolbox http.Handler
}

// New returns a door.
func New(cfg Config) *Door {
	d := &Door{cfg: cfg, domain: sdkdoor.Domain(cfg.Domain)}
	d.control = control.New(control.Config{Service: cfg.Service, Gate: cfg.Gate, Control: d.url(ControlPath), Toolbox: d.url(toolboxPath), Log: cfg.Log})
	d.toolbox = cfg.Bound(toolbox.New(toolbox.Config{Service: cfg.Service, Log: cfg.Log}))
	return d
}

// url returns the address of a plane for the client of a request. It has the host that
// the client has used, whose certificate the client trusts.
func (d *Door) url(plane string) func(*http.Request) string {
	return func(r *http.Request) string {
		base := d.cfg.Base()
		if base != "" && d.cfg.Trusted(r) {
			return base + plane // a socket has no host
		}
		return sdkdoor.Origin(r, base) + Prefix + plane
	}
}

// Claims reports whether a request is for this door by its path.
func (d *Door) Claims(r *http.Request) bool {
	return r.URL.Path == Prefix || strings.HasPrefix(r.URL.Path, Prefix+"/")
}

// ServeHTTP answers a request for which [Door.ClaimsHost] or [Door.Claims] is true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.ClaimsHost(r) {
		d.servePreview(w, r)
		return
	}
	if inner, ok := below(r, Prefix+ControlPath); ok {
		d.serveControl(w, inner)
		return
	}
	inner, ok := below(r, Prefix+toolboxPath)
	if !ok {
		d.refuse(w, r, answer.Control, answer.Unserved(r.Method+" "+r.URL.Path))
		return
	}
	id, rest, _ := strings.Cut(strings.TrimPrefix(inner.URL.Path, "/"), "/")
	inner, ok = below(inner, "/"+id)
	if !ok || id == "" || rest == "" {
		d.refuse(w, r, answer.Toolbox, answer.Fail(http.StatusNotFound, "NOT_FOUND", "no sandbox is named; call %s/ID/ROUTE", Prefix+toolboxPath))
		return
	}
	d.serveToolbox(w, inner, id)
}

func (d *Door) refuse(w http.ResponseWriter, r *http.Request, source string, err error) {
	d.cfg.Refuse(w, r)
	answer.Error(w, r, source, err)
}

// below takes a prefix from the path of a request, and false if it has another one or
// the prefix is escaped. Slashes after the prefix become one.
func below(r *http.Request, prefix string) (*http.Request, bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, prefix)
	if !ok || !strings.HasPrefix(rest, "/") {
		return nil, false
	}
	u := *r.URL
	u.Path = "/" + strings.TrimLeft(rest, "/")
	if u.RawPath != "" {
		raw, ok := strings.CutPrefix(u.RawPath, prefix)
		if !ok {
			return nil, false
		}
		u.RawPath = "/" + strings.TrimLeft(raw, "/")
		if plain, err := url.PathUnescape(u.RawPath); err != nil || plain != u.Path {
			return nil, false
		}
	}
	out := *r
	out.URL = &u
	return &out, true
}

// serveControl authenticates a request to the control plane, and serves it.
func (d *Door) serveControl(w http.ResponseWriter, r *http.Request) {
	if control.Open(r) {
		d.cfg.Refuse(w, r)
		d.control.ServeHTTP(w, r)
		return
	}
	caller, err := d.caller(r)
	if err != nil {
		d.refuse(w, r, answer.Control, err)
		return
	}
	d.cfg.Bound(d.control).ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), caller)))
}

func (d *Door) caller(r *http.Request) (sandbox.Caller, error) {
	if d.cfg.Trusted(r) {
		return sandbox.LocalCaller(), nil
	}
	return d.cfg.Gate.Bearer(r)
}

// serveToolbox authenticates a request to the toolbox of a sandbox, and serves it.
func (d *Door) serveToolbox(w http.ResponseWriter, r *http.Request, id string) {
	caller, err := d.toolboxCaller(r, id)
	if err != nil {
		d.refuse(w, r, answer.Toolbox, err)
		return
	}
	ctx := sandbox.WithCaller(r.Context(), caller)
	box, err := d.cfg.Service.Get(ctx, id)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound, err == nil && box.State.Final():
		err = control.NoSandbox(id)
	case err != nil:
	case box.State != sandbox.StateRunning:
		err = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s; start it first", access.State(box, time.Now()))
	}
	if err != nil {
		d.refuse(w, r, answer.Toolbox, err)
		return
	}
	d.toolbox.ServeHTTP(w, r.WithContext(gate.WithSandbox(ctx, box)))
}

// toolboxCaller authenticates a request to the toolbox of a sandbox: by API key; by the
// sandbox's token in the query, for clients that cannot set headers; by a signature for
// one file.
func (d *Door) toolboxCaller(r *http.Request, id string) (sandbox.Caller, error) {
	if r.Header.Get("Authorization") != "" || d.cfg.Trusted(r) {
		return d.caller(r)
	}
	query := r.URL.Query()
	if tokens := query[access.ParamToken]; len(tokens) > 0 {
		if len(tokens) > 1 {
			return sandbox.Caller{}, access.ErrToken
		}
		return d.cfg.Gate.Open(r.Context(), access.Toolbox, id, tokens[0])
	}
	if query.Has(access.ParamSignature) {
		return access.OpenSigned(r.Context(), d.cfg.Gate, id, r)
	}
	return d.caller(r)
}
