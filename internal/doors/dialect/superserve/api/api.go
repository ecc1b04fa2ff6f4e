// Package api is the door for Superserve's SDK: it works against Cove unmodified,
// with nothing but variables of its environment set. It is written over
// [sandbox.Service] alone, so policies, quotas, secrets, scopes and the audit record
// hold as in every door.
//
// The SDK speaks to two planes. The control plane has an API key: sandboxes,
// templates, secrets. The data plane of a sandbox has the sandbox's token: commands
// and files. This package finds the plane and the sandbox of a request (target.go)
// and authenticates the caller; the context of a request carries both.
//
// The SDK has the host names of the data plane built in. So that it finds this server,
// [Shim] leads requests for those names to it.
package api

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which everything is on the server's own address. On the
// product's host names it is at the root.
const Prefix = "/superserve"

// Tested says with which version of the SDK the door is tested.
const Tested = "@superserve/sdk 0.7.8 to 0.8.1 (JavaScript)"

// tokenPurpose is what tokens give access to: the data plane of a sandbox.
const tokenPurpose gate.Purpose = "data plane"

// errToken is the error for a missing or wrong token.
var errToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "the access token is not this sandbox's; activate the sandbox for one")

// NewGate returns a gate; product and refusal are filled in.
func NewGate(cfg gate.Config) *gate.Gate {
	cfg.Product, cfg.Refusal = "superserve", errToken
	return gate.New(cfg)
}

// Config is what a [Door] needs. All fields are required.
type Config struct {
	// Service does everything.
	Service sandbox.Service
	// Gate authenticates callers; [NewGate] makes it.
	Gate *gate.Gate
	// Trusted reports whether a request comes from the user who runs the daemon.
	Trusted func(*http.Request) bool
	// Bound limits the concurrent requests of a caller.
	Bound func(http.Handler) http.Handler
	// Previews serves ports of sandboxes by host names below Domain.
	Previews http.Handler
	Domain   string
	// Previewed reports whether a port has a preview, or had a private one.
	Previewed func(ctx context.Context, id string, port int) (bool, error)
	// Refuse is called before a request is refused whose body nobody has read.
	Refuse func(http.ResponseWriter, *http.Request)
	Log    *slog.Logger
}

// Door serves the product's planes. It is safe for concurrent use.
type Door struct {
	cfg           Config
	control, data []sdkdoor.Route[handler]
	// both serve those who are authenticated.
	serveControl, serveData http.Handler
	// zips bounds the archives that are made at once.
	zips chan struct{}
}

// New returns a door.
func New(cfg Config) *Door {
	if cfg.Domain == "" {
		cfg.Domain = "localhost"
	}
	d := &Door{cfg: cfg, zips: make(chan struct{}, maxZips)}
	d.control, d.data = d.controlRoutes(), d.dataRoutes()
	d.serveControl = cfg.Bound(d.plane(d.control))
	d.serveData = cfg.Bound(d.plane(d.data))
	return d
}

// ServeHTTP answers a request for which [Door.ClaimsHost] or [Door.Claims] is true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, err := find(r)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	r = at.strip(r)
	switch {
	case at.port != 0:
		d.servePort(w, r, at)
	case at.sandbox != "":
		d.admitData(w, r, at)
	case r.URL.Path == "/health" && r.Method == http.MethodGet:
		d.cfg.Refuse(w, r) // the body is not read
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": "0.1.0"})
	default:
		d.admitControl(w, r)
	}
}

func (d *Door) refuse(w http.ResponseWriter, r *http.Request, err error) {
	d.cfg.Refuse(w, r)
	writeError(w, err)
}

// admitControl authenticates a request to the control plane, and serves it.
func (d *Door) admitControl(w http.ResponseWriter, r *http.Request) {
	caller, err := sandbox.LocalCaller(), error(nil)
	if !d.cfg.Trusted(r) {
		caller, err = d.cfg.Gate.Bearer(r)
	}
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	d.serveControl.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), caller)))
}

// admitData authenticates a request to the data plane of a sandbox, and serves it if
// the sandbox runs. Clients of a paused sandbox activate it and try again.
func (d *Door) admitData(w http.ResponseWriter, r *http.Request, at target) {
	token, err := tokenOf(r)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	caller, err := d.cfg.Gate.Open(r.Context(), tokenPurpose, at.sandbox, token)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	ctx := sandbox.WithCaller(r.Context(), caller)
	box, err := d.living(ctx, at.sandbox)
	if err != nil {
		d.refuse(w, r, err)
		return
	}
	switch box.State {
	case sandbox.StateRunning:
	case sandbox.StateFailed:
		d.refuse(w, r, sandbox.Errorf(sandbox.CodeConflict, "the sandbox has failed: %s", box.Reason))
		return
	default:
		d.cfg.Refuse(w, r)
		fail(w, http.StatusServiceUnavailable, "sandbox_unavailable", "the sandbox is "+string(box.State)+"; activate it")
		return
	}
	d.serveData.ServeHTTP(w, r.WithContext(gate.WithSandbox(ctx, box)))
}
