// Package door is the door for HOPX's SDKs, which work against Cove unmodified. It
// implements the product's REST API and WebSockets over [sandbox.Service] alone, so
// policies, quotas, secrets, scopes and the audit record hold as in every door. Package
// hopx, which the product's MCP tools use too, interprets the requests.
//
// Clients talk to two planes: the control plane, with an API key, and the agent of a
// sandbox, with the sandbox's token.
package door

import (
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which both planes are served on the server's own address.
const Prefix = "/hopx"

// Tested is the range of SDK versions that the door is tested with.
const Tested = "@hopx-ai/sdk 0.3.8 to 0.5.1 (JavaScript)"

// The product's host names. Requests to them reach this door if an operator has the server
// answer to these names.
const (
	apiHost    = "api.hopx.dev"
	hostSuffix = ".vms.hopx.dev"
)

// Config configures a [Door]. All fields but Names are required.
type Config struct {
	// Service is the service that the door is written over.
	Service sandbox.Service
	// Gate authenticates callers.
	Gate *gate.Gate
	// Trusted reports whether a request comes from the user who runs the daemon.
	Trusted func(*http.Request) bool
	// Bound limits the concurrent requests of a caller.
	Bound func(http.Handler) http.Handler
	// Refuse is called before a request is refused whose body has not been read.
	Refuse func(http.ResponseWriter, *http.Request)
	// Domain is the parent domain of the sandboxes' host names; Names are the server's own
	// names.
	Domain string
	Names  []string
	// Address returns the domain as clients reach it, with the listener's port unless that
	// is the scheme's default, and the base of this door's URLs. Each is empty if unknown.
	Address func() (domain, base string)
	Log     *slog.Logger
}

// Door serves both planes. It is safe for concurrent use.
type Door struct {
	cfg Config
	// suffix is the suffix of the sandboxes' host names, empty if clients do not recognize
	// these as the product's.
	suffix string
	named  bool // the server answers to the product's name
}

// New returns a door.
func New(cfg Config) *Door {
	d := &Door{cfg: cfg}
	if domain := "." + strings.ToLower(strings.Trim(cfg.Domain, ".")); strings.HasSuffix(domain, hostSuffix) && domain != hostSuffix {
		d.suffix = domain
	}
	for _, name := range cfg.Names {
		d.named = d.named || strings.EqualFold(name, apiHost)
	}
	return d
}

// NewGate returns a gate for the door; product and refusal are filled in.
func NewGate(cfg gate.Config) *gate.Gate {
	cfg.Product, cfg.Refusal = "hopx", errToken
	return gate.New(cfg)
}

// exchange is one request and its answer.
type exchange struct {
	d  *Door
	w  http.ResponseWriter
	r  *http.Request
	id string // the request's id
	at target
}

// ServeHTTP answers a request for which [Door.ClaimsHost] or [Door.Claims] is true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{d: d, w: w, r: r, id: "req_" + strings.ToLower(rand.Text()[:20]), at: d.find(r)}
	w.Header().Set("X-Request-ID", x.id)
	w.Header().Set("Cache-Control", "no-store")
	caller, err := x.caller()
	if err != nil {
		d.cfg.Refuse(w, r)
		x.fail(err)
		return
	}
	if caller == nil {
		// The body of an unauthenticated request is not read.
		d.cfg.Refuse(w, r)
		x.r = r.Clone(r.Context())
		x.r.Body, x.r.ContentLength = http.NoBody, 0
		x.serve()
		return
	}
	r = r.WithContext(sandbox.WithCaller(r.Context(), *caller))
	d.cfg.Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.w, x.r = w, r
		x.serve()
	})).ServeHTTP(w, r)
}

func (x *exchange) serve() {
	if x.at.sandbox != "" {
		if serve := streams[x.r.Method+" "+x.at.path]; serve != nil {
			serve(x)
			return
		}
	}
	req, err := x.request()
	if err != nil {
		x.fail(err)
		return
	}
	var out *hopx.Answer
	if x.at.sandbox != "" {
		out, err = hopx.Agent(x.r.Context(), x.call(), x.place(), x.at.sandbox, req)
	} else {
		out, err = hopx.Control(x.r.Context(), x.call(), x.place(), req)
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.answer(out)
}

// call returns the call for package hopx.
func (x *exchange) call() *dialect.Call {
	return &dialect.Call{
		Service: x.d.cfg.Service, Log: x.d.cfg.Log, Header: x.r.Header,
		Status: func(string) {}, Env: func(string) string { return "" },
	}
}

// place returns where the client reaches the agents of sandboxes: by the address at which
// it has reached this door.
func (x *exchange) place() *hopx.Place {
	ctx := x.r.Context()
	return &hopx.Place{
		Origin: x.origin(),
		URL:    func(id string) string { return x.agentURL(id) },
		Token: func(id string) string {
			caller, ok := sandbox.CallerOf(ctx)
			if !ok {
				return ""
			}
			return x.d.token(caller, id)
		},
	}
}
