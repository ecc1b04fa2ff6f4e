package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const (
	oneID   = "sbx-abcdefghijklmnopqrstuvwxyz"
	otherID = "sbx-234567abcdefghijklmnopqrst"
)

// TestFind checks that a request's target is that of its host name, of the first part of
// its path, or of its header, and that there is none if two of them differ.
func TestFind(t *testing.T) {
	const local, shared, below = "127.0.0.1:7777", "sandbox.superserve.ai", ".sandbox.superserve.ai"
	d := New(Config{Bound: func(h http.Handler) http.Handler { return h }})
	for _, c := range []struct {
		name, host, path string
		ids              []string
		byHost, claims   bool
		want             target
		route            string
		err              error
	}{
		{name: "control", host: local, path: "/superserve/sandboxes", claims: true, want: target{cut: Prefix}, route: "/sandboxes"},
		{name: "control with two slashes", host: local, path: "/superserve//sandboxes", claims: true, want: target{cut: Prefix}, route: "/sandboxes"},
		{name: "control by host", host: "API.superserve.ai:443", path: "/sandboxes", byHost: true, route: "/sandboxes"},
		{name: "control by host with a header", host: "api.superserve.ai", path: "/sandboxes", ids: []string{oneID}, byHost: true, err: errSandbox},
		{name: "shared", host: shared, path: "/exec", ids: []string{oneID}, byHost: true, want: target{sandbox: oneID}, route: "/exec"},
		{name: "shared without a header", host: shared, path: "/exec", byHost: true, err: errSandbox},
		{name: "shared with two", host: shared, path: "/exec", ids: []string{oneID, otherID}, byHost: true, err: errSandbox},
		{name: "shared with a list", host: shared, path: "/exec", ids: []string{oneID + "," + otherID}, byHost: true, err: errSandbox},
		{name: "shared with a name", host: shared, path: "/exec", ids: []string{"work"}, byHost: true, err: errSandbox},
		{name: "data by host", host: "boxd-" + oneID + below, path: "/exec/connect", byHost: true, want: target{sandbox: oneID}, route: "/exec/connect"},
		{name: "both agree", host: "boxd-" + oneID + below + ".", path: "/files", ids: []string{oneID}, byHost: true, want: target{sandbox: oneID}, route: "/files"},
		{name: "another in the header", host: "boxd-" + oneID + below, path: "/files", ids: []string{otherID}, byHost: true, err: errSandbox},
		{name: "port by host", host: "3000-" + oneID + ".usw-sandbox.superserve.ai", path: "/superserve/x", byHost: true, want: target{sandbox: oneID, port: 3000}, route: "/superserve/x"},
		{name: "low port", host: "80-" + oneID + below, path: "/", byHost: true, err: errHost},
		{name: "port spelt otherwise", host: "03000-" + oneID + below, path: "/", byHost: true, err: errHost},
		{name: "no sandbox's name", host: "x" + below, path: "/", byHost: true, err: errHost},
		{name: "data below the prefix", host: local, path: "/superserve/boxd-" + oneID + "/exec/connect", claims: true, want: target{sandbox: oneID, cut: Prefix + "/boxd-" + oneID}, route: "/exec/connect"},
		{name: "data below the prefix, another in the header", host: local, path: "/superserve/boxd-" + oneID + "/exec", ids: []string{otherID}, claims: true, err: errSandbox},
		{name: "header below the prefix", host: local, path: "/superserve/files", ids: []string{oneID}, claims: true, want: target{sandbox: oneID, cut: Prefix}, route: "/files"},
		{name: "header alone", host: local, path: "/exec", ids: []string{oneID}, claims: true, want: target{sandbox: oneID}, route: "/exec"},
		{name: "port below the prefix", host: local, path: "/superserve/3000-" + oneID + "/a%2Fb", ids: []string{oneID}, claims: true, want: target{sandbox: oneID, port: 3000, cut: Prefix + "/3000-" + oneID}, route: "/a%2Fb"},
		{name: "port below the prefix, opened by a browser", host: local, path: "/superserve/3000-" + oneID + "/", claims: true, err: errPort},
		{name: "an id that climbs", host: local, path: "/superserve/exec", ids: []string{"../" + oneID}, claims: true, err: errSandbox},
		{name: "another door", host: local, path: "/v1/sandboxes"},
		{name: "like the prefix", host: local, path: "/superserved/sandboxes"},
		{name: "like a host", host: "evil-sandbox.superserve.ai", path: "/exec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path, nil)
			r.Host = c.host
			for _, id := range c.ids {
				r.Header.Add("x-superserve-sandbox-ID", id)
			}
			if got := d.ClaimsHost(r); got != c.byHost {
				t.Errorf("claimed by host: %v", got)
			}
			if got := d.Claims(r); !c.byHost && got != c.claims {
				t.Errorf("claimed: %v", got)
			}
			if !c.byHost && !c.claims {
				return
			}
			got, err := find(r)
			if err != c.err || err == nil && got != c.want {
				t.Fatalf("got %+v, %v, want %+v, %v", got, err, c.want, c.err)
			}
			if err == nil && got.strip(r).URL.EscapedPath() != c.route {
				t.Errorf("the route is %s, want %s", got.strip(r).URL.EscapedPath(), c.route)
			}
		})
	}
}

// TestTokenOf checks that a token is accepted in one place, once.
func TestTokenOf(t *testing.T) {
	for _, c := range []struct {
		name           string
		header, protos []string
		want           string
	}{
		{name: "none"},
		{name: "header", header: []string{"a"}, want: "a"},
		{name: "two headers", header: []string{"a", "a"}},
		{name: "subprotocol", protos: []string{"superserve.exec.v1, token.a.b"}, want: "a.b"},
		{name: "subprotocols in two headers", protos: []string{"superserve.exec.v1", "token.a"}, want: "a"},
		{name: "two subprotocols", protos: []string{"token.a, token.b"}},
		{name: "both", header: []string{"a"}, protos: []string{"token.a"}},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header[headerToken], r.Header[headerProto] = c.header, c.protos
		if got, err := tokenOf(r); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v", c.name, got, err)
		}
	}
}

// TestFilePath checks that file paths must be absolute, without "..", and in the query
// once.
func TestFilePath(t *testing.T) {
	for query, want := range map[string]string{
		"path=%2Fa%2Fb": "/a/b", "path=/a..b": "/a..b", "path=/": "/",
		"path=a": "", "": "", "path=/a/..": "", "path=/%2e%2e/a": "", "path=/a%00": "", "path=/a&path=/b": "", "path=/a&x=1": "", "path=/a;b=%zz": "",
		"path=/" + strings.Repeat("a", 5000): "",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/files", nil)
		r.URL.RawQuery = query
		if got, _, err := filePath(r); got != want || (err == nil) != (want != "") {
			t.Errorf("%.40s: got %q, %v", query, got, err)
		}
	}
}
