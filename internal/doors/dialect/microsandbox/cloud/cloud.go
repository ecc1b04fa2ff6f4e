// Package cloud is the door for microsandbox's clients in their cloud mode: the program msb
// and the SDKs work against Cove unmodified, with MSB_BACKEND=cloud, MSB_API_URL and
// MSB_API_KEY set. It is written over [sandbox.Service] alone, so policies, quotas,
// secrets, scopes and the audit record hold as in every door.
//
// Clients use two interfaces, both with an API key: REST for the life of sandboxes, logs
// and volumes; and a WebSocket per sandbox that carries the guest protocol (package wire)
// for commands, terminals, files and TCP. Whatever a client begins on a WebSocket ends with
// it.
//
// What Cove has no field for is kept in the sandbox's metadata, under keys that begin with
// [tagPrefix].
package cloud

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/sandbox"
)

// Prefix is the path below which everything is served.
const Prefix = "/microsandbox"

// Tested is the version of the SDK that the door is tested with.
const Tested = "microsandbox 0.6.18 (JavaScript, and its msb)"

// product is the name of the product.
const product = "microsandbox"

// errToken is the refusal of a gate whose tokens this door does not use: clients have only
// API keys.
var errToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key is missing or not valid; set MSB_API_KEY")

// NewGate returns a gate; product and refusal are filled in.
func NewGate(cfg gate.Config) *gate.Gate {
	cfg.Product, cfg.Refusal = product, errToken
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
	// Refuse is called before a request is refused whose body has not been read.
	Refuse func(http.ResponseWriter, *http.Request)
	Log    *slog.Logger
}

// Door serves the product's two interfaces. It is safe for concurrent use.
type Door struct {
	cfg    Config
	routes []sdkdoor.Route[handler]
	served http.Handler
	// volumes opens the files of volumes.
	volumes *volumefiles.Opener

	mu sync.Mutex
	// conns holds the WebSockets of each sandbox, by its id; guarded by mu.
	conns map[string]map[*conn]struct{}
}

// New returns a door.
func New(cfg Config) *Door {
	d := &Door{cfg: cfg, volumes: volumefiles.New(cfg.Service), conns: map[string]map[*conn]struct{}{}}
	d.routes = d.allRoutes()
	d.served = cfg.Bound(http.HandlerFunc(d.route))
	return d
}

// ClaimsHost reports whether a request is for this door by its host name. It always returns
// false.
func (d *Door) ClaimsHost(*http.Request) bool { return false }

// Claims reports whether a request is for this door by its path.
func (d *Door) Claims(r *http.Request) bool {
	return r.URL.Path == Prefix || strings.HasPrefix(r.URL.Path, Prefix+"/")
}

// ServeHTTP answers a request for which [Door.Claims] is true.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, err := d.authenticate(r)
	if err != nil {
		d.cfg.Refuse(w, r)
		writeError(w, err)
		return
	}
	d.served.ServeHTTP(w, below(r).WithContext(ctx))
}

// authenticate returns the context of a request with its caller.
func (d *Door) authenticate(r *http.Request) (context.Context, error) {
	caller, err := sandbox.LocalCaller(), error(nil)
	if !d.cfg.Trusted(r) {
		caller, err = d.cfg.Gate.Bearer(r)
	}
	return sandbox.WithCaller(r.Context(), caller), err
}

// below removes [Prefix] from the path of a request.
func below(r *http.Request) *http.Request {
	out := *r
	u := *r.URL
	u.Path = "/" + strings.TrimLeft(strings.TrimPrefix(u.Path, Prefix), "/")
	if u.RawPath != "" {
		raw, ok := strings.CutPrefix(u.RawPath, Prefix)
		raw = "/" + strings.TrimLeft(raw, "/")
		if plain, err := url.PathUnescape(raw); !ok || err != nil || plain != u.Path {
			raw = "" // the prefix itself is escaped
		}
		u.RawPath = raw
	}
	out.URL = &u
	return &out
}
