package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
)

const (
	// maxBody bounds the body of a request but of an upload, in bytes.
	maxBody = 4 << 20
	// maxPart bounds a part of the path, in bytes.
	maxPart = 256
	// maxShown bounds what an error quotes of a client's input, in bytes.
	maxShown = 128
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

// controlRoutes are all that is served of the control plane.
func (d *Door) controlRoutes() []route {
	return []route{
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

// dataRoutes are all that is served of a sandbox's data plane.
func (d *Door) dataRoutes() []route {
	return []route{
		on(http.MethodPost, "/exec", d.exec),
		on(http.MethodPost, "/exec/stream", d.execStream),
		on(http.MethodGet, "/exec/connect", d.spawn),
		on(http.MethodGet, "/files", d.download),
		on(http.MethodPost, "/files", d.upload),
	}
}

// plane serves a table of routes to callers who are authenticated.
func (d *Door) plane(routes []route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, args, allowed := match(routes, r)
		switch {
		case found != nil:
			if err := found.serve(w, r, args); err != nil {
				if kindOf(err).status == http.StatusInternalServerError {
					d.cfg.Log.ErrorContext(r.Context(), "serve Superserve's API", "path", r.URL.Path, "error", err)
				}
				writeError(w, err)
			}
		case len(allowed) > 0:
			d.cfg.Refuse(w, r)
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "Cove does not serve "+routeText(r)+" of Superserve's API; it serves "+allowed)
		default:
			d.cfg.Refuse(w, r)
			fail(w, http.StatusNotFound, "not_found", "Cove does not serve "+routeText(r)+" of Superserve's API; see docs/compat.md for what it serves")
		}
	})
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

// decode reads a JSON object into v, in which a member that is not known is refused
// by its name: it would have no effect.
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
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil && len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		err = errors.New("there is more after the object")
	}
	if err == nil {
		return nil
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid("%s: Cove does not know this field of Superserve's, and does not ignore it; leave it out", clip.Text(strings.Trim(name, `"`), maxShown))
	}
	return invalid("the body is not valid: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
}

// onlyParams refuses query parameters that are not known or are given twice.
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
