// Package e2b is the door for E2B's SDKs, which work with Cove unmodified, with only
// E2B's own environment variables set. The door uses only [sandbox.Service], so
// policies, quotas, secrets, scopes and the audit record apply as in every door.
//
// E2B's clients speak to four planes, each of which is a package:
//
//   - control: REST with an API key (sandboxes, templates, volumes);
//   - envd: the data plane of one sandbox, port 49983: Connect RPC and files;
//   - interpreter: the code interpreter of one sandbox, port 49999;
//   - the contents of volumes, part of control.
//
// This package finds the plane and the sandbox of a request, and authenticates the
// caller (package access). The request's context carries both:
// [gate.SandboxOf] and [sandbox.CallerOf].
package e2b

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/control"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/envd"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/interpreter"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which the control plane is on the server's own
// address. On a host api.DOMAIN it is at the root.
const Prefix = "/e2b"

// AddressPath, below [Prefix], serves the address at which clients reach the server. It
// is for Cove's own command line, and not a route of E2B's.
const AddressPath = control.AddressPath

// Tested says with which versions of the SDKs the door is tested.
const Tested = "e2b 2.45.0 to 2.51.0, @e2b/code-interpreter 2.6.0 to 2.8.0 (JavaScript), @e2b/cli 2.19.0"

// Config configures a [Door]. All fields except Others are required.
type Config struct {
	// Service does everything.
	Service sandbox.Service
	// Gate authenticates callers.
	Gate *access.Gate
	// Trusted reports whether a request comes from the user who runs the daemon.
	Trusted func(*http.Request) bool
	// Bound limits the concurrent requests of a caller.
	Bound func(http.Handler) http.Handler
	// Previews serves the other ports of sandboxes.
	Previews http.Handler
	// Refuse is called before a request is refused whose body nobody has read.
	Refuse func(http.ResponseWriter, *http.Request)
	// Domain is the parent domain of sandboxes' host names.
	Domain string
	// Others are host names below Domain that are not for this door.
	Others []string
	// Address is the domain as clients reach it, with the port of the listener
	// if that is not the scheme's own; and the base of URLs of this door.
	Address func() (domain, base string)
	Log     *slog.Logger
}

// Door serves E2B's planes. It is safe for concurrent use.
type Door struct {
	cfg     Config
	domain  string
	others  map[string]bool
	control http.Handler
	planes  map[int]http.Handler
}

// New returns a door.
func New(cfg Config) *Door {
	d := &Door{cfg: cfg, domain: sdkdoor.Domain(cfg.Domain), others: map[string]bool{}}
	for _, name := range cfg.Others {
		d.others[strings.ToLower(name)] = true
	}
	d.control = control.New(control.Config{Service: cfg.Service, Gate: cfg.Gate, Address: cfg.Address, Log: cfg.Log})
	d.planes = map[int]http.Handler{
		access.PortEnvd:        cfg.Bound(envd.New(envd.Config{Service: cfg.Service, Log: cfg.Log})),
		access.PortInterpreter: cfg.Bound(interpreter.New(interpreter.Config{Service: cfg.Service, Log: cfg.Log})),
	}
	return d
}

// ServeHTTP answers a request for which [Door.ClaimsHost] or [Door.Claims] is
// true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, err := d.find(r)
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Plain(w, http.StatusBadRequest, err.Error())
		return
	}
	r = at.strip(r)
	switch {
	case at.bySignature:
		d.serveLink(w, r)
	case at.sandbox != "":
		d.serveSandbox(w, r, at)
	default:
		d.serveControl(w, r)
	}
}

// serveControl authenticates a request to the control plane, and serves it.
func (d *Door) serveControl(w http.ResponseWriter, r *http.Request) {
	if control.Open(r) {
		d.control.ServeHTTP(w, r)
		return
	}
	caller, err := d.controlCaller(r)
	if err != nil {
		d.cfg.Refuse(w, r)
		answer.Error(w, err)
		return
	}
	d.cfg.Bound(d.control).ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), caller)))
}

// controlCaller authenticates the caller of the control plane: by the API key, or by the token of
// the volume whose content a request is for.
func (d *Door) controlCaller(r *http.Request) (sandbox.Caller, error) {
	if id, ok := control.VolumeOf(r); ok {
		token, err := auth.BearerToken(r.Header)
		if err != nil {
			return sandbox.Caller{}, err
		}
		return d.cfg.Gate.Open(r.Context(), access.Volume, id, token)
	}
	if d.cfg.Trusted(r) {
		return sandbox.LocalCaller(), nil
	}
	return d.cfg.Gate.Caller(r)
}
