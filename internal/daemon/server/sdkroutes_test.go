package server_test

import (
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	daytonacontrol "github.com/cove-sh/cove/internal/doors/dialect/daytona/control"
	daytonatoolbox "github.com/cove-sh/cove/internal/doors/dialect/daytona/toolbox"
	e2bcontrol "github.com/cove-sh/cove/internal/doors/dialect/e2b/control"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	hopxdoor "github.com/cove-sh/cove/internal/doors/dialect/hopx/door"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud"
	superserve "github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
	"github.com/cove-sh/cove/sandbox"
)

// sdkRoutes are all routes of a door that lie below a prefix.
type sdkRoutes struct {
	prefix string
	routes []string
	// open are routes without a key.
	open []string
	// reads are routes that a key which may only read is served, though they are no GET.
	reads []string
	// sandbox is the id of a sandbox as the door's clients have it.
	sandbox func(id string) string
}

func routesOf(t *testing.T, h any) []string {
	t.Helper()
	r, ok := h.(interface{ Routes() []string })
	if !ok {
		t.Fatalf("%T does not tell its routes", h)
	}
	return r.Routes()
}

// allSDKRoutes are those of all doors for SDKs; ours is a sandbox, for the routes below one.
func allSDKRoutes(t *testing.T, ours string) map[string]sdkRoutes {
	t.Helper()
	unbound := func(h http.Handler) http.Handler { return h }
	same := func(id string) string { return id }
	ssControl, ssData := superserve.New(superserve.Config{Bound: unbound}).Routes()
	hopxControl, hopxAgent := hopx.Routes()
	return map[string]sdkRoutes{
		"e2b": {
			prefix: "/e2b", routes: routesOf(t, e2bcontrol.New(e2bcontrol.Config{})), sandbox: func(id string) string { return strings.Replace(id, "-", "", 1) },
			// They change nothing of a sandbox that lives long enough.
			reads: []string{"POST /v2/sandboxes/*/connect", "POST /sandboxes/*/connect", "POST /sandboxes/*/refreshes"},
		},
		"superserve":      {prefix: superserve.Prefix, routes: ssControl, sandbox: same, reads: []string{"POST /sandboxes/*/activate"}}, // of one that runs
		"superserve data": {prefix: superserve.Prefix + "/boxd-" + ours, routes: ssData, sandbox: same, open: []string{"GET /health"}},
		"microsandbox":    {prefix: cloud.Prefix, routes: cloud.New(cloud.Config{Bound: unbound}).Routes(), sandbox: same},
		"hopx":            {prefix: hopxdoor.Prefix, routes: hopxControl, sandbox: same, open: []string{"GET /health"}, reads: []string{"POST /v1/sandboxes/{}/token/refresh"}},
		"hopx agent":      {prefix: hopxdoor.Prefix + "/vm/" + ours, routes: append(hopxAgent, hopxdoor.Streams()...), sandbox: same, reads: []string{"PATCH /env", "POST /cache/clear"}}, // of nothing
		"daytona": {
			prefix: daytona.Prefix + daytona.ControlPath, routes: routesOf(t, daytonacontrol.New(daytonacontrol.Config{})), sandbox: same,
			open: []string{"GET /health", "GET /config", "/socket.io/"}, reads: []string{"POST /sandbox/{sandbox}/last-activity"},
		},
		"daytona toolbox": {prefix: daytona.Prefix + "/toolbox/" + ours, routes: routesOf(t, daytonatoolbox.New(daytonatoolbox.Config{})), sandbox: same},
	}
}

// wildcard is a part of a pattern that any text matches; the first is the sandbox where a
// pattern is about one.
var wildcard = regexp.MustCompile(`\*|\{[^}]*\}`)

func fill(pattern, first string) string {
	n := 0
	return wildcard.ReplaceAllStringFunc(pattern, func(string) string {
		if n++; n == 1 {
			return first
		}
		return "5"
	})
}

// Attack: every route of every door for an SDK, without a key, with that of another team,
// and with one that may only read. The names of a team's things are
// told to no other, and what it has is as it was.
func TestSDKRoutes(t *testing.T) {
	r, clients := sdkServer(t, nil, asE2B, "red", "blue")
	red, blue := clients[0], clients[1]
	reader := sdkKey(t, r, "red", sandbox.ScopeSandboxesRead)
	theirs := red.create(hostTemplate + `,"metadata":{"whose":"reds-own"}}`)
	id := strings.Replace(theirs.SandboxID, "sbx", "sbx-", 1)
	if a := red.api("POST", "/volumes", `{"name":"reds-volume"}`); a.status != http.StatusCreated {
		t.Fatalf("a volume: %d %s", a.status, a.text)
	}
	state := func() any {
		t.Helper()
		c := sdkKey(t, r, "red")
		var boxes []e2bSandbox
		all := c.send("GET", "/e2b/v2/sandboxes", "", "X-API-KEY", c.key)
		all.decode(t, &boxes)
		volumes := c.send("GET", "/e2b/volumes", "", "X-API-KEY", c.key)
		return []any{boxes, volumes.text}
	}
	before := state()
	for name, door := range allSDKRoutes(t, id) {
		for _, route := range door.routes {
			method, pattern, ok := strings.Cut(route, " ")
			if !ok {
				method, pattern = http.MethodGet, route
			}
			path := door.prefix + fill(pattern, door.sandbox(id))
			body := ""
			if method != http.MethodGet && method != http.MethodDelete {
				body = "{}"
			}
			if !slices.Contains(door.open, route) {
				if a := red.send(method, path, body); a.status != http.StatusUnauthorized {
					t.Errorf("%s: %s without a key: %d %.200s", name, route, a.status, a.text)
				}
			}
			a := blue.send(method, path, body, "Authorization", "Bearer "+blue.plain)
			if strings.Contains(a.text, "reds-") || wildcard.MatchString(pattern) && strings.Contains(a.text, theirs.EnvdAccessToken) {
				t.Errorf("%s: %s tells another team: %d %.200s", name, route, a.status, a.text)
			}
			if a.status < 400 && strings.Contains(path, door.sandbox(id)) && strings.Contains(pattern, "sandbox") {
				t.Errorf("%s: %s serves another team: %d %.200s", name, route, a.status, a.text)
			}
			if method == http.MethodGet || slices.Contains(door.reads, route) {
				continue
			}
			if a := reader.send(method, path, body, "Authorization", "Bearer "+reader.key); a.status < 400 {
				t.Errorf("%s: %s with a key that may only read: %d %.200s", name, route, a.status, a.text)
			}
		}
	}
	if after := state(); !reflect.DeepEqual(before, after) {
		t.Errorf("it was\n%v\nand is\n%v", before, after)
	}
}

// A field that a door does not know, of an SDK to come, is refused by its name in every
// request that makes something, and never dropped.
func TestSDKFieldsToCome(t *testing.T) {
	_, clients := sdkServer(t, nil, asE2B, "red")
	red := clients[0]
	for route, body := range map[string]string{
		"/e2b/v2/sandboxes": `{"templateID":"host"`, "/e2b/sandboxes": `{"templateID":"host"`, "/e2b/v3/templates": `{"name":"x"`, "/e2b/volumes": `{"name":"x"`,
		superserve.Prefix + "/sandboxes": `{"name":"x"`, superserve.Prefix + "/templates": `{"name":"x","build_spec":{"from":"a"}`, superserve.Prefix + "/secrets": `{"name":"s","value":"v","provider":"openai"`,
		hopxdoor.Prefix + "/v1/sandboxes": `{"template_id":"host"`, hopxdoor.Prefix + "/v1/templates/build": `{"name":"x","from_image":"a"`,
		daytona.Prefix + daytona.ControlPath + "/sandbox": `{"snapshot":"host"`, daytona.Prefix + daytona.ControlPath + "/snapshots": `{"name":"x"`, daytona.Prefix + daytona.ControlPath + "/volumes": `{"name":"x"`,
		cloud.Prefix + "/v1/sandboxes": `{"name":"x","image":{"type":"oci","reference":"microsandbox/python"}`, cloud.Prefix + "/v1/volumes": `{"name":"x"`,
	} {
		a := red.send(http.MethodPost, route, body+`,"fieldToCome":"x"}`, "Authorization", "Bearer "+red.plain)
		if a.status != http.StatusBadRequest || !strings.Contains(a.text, "fieldToCome") {
			t.Errorf("POST %s: %d %.300s", route, a.status, a.text)
		}
	}
}
