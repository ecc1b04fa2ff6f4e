package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

const (
	// maxBody bounds a request's body, except an upload's, in bytes.
	maxBody = 4 << 20
	// maxShown bounds what an error quotes of a client's input, in bytes.
	maxShown = 128
)

// handler serves one route. args are the parts of the path that match the pattern's
// wildcards. It either writes the answer, or returns an error without having written
// anything.
type handler func(w http.ResponseWriter, r *http.Request, args []string) error

// controlRoutes are the served routes of the control plane.
func (d *Door) controlRoutes() []sdkdoor.Route[handler] {
	on := sdkdoor.On[handler]
	return []sdkdoor.Route[handler]{
		on(http.MethodPost, "/sandboxes", d.create),
		on(http.MethodGet, "/sandboxes", d.list),
		on(http.MethodGet, "/sandboxes/*", d.get),
		on(http.MethodPatch, "/sandboxes/*", d.update),
		on(http.MethodDelete, "/sandboxes/*", d.kill),
		on(http.MethodPost, "/sandboxes/*/pause", d.pause),
		on(http.MethodPost, "/sandboxes/*/resume", d.resume),
		on(http.MethodPost, "/sandboxes/*/activate", d.activate),
		on(http.MethodGet, "/sandboxes/*/network", d.networkLog),
		on(http.MethodPost, "/sandboxes/*/secrets", d.attachSecret),
		on(http.MethodDelete, "/sandboxes/*/secrets/*", d.detachSecret),
		on(http.MethodGet, "/templates", d.listTemplates),
		on(http.MethodPost, "/templates", d.createTemplate),
		on(http.MethodGet, "/templates/*", d.getTemplate),
		on(http.MethodDelete, "/templates/*", d.deleteTemplate),
		on(http.MethodPost, "/templates/*/builds", d.rebuild),
		on(http.MethodGet, "/templates/*/builds", d.listBuilds),
		on(http.MethodGet, "/templates/*/builds/*", d.getBuild),
		on(http.MethodDelete, "/templates/*/builds/*", d.cancelBuild),
		on(http.MethodGet, "/templates/*/builds/*/logs", d.buildLogs),
		on(http.MethodGet, "/secrets", d.listSecrets),
		on(http.MethodPost, "/secrets", d.createSecret),
		on(http.MethodGet, "/secrets/*", d.getSecret),
		on(http.MethodPatch, "/secrets/*", d.rotateSecret),
		on(http.MethodDelete, "/secrets/*", d.deleteSecret),
		on(http.MethodGet, "/secrets/*/audit", d.secretAudit),
		on(http.MethodGet, "/secrets/*/sandboxes", d.secretSandboxes),
		on(http.MethodGet, "/providers", d.listProviders),
	}
}

// dataRoutes are the served routes of a sandbox's data plane.
func (d *Door) dataRoutes() []sdkdoor.Route[handler] {
	on := sdkdoor.On[handler]
	return []sdkdoor.Route[handler]{
		on(http.MethodPost, "/exec", d.exec),
		on(http.MethodPost, "/exec/stream", d.execStream),
		on(http.MethodGet, "/exec/connect", d.spawn),
		on(http.MethodGet, "/files", d.download),
		on(http.MethodPost, "/files", d.upload),
	}
}

// Routes lists the served routes of the control plane, and of a sandbox's data plane, as
// METHOD /pattern.
func (d *Door) Routes() (control, data []string) {
	return sdkdoor.List(d.control), sdkdoor.List(d.data)
}

// plane serves a table of routes to authenticated callers.
func (d *Door) plane(routes []sdkdoor.Route[handler]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, args, allowed := sdkdoor.Find(routes, r)
		switch {
		case found != nil:
			if err := found.Serve(w, r, args); err != nil {
				if kindOf(err).status == http.StatusInternalServerError {
					d.cfg.Log.ErrorContext(r.Context(), "serve Superserve's API", "path", r.URL.Path, "error", err)
				}
				writeError(w, err)
			}
		case len(allowed) > 0:
			d.cfg.Refuse(w, r)
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, "method_not_allowed", sdkdoor.Unserved(r, "Superserve", allowed))
		default:
			d.cfg.Refuse(w, r)
			fail(w, http.StatusNotFound, "not_found", sdkdoor.Unserved(r, "Superserve", ""))
		}
	})
}

// decode reads a JSON object into v. An unknown member, which would have no effect, is
// refused by name.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "send less")
	if err != nil {
		return err
	}
	return decodeJSON(data, v)
}

func decodeJSON(data []byte, v any) error {
	err := sdkdoor.DecodeJSON(data, v)
	if name, ok := sdkdoor.UnknownMember(err); ok {
		return invalid("%s: Cove does not know this field of Superserve's, and does not ignore it; leave it out", clip.Text(name, maxShown))
	}
	if err != nil {
		return invalid("the body is not valid: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
	}
	return nil
}

// onlyParams refuses query parameters that are unknown or repeated.
func onlyParams(r *http.Request, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query cannot be read: %s", clip.Text(err.Error(), maxShown))
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return nil, invalid("%s: Cove does not know this parameter of Superserve's; leave it out", clip.Text(name, maxShown))
		}
		if len(values) > 1 {
			return nil, invalid("%s is given twice; give it once", name)
		}
	}
	return query, nil
}
