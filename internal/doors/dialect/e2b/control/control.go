// Package control is E2B's control plane: REST with an API key. The context of a
// request carries its caller, unless the request is [Open].
package control

import (
	"log/slog"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures the plane. All fields are required.
type Config struct {
	Service sandbox.Service
	Gate    *access.Gate
	// Address is the domain of sandboxes' host names as clients reach it, and
	// the base of URLs of this plane.
	Address func() (domain, base string)
	Log     *slog.Logger
}

type plane struct {
	cfg       Config
	routes    []sdkdoor.Route[handler]
	content   []sdkdoor.Route[contentHandler]
	announced announced
	volumes   *volumefiles.Opener
}

// New returns the handler of the plane.
func New(cfg Config) http.Handler {
	p := &plane{cfg: cfg, volumes: volumefiles.New(cfg.Service)}
	p.routes, p.content = p.table(), p.contentRoutes()
	return p
}

// Routes lists the served routes, as METHOD /pattern.
func (p *plane) Routes() []string { return append(sdkdoor.List(p.routes), sdkdoor.List(p.content)...) }

// Open reports whether a request needs no key: it only checks that the server answers.
func Open(r *http.Request) bool { return r.URL.Path == "/health" }

func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if id, ok := VolumeOf(r); ok {
		p.serveContent(w, r, id)
		return
	}
	found, args, allowed := sdkdoor.Find(p.routes, r)
	switch {
	case found != nil:
		p.serve(w, r, found.Serve, args)
	case len(allowed) > 0:
		answer.Fail(w, http.StatusMethodNotAllowed, sdkdoor.Unserved(r, "E2B", allowed))
	default:
		answer.Fail(w, http.StatusNotFound, sdkdoor.Unserved(r, "E2B", ""))
	}
}

// AddressPath serves the address at which clients reach the server, for Cove's own
// command line.
const AddressPath = "/cove/address"

func (p *plane) address(_ http.ResponseWriter, _ *http.Request, _ []string) (*response, error) {
	domain, base := p.cfg.Address()
	return &response{http.StatusOK, map[string]string{"domain": domain, "base": base}}, nil
}

func (p *plane) serve(w http.ResponseWriter, r *http.Request, to handler, args []string) {
	resp, err := to(w, r, args)
	switch {
	case err != nil:
		if sandbox.CodeOf(err) == sandbox.CodeInternal {
			p.cfg.Log.ErrorContext(r.Context(), "serve E2B's API", "path", r.URL.Path, "error", err)
		}
		answer.Error(w, err)
	case resp.body == nil:
		w.WriteHeader(resp.status)
	default:
		answer.JSON(w, resp.status, resp.body)
	}
}
