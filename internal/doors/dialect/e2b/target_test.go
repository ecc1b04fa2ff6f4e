package e2b

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
)

const (
	oneID   = "sbxabcdefghijklmnopqrstuvwxyz"
	otherID = "sbx234567abcdefghijklmnopqrst"
)

func testDoor() *Door {
	return &Door{domain: "cove.example", others: map[string]bool{"www.cove.example": true}, planes: map[int]http.Handler{
		access.PortEnvd: http.NotFoundHandler(), access.PortInterpreter: http.NotFoundHandler(),
	}}
}

// A request leads where its host name says, or where its headers say on an
// address that all sandboxes share, and nowhere if the two differ.
func TestFind(t *testing.T) {
	d := testDoor()
	one := strings.Replace(oneID, "sbx", "sbx-", 1)
	for _, c := range []struct {
		name, host, path string
		ids, ports       []string
		byHost, claims   bool
		want             target
		err              error
	}{
		{name: "control", host: "127.0.0.1:7777", path: "/e2b/sandboxes", claims: true, want: target{prefixed: true}},
		{name: "control by host", host: "API.cove.example:80", path: "/sandboxes", byHost: true, want: target{}},
		{name: "control by host with headers", host: "api.cove.example", path: "/", ids: []string{oneID}, ports: []string{"49983"}, byHost: true, err: errHost},
		{name: "envd by host", host: "49983-" + oneID + ".cove.example", path: "/files", byHost: true, want: target{sandbox: one, port: 49983}},
		{name: "both agree", host: "49999-" + oneID + ".cove.example:7777", path: "/", ids: []string{oneID}, ports: []string{"49999"}, byHost: true, want: target{sandbox: one, port: 49999}},
		{name: "another sandbox in the header", host: "49983-" + oneID + ".cove.example", path: "/", ids: []string{otherID}, ports: []string{"49983"}, byHost: true, err: errSandbox},
		{name: "another port in the header", host: "49983-" + oneID + ".cove.example", path: "/", ids: []string{oneID}, ports: []string{"49999"}, byHost: true, err: errPort},
		{name: "half of the headers by host", host: "49983-" + oneID + ".cove.example", path: "/", ids: []string{oneID}, byHost: true, err: errPort},
		{name: "headers", host: "localhost", path: "/process.Process/List", ids: []string{oneID}, ports: []string{"49983"}, claims: true, want: target{sandbox: one, port: 49983}},
		{name: "headers below the prefix", host: "localhost", path: "/e2b/files", ids: []string{oneID}, ports: []string{"49983"}, claims: true, want: target{sandbox: one, port: 49983, prefixed: true}},
		{name: "headers at sandbox.DOMAIN", host: "sandbox.cove.example", path: "/", ids: []string{oneID}, ports: []string{"3000"}, byHost: true, claims: true, want: target{sandbox: one, port: 3000}},
		{name: "sandbox.DOMAIN without headers", host: "sandbox.cove.example", path: "/", byHost: true, err: errHost},
		{name: "no port", host: "localhost", path: "/", ids: []string{oneID}, claims: true, err: errPort},
		{name: "no sandbox", host: "localhost", path: "/", ports: []string{"49983"}, claims: true, err: errSandbox},
		{name: "two sandboxes", host: "localhost", path: "/", ids: []string{oneID, otherID}, ports: []string{"49983"}, claims: true, err: errSandbox},
		{name: "two ports", host: "localhost", path: "/", ids: []string{oneID}, ports: []string{"49983", "49999"}, claims: true, err: errPort},
		{name: "list in one header", host: "localhost", path: "/", ids: []string{oneID + "," + otherID}, ports: []string{"49983"}, claims: true, err: errSandbox},
		{name: "port spelt otherwise", host: "localhost", path: "/", ids: []string{oneID}, ports: []string{"049983"}, claims: true, err: errPort},
		{name: "port out of range", host: "localhost", path: "/", ids: []string{oneID}, ports: []string{"115519"}, claims: true, err: errPort},
		{name: "Cove's own id", host: "localhost", path: "/", ids: []string{one}, ports: []string{"49983"}, claims: true, err: errSandbox},
		{name: "signed link", host: "localhost", path: "/files?path=a&signature=v1_x", claims: true, want: target{bySignature: true}},
		{name: "another door", host: "localhost", path: "/v1/sandboxes"},
		{name: "like the prefix", host: "localhost", path: "/e2bx/sandboxes"},
		{name: "a port", host: "3000-" + oneID + ".cove.example", path: "/", byHost: true, want: target{sandbox: one, port: 3000}},
		{name: "a preview's own name", host: "49983-" + one + ".cove.example", path: "/"},
		{name: "a name of the operator's", host: "www.cove.example", path: "/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path, nil)
			r.Host = c.host
			for _, id := range c.ids {
				r.Header.Add("e2b-sandbox-id", id)
			}
			for _, p := range c.ports {
				r.Header.Add("E2B-SANDBOX-PORT", p)
			}
			if got := d.ClaimsHost(r); got != c.byHost {
				t.Errorf("claimed by host: %v", got)
			}
			if !c.byHost {
				if got := d.Claims(r); got != c.claims {
					t.Errorf("claimed: %v", got)
				}
			}
			if !c.byHost && !c.claims {
				return
			}
			got, err := d.find(r)
			if err != c.err || err == nil && got != c.want {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestStrip(t *testing.T) {
	for from, want := range map[string]string{
		"/e2b": "/", "/e2b/": "/", "/e2b/a%2Fb": "/a%2Fb", "/e2b//v1": "//v1", "/e2b/e2b/a": "/e2b/a", "/e%32b/a%2Fb": "/a/b",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, from, nil)
		if got := (target{prefixed: true}).strip(r); got.URL.EscapedPath() != want {
			t.Errorf("%s became %s, want %s", from, got.URL.EscapedPath(), want)
		}
	}
}
