// Package door is the door for HOPX's SDKs, which work against Cove unmodified: the
// product's REST API and WebSockets over [sandbox.Service] alone, so that policies,
// quotas, secrets, scopes and the audit record hold as in every door. What requests
// mean is told by package hopx, which the product's MCP tools share.
//
// Clients speak to two planes: the control plane, with an API key, and the agent of a
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

// Prefix is the path below which both planes are on the server's own address.
const Prefix = "/hopx"

// Tested says with which versions of the SDK the door is tested.
const Tested = "@hopx-ai/sdk 0.3.8 to 0.5.1 (JavaScript)"

// The names at which clients look for the product. They lead here where an operator
// has the server answer to them.
const (
	apiHost    = "api.hopx.dev"
	hostSuffix = ".vms.hopx.dev"
)

// Config is what a [Door] needs. All fields but Names are required.
type Config struct {
	// Service does everything.
	Service sandbox.Service
	// Gate authenticates callers.
	Gate *gate.Gate
	// Trusted reports whether a request comes from the user who runs the daemon.
	Trusted func(*http.Request) bool
	// Bound limits the concurrent requests of a caller.
	Bound func(http.Handler) http.Handler
	// Refuse is called before a request is refused whose body nobody has read.
	Refuse func(http.ResponseWriter, *http.Request)
	// Domain is the parent domain of sandboxes' host names, Names are those of the
	// server.
	Domain string
	Names  []string
	// Address is the domain as clients reach it, with the port of the listener if
	// that is not the scheme's own; and the base of URLs of this door. Each is empty
	// if it is not known.
	Address func() (domain, base string)
	Log     *slog.Logger
}

// Door serves both planes. It is safe for concurrent use.
type Door struct {
	cfg Config
	// suffix ends the host names of sandboxes, empty if clients do not know them for
	// the product's.
	suffix string
	named  bool // whether the server answers to the product's name
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
	id string // of the request
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
		// Nothing of a stranger's body is read.
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

// call is what package hopx works with.
func (x *exchange) call() *dialect.Call {
	return &dialect.Call{
		Service: x.d.cfg.Service, Log: x.d.cfg.Log, Header: x.r.Header,
		Status: func(string) {}, Env: func(string) string { return "" },
	}
}

// place tells clients where the agents of sandboxes are: as they have reached this
// door.
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
