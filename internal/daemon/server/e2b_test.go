package server_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// e2bClient asks the door of E2B of a daemon.
type e2bClient struct {
	sdkClient
	plain string // the key as Cove writes it
}

func asE2B(c sdkClient) *e2bClient {
	plain := c.key
	c.key = access.FormatKey(c.key)
	return &e2bClient{c, plain}
}

// api calls the control plane with the client's key.
func (c *e2bClient) api(method, path, body string) sdkAnswer {
	c.t.Helper()
	return c.send(method, "/e2b"+path, body, "X-API-KEY", c.key)
}

type e2bSandbox struct {
	SandboxID, EnvdAccessToken, TrafficAccessToken, State string
	EndAt                                                 string
	Metadata                                              map[string]string
}

func (c *e2bClient) create(body string) e2bSandbox {
	c.t.Helper()
	a := c.api("POST", "/v2/sandboxes", body)
	if a.status != http.StatusCreated {
		c.t.Fatalf("create: %d %s", a.status, a.text)
	}
	var s e2bSandbox
	a.decode(c.t, &s)
	return s
}

func e2bServer(t *testing.T, teams ...string) (*running, []*e2bClient) {
	t.Helper()
	return sdkServer(t, nil, asE2B, teams...)
}

const hostTemplate = `{"templateID":"host","timeout":600`

// The life of a sandbox, in the product's words and statuses.
func TestE2BLife(t *testing.T) {
	_, clients := e2bServer(t, "red")
	c := clients[0]
	s := c.create(hostTemplate + `,"metadata":{"a b":"c/d"},"fieldToCome":null}`)
	at := "/sandboxes/" + s.SandboxID
	filter := "?metadata=" + url.QueryEscape(url.QueryEscape("a%20b")+"="+url.QueryEscape("c%2Fd"))
	for _, step := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", at, "", 200, `"state":"running"`},
		{"GET", "/v2/sandboxes" + filter, "", 200, s.SandboxID},
		{"GET", "/v2/sandboxes?metadata=a%3Dx", "", 200, "[]"},
		{"GET", "/sandboxes", "", 200, s.SandboxID},
		{"POST", at + "/timeout", `{"timeout":60}`, 204, ""},
		{"POST", at + "/timeout", `{}`, 400, "timeout"},
		{"POST", at + "/refreshes", `{"duration":3600}`, 204, ""},
		{"POST", at + "/refreshes", `{"duration":3601}`, 400, "duration"},
		{"POST", "/v2" + at + "/connect", "", 200, s.EnvdAccessToken},
		{"POST", at + "/connect", `{"timeout":0}`, 400, "Timeout must be greater than 0"},
		{"POST", at + "/resume", `{}`, 409, "already running"},
		{"PUT", at + "/network", `{"allowOut":["example.com"]}`, 400, "ALL_TRAFFIC"},
		{"PUT", at + "/network", `{"denyOut":["example.com"]}`, 400, "invalid denied CIDR"},
		{"PUT", at + "/network", `{"rules":{"x":[]}}`, 400, "rules"},
		{"POST", at + "/pause", `{"memory":false}`, 400, "memory"},
		{"GET", "/v2" + at + "/logs", "", 200, "sandbox.create"},
		{"GET", at + "/metrics", "", 200, "["},
		{"POST", at + "/fork", `{"count":0}`, 400, "count"},
		{"GET", "/templates/aliases/no-such", "", 404, "no-such"},
		{"POST", "/api-keys", "{}", 404, "POST /api-keys"},
		{"POST", "/v3/templates", "{}", 400, "Name is required"},
		{"POST", "/v3/templates", `{"name":"other/x"}`, 404, "other/x"},
		{"POST", "/v3/templates", `{"name":"x","color":"red"}`, 400, "color"},
		{"POST", "/v2/templates/x/builds/unknown", `{"fromImage":"a"}`, 404, "unknown"},
		{"GET", "/templates/x/builds/unknown/status", "", 404, "unknown"},
		{"POST", "/templates/tags", `{"target":"host","tags":["default"]}`, 400, "default"},
		{"POST", "/templates/tags", `{"target":"none","tags":["a"]}`, 404, "none"},
		{"DELETE", "/templates/tags", `{"name":"host:a","tags":["a"]}`, 400, "host:a"},
		{"GET", "/templates/none/tags", "", 404, "none"},
		{"PUT", at, "{}", 405, "GET, DELETE"},
		{"GET", "/sandboxes/..%2F..%2Fv1%2Fkeys", "", 400, "Invalid sandbox ID"},
		{"GET", "/sandboxes/%2e%2e/v2", "", 404, "does not serve"},
		{"GET", "//v1/keys", "", 404, "does not serve"},
		{"DELETE", at, "", 204, ""},
		{"DELETE", at, "", 404, "doesn't exist"},
		{"GET", at, "", 404, "doesn't exist"},
	} {
		a := c.api(step.method, step.path, step.body)
		if a.status != step.status || !strings.Contains(a.text, step.says) {
			t.Errorf("%s %s %s: %d %s, want %d that says %q", step.method, step.path, step.body, a.status, a.text, step.status, step.says)
		}
		if a.status < 400 {
			continue
		}
		var f struct {
			Code    int
			Message string
		}
		if a.decode(t, &f); f.Code != a.status || f.Message == "" {
			t.Errorf("%s %s: the error is %s", step.method, step.path, a.text)
		}
	}
}

// What would have no effect is refused by its name.
func TestE2BRefusesFields(t *testing.T) {
	_, clients := e2bServer(t, "red")
	for field, body := range map[string]string{
		"mcp": `"mcp":{"x":{}}`, "iam.tokens": `"iam":{"tokens":{"a":{}}}`, "autoPauseMemory": `"autoPause":true,"autoPauseMemory":false`,
		"network.rules": `"network":{"rules":{"a":[]}}`, "network.egressProxy": `"network":{"egressProxy":{"address":"a:1"}}`,
		"network.maskRequestHost": `"network":{"maskRequestHost":"a"}`, "network.httpsPorts": `"network":{"httpsPorts":[1]}`,
		"metadata": `"metadata":{"cove.e2b.ports":"local"}`, "templateID": `"templateID":""`,
		"fieldToCome": `"fieldToCome":1`, "domains": `"network":{"domains":["x"]}`, "strict": `"autoResume":{"enabled":true,"strict":true}`, "subpath": `"volumeMounts":[{"name":"v","path":"/v","subpath":"a"}]`,
	} {
		a := clients[0].api("POST", "/v2/sandboxes", hostTemplate[:len(hostTemplate)-len(`,"timeout":600`)]+","+body+"}")
		if field == "templateID" {
			a = clients[0].api("POST", "/v2/sandboxes", "{}")
		}
		if a.status != http.StatusBadRequest || !strings.Contains(a.text, field) {
			t.Errorf("%s: %d %s", field, a.status, a.text)
		}
	}
}

// A list goes on where a page ended, and a token is good for its order only.
func TestE2BPages(t *testing.T) {
	_, clients := e2bServer(t, "red")
	c := clients[0]
	var made []string
	for range 3 {
		made = append(made, c.create(hostTemplate+"}").SandboxID)
	}
	for _, order := range []string{"asc", "desc"} {
		var seen []string
		token := ""
		for range 4 {
			a := c.api("GET", "/v2/sandboxes?limit=1&order="+order+"&nextToken="+token, "")
			var page []e2bSandbox
			a.decode(t, &page)
			for _, s := range page {
				seen = append(seen, s.SandboxID)
			}
			if token = a.header.Get("X-Next-Token"); token == "" {
				break
			}
			other := map[string]string{"asc": "desc", "desc": "asc"}[order]
			if a := c.api("GET", "/v2/sandboxes?order="+other+"&nextToken="+token, ""); a.status != 400 || !strings.Contains(a.text, "Invalid next token") {
				t.Errorf("a token of the other order: %d %s", a.status, a.text)
			}
		}
		if len(seen) != len(made) || (seen[0] == made[0]) != (order == "asc") {
			t.Errorf("%s: saw %v of %v", order, seen, made)
		}
	}
}

// e2bSignature signs a link to a file as clients do.
func e2bSignature(path, operation, token string) string {
	sum := sha256.Sum256([]byte(path + ":" + operation + "::" + token))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// Attack: tokens that are forged, of another sandbox, of another team, of another
// purpose, or of a key that was revoked.
func TestE2BTokens(t *testing.T) {
	r, clients := e2bServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, second, theirs := red.create(hostTemplate+"}"), red.create(hostTemplate+"}"), blue.create(hostTemplate+"}")
	ask := func(id, token string) int {
		return red.send("GET", "/files?path=/etc/hostname", "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token).status
	}
	if got := ask(ours.SandboxID, ours.EnvdAccessToken); got == 401 {
		t.Errorf("the sandbox's own token: %d", got)
	}
	flipped := []byte(ours.EnvdAccessToken)
	flipped[len(flipped)-1] ^= 1
	for name, token := range map[string]string{
		"none": "", "of another sandbox": second.EnvdAccessToken, "of another team's": theirs.EnvdAccessToken,
		"for traffic": ours.TrafficAccessToken, "forged": string(flipped), "cut": ours.EnvdAccessToken[:len(ours.EnvdAccessToken)-2],
		"of the user who runs the daemon": "cst_local_" + strings.Repeat("0", 64), "the API key": red.key, "long": strings.Repeat("a", 1000),
	} {
		if got := ask(ours.SandboxID, token); got != 401 {
			t.Errorf("a token %s: %d", name, got)
		}
	}
	if got := ask(theirs.SandboxID, ours.EnvdAccessToken); got != 401 {
		t.Errorf("the token at another team's sandbox: %d", got)
	}
	for name, link := range map[string]string{
		"for another operation": "/files?path=/a&signature=" + url.QueryEscape(e2bSignature("/a", "write", ours.EnvdAccessToken)),
		"for another path":      "/files?path=/b&signature=" + url.QueryEscape(e2bSignature("/a", "read", ours.EnvdAccessToken)),
		"with two paths":        "/files?path=/a&path=/b&signature=" + url.QueryEscape(e2bSignature("/a", "read", ours.EnvdAccessToken)),
		"expired":               "/files?path=/a&signature_expiration=1&signature=v1_x",
		"empty":                 "/files?path=/a&signature=",
	} {
		if a := red.send("GET", link, ""); a.status != 401 {
			t.Errorf("a link %s: %d %s", name, a.status, a.text)
		}
	}
	good := "/files?path=/etc/hostname&signature=" + url.QueryEscape(e2bSignature("/etc/hostname", "read", ours.EnvdAccessToken))
	if a := red.send("GET", good, ""); a.status == 401 {
		t.Errorf("a signed link: %d %s", a.status, a.text)
	}
	revokeKeys(t, r, "red")
	if got := ask(ours.SandboxID, ours.EnvdAccessToken); got != 401 {
		t.Errorf("the token of a revoked key: %d", got)
	}
	if a := red.send("GET", good, ""); a.status != 401 {
		t.Errorf("a link signed with it: %d", a.status)
	}
}

// Attack: headers and host name that lead to different sandboxes; half of the
// headers; a sandbox of another team on every route of one sandbox.
func TestE2BOtherSandboxes(t *testing.T) {
	_, clients := e2bServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, theirs := red.create(hostTemplate+"}"), blue.create(hostTemplate+"}")
	host := fmt.Sprintf("49983-%s.localhost", ours.SandboxID)
	for name, headers := range map[string][]string{
		"another sandbox":  {"Host", host, "E2b-Sandbox-Id", theirs.SandboxID, "E2b-Sandbox-Port", "49983"},
		"another port":     {"Host", host, "E2b-Sandbox-Id", ours.SandboxID, "E2b-Sandbox-Port", "49999"},
		"the sandbox only": {"E2b-Sandbox-Id", ours.SandboxID},
		"the port only":    {"E2b-Sandbox-Port", "49983"},
		"two sandboxes":    {"E2b-Sandbox-Id", ours.SandboxID, "E2b-Sandbox-Id", theirs.SandboxID, "E2b-Sandbox-Port", "49983"},
		"the API's host":   {"Host", "api.localhost", "E2b-Sandbox-Id", ours.SandboxID, "E2b-Sandbox-Port", "49983"},
	} {
		if a := red.send("GET", "/health", "", append(headers, "X-Access-Token", ours.EnvdAccessToken)...); a.status != 400 || !strings.HasPrefix(a.text, "Invalid ") {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	if a := red.send("GET", "/health", "", "Host", host); a.status != 204 {
		t.Errorf("by host name: %d %s", a.status, a.text)
	}
	if a := red.send("GET", "/sandboxes", "", "Host", "api.localhost", "X-API-KEY", red.key); a.status != 200 || strings.Contains(a.text, theirs.SandboxID) {
		t.Errorf("the API by host name: %d %s", a.status, a.text)
	}
	unknown := "sbx" + strings.Repeat("a", len(theirs.SandboxID)-3)
	for _, route := range []string{
		"GET ", "DELETE ", "POST /connect", "POST /resume", "POST /pause", "POST /timeout", "POST /refreshes", "PUT /network",
		"POST /fork", "POST /snapshots", "GET /metrics", "GET /logs",
	} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"POST /connect": `{"timeout":60}`, "POST /resume": `{"timeout":60}`, "POST /timeout": `{"timeout":60}`, "POST /fork": `{"timeout":60}`, "POST /refreshes": `{"duration":60}`, "PUT /network": "{}"}[route]
		foreign := red.api(method, "/sandboxes/"+theirs.SandboxID+path, body)
		absent := red.api(method, "/sandboxes/"+unknown+path, body)
		if foreign.status != 404 || absent.status != 404 || strings.ReplaceAll(foreign.text, theirs.SandboxID, unknown) != absent.text {
			t.Errorf("%s: foreign %d %s, unknown %d %s", route, foreign.status, foreign.text, absent.status, absent.text)
		}
		if a := red.send(method, "/e2b/sandboxes/"+ours.SandboxID+path, body); a.status != 401 {
			t.Errorf("%s without a key: %d %s", route, a.status, a.text)
		}
	}
}

// A key without the scope to change sandboxes changes none, by no plane.
func TestE2BScopes(t *testing.T) {
	r, clients := e2bServer(t, "red")
	ours := clients[0].create(hostTemplate + "}")
	reader := asE2B(sdkKey(t, r, "red", sandbox.ScopeSandboxesRead))
	for _, route := range []string{"DELETE /sandboxes/ID", "POST /sandboxes/ID/pause", "POST /sandboxes/ID/fork", "POST /sandboxes/ID/snapshots", "PUT /sandboxes/ID/network", "POST /v2/sandboxes", "POST /volumes", "DELETE /templates/host", "POST /v3/templates", "POST /templates/tags", "GET /templates/x/files/hash"} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"/v2/sandboxes": `{"templateID":"host"}`, "/volumes": `{"name":"v"}`, "/sandboxes/ID/network": "{}", "/v3/templates": `{"name":"x"}`, "/templates/tags": `{"target":"host","tags":["a"]}`}[path]
		if a := reader.api(method, strings.ReplaceAll(path, "ID", ours.SandboxID), body); a.status != 403 {
			t.Errorf("%s: %d %s", route, a.status, a.text)
		}
	}
	a := reader.api("GET", "/sandboxes/"+ours.SandboxID, "")
	var seen e2bSandbox
	a.decode(t, &seen)
	if seen.EnvdAccessToken == ours.EnvdAccessToken {
		t.Error("two keys have the same token")
	}
}

func TestE2BPorts(t *testing.T) {
	r, clients := e2bServer(t, sandbox.LocalCaller().Team)
	c := clients[0]
	testPorts(t, r, func() string {
		return strings.Replace(c.create(hostTemplate+"}").SandboxID, "sbx", "sbx-", 1)
	}, func(id, port string) sdkAnswer {
		return c.send("GET", "/", "", "E2b-Sandbox-Id", access.ToE2B(id), "E2b-Sandbox-Port", port)
	})
}

// Attack: the content of a volume with no token, with that of another volume, of another
// team, for another purpose, of a sandbox, or of a key that was revoked; and with the API
// key. A token of a volume opens nothing else.
func TestE2BVolumeTokens(t *testing.T) {
	r, clients := e2bServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	type volume struct{ VolumeID, Token string }
	create := func(c *e2bClient, name string) (v volume) {
		t.Helper()
		c.api("POST", "/volumes", `{"name":"`+name+`"}`).decode(t, &v)
		return v
	}
	ours, second, theirs := create(red, "one"), create(red, "two"), create(blue, "three")
	box := red.create(hostTemplate + "}")
	ask := func(id, token string) sdkAnswer {
		return red.send("GET", "/e2b/volumecontent/"+id+"/path?path=/", "", "Authorization", "Bearer "+token)
	}
	if a := ask(ours.VolumeID, ours.Token); a.status == http.StatusUnauthorized {
		t.Errorf("the volume's own token: %d %s", a.status, a.text)
	}
	flipped := []byte(ours.Token)
	flipped[len(flipped)-1] ^= 1
	for name, token := range map[string]string{
		"of another volume": second.Token, "of another team": theirs.Token, "of a sandbox": box.EnvdAccessToken, "forged": string(flipped), "the API key": red.plain,
		"none": "none", "of the user who runs the daemon": "cst_local_" + strings.Repeat("0", 64),
	} {
		if a := ask(ours.VolumeID, token); a.status != http.StatusUnauthorized {
			t.Errorf("a token %s: %d %s", name, a.status, a.text)
		}
	}
	if a := ask(theirs.VolumeID, ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("another team's volume: %d %s", a.status, a.text)
	}
	if a := red.send("GET", "/e2b/sandboxes", "", "Authorization", "Bearer "+ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("the API with it: %d %s", a.status, a.text)
	}
	for _, path := range []string{
		"/e2b/volumecontent/" + ours.VolumeID + "/../" + theirs.VolumeID + "/path?path=/", "/e2b/volumecontent/" + ours.VolumeID + "%2F..%2F" + theirs.VolumeID + "/path?path=/",
		"/e2b/volumecontent/" + ours.VolumeID + "/path?path=/&path=/a", "/e2b/volumecontent/" + ours.VolumeID + "/path?path=a%00b", "/e2b/volumecontent/" + ours.VolumeID + "/path", "/e2b/volumecontent/" + ours.VolumeID,
		"/e2b/volumecontent/" + ours.VolumeID + "/dir?path=/&color=red", "/e2b/volumecontent/", "/e2b/volumecontent//path?path=/",
	} {
		if a := red.send("GET", path, "", "Authorization", "Bearer "+ours.Token); a.status < 400 || a.status >= 500 {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	revokeKeys(t, r, "red")
	if a := ask(ours.VolumeID, ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("the token of a revoked key: %d %s", a.status, a.text)
	}
}

// A build is announced, and told of to its own team only.
func TestE2BBuilds(t *testing.T) {
	_, clients := e2bServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	var made struct{ TemplateID, BuildID string }
	red.api("POST", "/v3/templates", `{"name":"Mine:v1","tags":["v2"],"cpuCount":1,"memoryMB":512}`).decode(t, &made)
	if made.TemplateID != "mine" || made.BuildID == "" {
		t.Fatalf("announced: %+v", made)
	}
	at := "/templates/mine/builds/" + made.BuildID
	for _, step := range []struct {
		c                  *e2bClient
		method, path, body string
		status             int
		says               string
	}{
		{red, "GET", at + "/status", "", 200, `"status":"waiting"`},
		{blue, "GET", at + "/status", "", 404, "not found"},
		{blue, "POST", "/v2" + at, `{"fromImage":"registry.invalid/x:1"}`, 404, "not found"},
		{red, "POST", "/v2/templates/other/builds/" + made.BuildID, `{"fromImage":"registry.invalid/x:1"}`, 404, "not found"},
		{red, "POST", "/v2" + at, `{"fromImage":"registry.invalid/x:1","steps":[{"type":"RUN","args":["x"],"when":"now"}]}`, 400, "when"},
		{red, "POST", "/v2" + at, `{"fromImage":"registry.invalid/x:1","steps":[{"type":"CMD","args":["x"]}]}`, 400, "step 1"},
		{red, "POST", "/v2" + at, `{"fromImage":"registry.invalid/x:1","steps":[{"type":"RUN","args":["x"],"force":false}],"startCmd":null}`, 501, "cannot have steps"}, // by the engine of these tests
		{red, "GET", at + "/status?logsOffset=x", "", 400, "logsOffset"},
		{red, "GET", at + "/status?level=error", "", 400, "level"},
		{red, "GET", at + "/status?logsOffset=0&limit=100", "", 200, `"status":"waiting"`},
		{red, "GET", "/templates/..%2F..%2Fx/files/hash", "", 404, "not found"}, // the namespace of no team
		{red, "GET", "/templates/..%2Fx/files/hash", "", 404, "not found"},
		{red, "GET", "/templates/..x/files/hash", "", 400, "Invalid name"},
	} {
		if a := step.c.api(step.method, step.path, step.body); a.status != step.status || !strings.Contains(a.text, step.says) {
			t.Errorf("%s %s %s: %d %s, want %d that says %q", step.method, step.path, step.body, a.status, a.text, step.status, step.says)
		}
	}
	for range 200 { // the oldest is forgotten, not the server's memory used up
		red.api("POST", "/v3/templates", `{"name":"many"}`)
	}
	if a := red.api("GET", at+"/status", ""); a.status != 404 {
		t.Errorf("after many others: %d %s", a.status, a.text)
	}
}
