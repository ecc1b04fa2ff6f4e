package cloud

import (
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 4 << 20

// handler serves one route. args are the parts of the path that match the pattern's
// wildcards. It either writes the answer, or returns an error without having written
// anything.
type handler func(w http.ResponseWriter, r *http.Request, args []string) error

// allRoutes are all served routes. Routes by id come after those by name.
func (d *Door) allRoutes() []sdkdoor.Route[handler] {
	on := sdkdoor.On[handler]
	return append([]sdkdoor.Route[handler]{
		on(http.MethodPost, "/v1/sandboxes", d.create),
		on(http.MethodGet, "/v1/sandboxes", d.list),
		on(http.MethodGet, "/v1/sandboxes/by-name/*", d.byName(d.get)),
		on(http.MethodDelete, "/v1/sandboxes/by-name/*", d.byName(d.remove)),
		on(http.MethodPost, "/v1/sandboxes/by-name/*/start", d.byName(d.start)),
		on(http.MethodPost, "/v1/sandboxes/by-name/*/stop", d.byName(d.stop)),
		on(http.MethodGet, "/v1/sandboxes/*", d.byID(d.get)),
		on(http.MethodDelete, "/v1/sandboxes/*", d.byID(d.remove)),
		on(http.MethodPost, "/v1/sandboxes/*/start", d.byID(d.start)),
		on(http.MethodPost, "/v1/sandboxes/*/stop", d.byID(d.stop)),
		on(http.MethodGet, "/v1/sandboxes/*/agent", d.byID(d.agent)),
		on(http.MethodGet, "/v1/sandboxes/*/logs", d.byID(d.logs)),
		on(http.MethodGet, "/v1/volumes", d.listVolumes),
		on(http.MethodPost, "/v1/volumes", d.createVolume),
		on(http.MethodDelete, "/v1/volumes/*", d.deleteVolume),
	}, d.volumeFileRoutes()...)
}

// Routes lists the served routes, as METHOD /pattern.
func (d *Door) Routes() []string { return sdkdoor.List(d.routes) }

// route serves a request of an authenticated caller.
func (d *Door) route(w http.ResponseWriter, r *http.Request) {
	found, args, allowed := sdkdoor.Find(d.routes, r)
	switch {
	case found != nil:
		if err := found.Serve(w, r, args); err != nil {
			if kindOf(err).status == http.StatusInternalServerError {
				d.cfg.Log.ErrorContext(r.Context(), "serve microsandbox's API", "path", r.URL.Path, "error", err)
			}
			writeError(w, err)
		}
	case allowed != "":
		d.cfg.Refuse(w, r)
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, "method_not_allowed", sdkdoor.Unserved(r, product, allowed))
	default:
		d.cfg.Refuse(w, r)
		fail(w, http.StatusNotFound, "route_not_served", sdkdoor.Unserved(r, product, ""))
	}
}

// decode reads a JSON object into v. An unknown member, which would have no effect, is
// refused by name, unless it is empty: newer clients send all the members that they know,
// empty.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "send less")
	if err != nil {
		return err
	}
	return decodeJSON(data, v)
}

func decodeJSON(data []byte, v any) error {
	err := sdkdoor.DecodeKnown(data, v, sdkdoor.Empty)
	if name, ok := sdkdoor.UnknownMember(err); ok {
		return refused(clip.Text(name, maxShown), "Cove does not know this field of microsandbox's, and does not ignore it; leave it out")
	}
	if err != nil {
		return invalid("the body is not valid: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
	}
	return nil
}
