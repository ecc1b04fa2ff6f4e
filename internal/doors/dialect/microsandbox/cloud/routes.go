package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
)

const (
	// maxBody bounds the body of a request, in bytes.
	maxBody = 4 << 20
	// maxPart bounds a part of the path, in bytes.
	maxPart = 256
)

// handler serves one route. Args are the parts of the path that match the pattern's
// wildcards. It writes the answer, or returns an error and has written nothing.
type handler func(w http.ResponseWriter, r *http.Request, args []string) error

type route struct {
	method  string
	pattern []string // "*" matches any part
	serve   handler
}

func on(method, pattern string, h handler) route {
	return route{method, strings.Split(strings.Trim(pattern, "/"), "/"), h}
}

// allRoutes are all that is served. Routes by id come after those by name.
func (d *Door) allRoutes() []route {
	return []route{
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
	}
}

// route serves a request of a caller who is authenticated.
func (d *Door) route(w http.ResponseWriter, r *http.Request) {
	found, args, allowed := match(d.routes, r)
	switch {
	case found != nil:
		if err := found.serve(w, r, args); err != nil {
			if kindOf(err).status == http.StatusInternalServerError {
				d.cfg.Log.ErrorContext(r.Context(), "serve microsandbox's API", "path", r.URL.Path, "error", err)
			}
			writeError(w, err)
		}
	case allowed != "":
		d.cfg.Refuse(w, r)
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "Cove does not serve "+routeText(r)+" of microsandbox's API; it serves "+allowed)
	default:
		d.cfg.Refuse(w, r)
		fail(w, http.StatusNotFound, "route_not_served", "Cove does not serve "+routeText(r)+" of microsandbox's API; see docs/compat.md for what it serves")
	}
}

func routeText(r *http.Request) string { return r.Method + " " + clip.Text(r.URL.Path, maxShown) }

// match finds the route of a request. It uses the path as it was sent, so that an
// encoded slash is part of a name; "." and ".." match nothing.
func match(routes []route, r *http.Request) (found *route, args []string, allowed string) {
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i, part := range parts {
		plain, err := url.PathUnescape(part)
		if err != nil || plain == "" || plain == "." || plain == ".." || len(plain) > maxPart {
			return nil, nil, ""
		}
		parts[i] = plain
	}
	var methods []string
	for i := range routes {
		open, ok := routes[i].matches(parts)
		switch {
		case !ok:
		case routes[i].method == r.Method:
			return &routes[i], open, ""
		default:
			methods = append(methods, routes[i].method)
		}
	}
	return nil, nil, strings.Join(methods, ", ")
}

func (t *route) matches(parts []string) (open []string, ok bool) {
	if len(parts) != len(t.pattern) {
		return nil, false
	}
	for i, want := range t.pattern {
		switch {
		case want == "*":
			open = append(open, parts[i])
		case want != parts[i]:
			return nil, false
		}
	}
	return open, true
}

// decode reads a JSON object into v. A member that is not known is refused by its name,
// as it would have no effect, unless it says nothing: newer clients send all that they
// know, empty.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "send less")
	if err != nil {
		return err
	}
	return decodeJSON(data, v)
}

func decodeJSON(data []byte, v any) error {
	if err := limits.CheckJSON(data); err != nil {
		return invalid("the body is not valid: %v", err)
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	err := dec.Decode(&tree)
	if err == nil && len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		err = errors.New("there is more after the object")
	}
	if err != nil {
		return invalid("the body is not valid: %s", clip.Text(err.Error(), maxShown))
	}
	if data, err = json.Marshal(spoken(tree)); err != nil {
		return err
	}
	dec = json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err = dec.Decode(v); err == nil {
		return nil
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return refused(clip.Text(strings.Trim(name, `"`), maxShown), "Cove does not know this field of microsandbox's, and does not ignore it; leave it out")
	}
	return invalid("the body is not valid: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
}

// spoken takes from objects the members that say nothing: null, and what is empty.
func spoken(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			switch m := spoken(member).(type) {
			case nil:
				delete(v, name)
			case map[string]any:
				if len(m) == 0 {
					delete(v, name)
				}
			case []any:
				if len(m) == 0 {
					delete(v, name)
				}
			}
		}
	case []any:
		for i := range v {
			v[i] = spoken(v[i])
		}
	}
	return v
}
