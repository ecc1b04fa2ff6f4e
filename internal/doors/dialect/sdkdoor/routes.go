package sdkdoor

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
)

const (
	// maxPart bounds a part of a path, in bytes. No name and no id is longer.
	maxPart = 256
	// maxShown bounds what an error quotes of a client's input, in bytes.
	maxShown = 128
)

// Route is a route of a door, with its handler.
type Route[H any] struct {
	Serve   H
	method  string
	pattern []string // "*" matches any part
}

// On returns a route. A part of the pattern that is "*" matches any part of a path.
func On[H any](method, pattern string, serve H) Route[H] {
	return Route[H]{serve, method, strings.Split(strings.Trim(pattern, "/"), "/")}
}

// List returns routes as METHOD /pattern. Tests go through all that a door serves.
func List[H any](routes []Route[H]) []string {
	out := make([]string, len(routes))
	for i, t := range routes {
		out[i] = t.method + " /" + strings.Join(t.pattern, "/")
	}
	return out
}

// Find returns the first route that matches a request, or nil, and the parts of the path
// that match wildcards. If the path has only other methods, allowed lists them. Find uses
// the path as it was sent, so an encoded slash is part of a name; "." and ".." match
// nothing.
func Find[H any](routes []Route[H], r *http.Request) (found *Route[H], args []string, allowed string) {
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

func (t *Route[H]) matches(parts []string) (open []string, ok bool) {
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

// Unserved says that no route of a product's API serves a request, with the methods that
// [Find] has found instead.
func Unserved(r *http.Request, product, allowed string) string {
	instead := "see docs/compat.md for what it serves"
	if allowed != "" {
		instead = "it serves " + allowed
	}
	return "Cove does not serve " + r.Method + " " + clip.Text(r.URL.Path, maxShown) + " of " + product + "'s API; " + instead
}
