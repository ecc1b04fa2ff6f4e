// Package api is the door for Superserve's SDK, which works against Cove unmodified, with
// only environment variables set. It is written over [sandbox.Service] alone, so policies,
// quotas, secrets, scopes and the audit record hold as in every door.
//
// The SDK talks to two planes. The control plane takes an API key: sandboxes, templates,
// secrets. The data plane of a sandbox takes the sandbox's token: commands and files. This
// package finds the plane and the sandbox of a request (target.go) and authenticates the
// caller; the request's context carries both.
//
// The host names of the data plane are built into the SDK. [Shim] redirects requests for
// those names to this server.
package api

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which everything is served on the server's own address. On the
// product's host names it is served at the root.
const Prefix = "/superserve"

// Tested is the range of SDK versions that the door is tested with.
const Tested = "@superserve/sdk 0.7.8 to 0.8.1 (JavaScript)"

// tokenPurpose is the purpose of tokens: access to the data plane of a sandbox.
const tokenPurpose gate.Purpose = "data plane"

// errToken is the error for a missing or wrong token.
var errToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "the access token is not this sandbox's; activate the sandbox for one")

// NewGate returns a gate; product and refusal are filled in.
func NewGate(cfg gate.Config) *gate.Gate {
	cfg.Product, cfg.Refusal = "superserve", errToken
	return gate.New(cfg)
}

// Config configures a [Door]. All fields are required.
type Config struct {
	// Service is the service that the door is written over.
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
	// Refuse is called before a request is refused whose body has not been read.
	Refuse func(http.ResponseWriter, *http.Request)
	Log    *slog.Logger
}

// Door serves the product's planes. It is safe for concurrent use.
type Door struct {
	cfg           Config
	control, data []sdkdoor.Route[handler]
	// serveControl and serveData serve authenticated requests.
	serveControl, serveData http.Handler
	// zips bounds how many archives are made at the same time.
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

// admitData authenticates a request to the data plane of a sandbox, and serves it if the
// sandbox is running. Clients activate a paused sandbox and try again.
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
