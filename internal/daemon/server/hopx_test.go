package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

// hopxClient asks the door of HOPX of a daemon.
type hopxClient struct{ sdkClient }

// api calls the control plane with the client's key.
func (c *hopxClient) api(method, path, body string) sdkAnswer {
	c.t.Helper()
	return c.send(method, "/hopx"+path, body, "X-API-Key", c.key)
}

// agent calls the agent of a sandbox with a token.
func (c *hopxClient) agent(s hopxSandbox, token, method, path, body string, headers ...string) sdkAnswer {
	c.t.Helper()
	if token != "" {
		headers = append(headers, "Authorization", "Bearer "+token)
	}
	return c.send(method, "/hopx/vm/"+s.ID+path, body, headers...)
}

type hopxSandbox struct {
	ID         string
	Status     string
	Token      string `json:"auth_token"`
	PublicHost string `json:"public_host"`
	Region     string
}

func (c *hopxClient) create() hopxSandbox {
	c.t.Helper()
	a := c.api("POST", "/v1/sandboxes", `{"template_id":"host","timeout_seconds":600,"region":"x"}`)
	if a.status != http.StatusCreated {
		c.t.Fatalf("create: %d %s", a.status, a.text)
	}
	var s hopxSandbox
	a.decode(c.t, &s)
	if s.PublicHost != "http://"+c.tcp+"/hopx/vm/"+s.ID || s.Token == "" {
		c.t.Fatalf("created: %s", a.text)
	}
	return s
}

func asHOPX(c sdkClient) *hopxClient { return &hopxClient{c} }

func hopxServer(t *testing.T, change func(*config.Config), teams ...string) (*running, []*hopxClient) {
	t.Helper()
	return sdkServer(t, change, asHOPX, teams...)
}

// Both planes in the product's words and statuses, and what is refused.
func TestHOPXRoutes(t *testing.T) {
	_, clients := hopxServer(t, nil, "red")
	c := clients[0]
	s := c.create()
	at := "/v1/sandboxes/" + s.ID
	type step struct {
		method, path, body string
		status             int
		says               string
	}
	check := func(a sdkAnswer, step step) {
		t.Helper()
		if a.status != step.status || !strings.Contains(a.text, step.says) {
			t.Errorf("%s %s %.80s: %d %s, want %d that says %q", step.method, step.path, step.body, a.status, a.text, step.status, step.says)
		}
		var f struct {
			Message, Code string
			Request       string `json:"request_id"`
		}
		if a.header.Get("X-Request-Id") == "" || a.status >= 400 && (json.Unmarshal([]byte(a.text), &f) != nil || f.Message == "" || f.Code == "" || f.Request != a.header.Get("X-Request-Id")) {
			t.Errorf("%s %s: the answer is %v %s", step.method, step.path, a.header, a.text)
		}
	}
	for _, step := range []step{
		{"GET", "/health", "", 200, "healthy"},
		{"GET", at, "", 200, `"status":"running"`},
		{"GET", "/v1/sandboxes?region=x", "", 200, s.ID},
		{"GET", "/v1/sandboxes?region=y", "", 200, `"data":[]`},
		{"GET", "/v1/sandboxes?status=odd", "", 400, "status"},
		{"PUT", at + "/timeout", `{"timeout_seconds":60}`, 200, `"timeout_seconds":60`},
		{"PUT", at + "/timeout", `{"timeout_seconds":0}`, 400, "timeout_seconds"},
		{"PUT", at + "/timeout", "", 400, "no body"},
		{"PUT", at + "/timeout", `{"timeout_seconds":60} {}`, 400, "not JSON"},
		{"PUT", at + "/timeout", `{"timeout_seconds":60,"timeout_seconds":61}`, 400, "timeout_seconds"},
		{"PUT", at + "/timeout", `{"timeout_seconds":60,"grace":1}`, 400, "grace"},
		{"POST", "/v1/sandboxes", `{"template_id":"host","gpu":1}`, 400, "gpu"},
		{"POST", "/v1/sandboxes", `{"template_name":"no-such"}`, 404, "does not exist"},
		{"POST", "/v1/sandboxes", strings.Repeat(" ", 5<<20), 413, "bytes"},
		{"POST", at + "/token/refresh", "", 200, s.Token},
		{"GET", "/v1/regions", "", 404, "GET /v1/regions"},
		{"PATCH", at, "{}", 405, "GET or DELETE"},
		{"GET", "/v1/sandboxes/..%2F..%2Fv1%2Fkeys", "", 404, ""},
		{"GET", "/v1/sandboxes/%2e%2e", "", 400, "path"},
		{"GET", "//v1/keys", "", 404, "does not serve"},
		{"GET", "/vm/sbx-none/env", "", 404, "does not serve"},
	} {
		check(c.api(step.method, step.path, step.body), step)
	}
	for _, step := range []step{
		{"GET", "/", "", 200, "agent"},
		{"GET", "/jupyter/sessions", "", 200, "sessions"},
		{"GET", "/update/backups", "", 404, "GET /update/backups"},
		{"POST", "/update/apply", "", 404, "POST /update/apply"},
		{"GET", "/terminal", "", 400, "upgrade"},
		{"DELETE", "/execute", "", 405, "POST"},
		{"POST", "/execute", `{"code":"1","sandbox_id":"` + s.ID + `"}`, 400, "sandbox_id"},
		{"POST", "/execute", `{"code":"1","vm_url":"http://x"}`, 400, "vm_url"},
		{"POST", "/execute", `{"code":"1","priority":9}`, 400, "priority"},
		{"POST", "/execute", `{"code":"1","timeout":301}`, 400, "POST /execute/background"},
		{"POST", "/execute", `{"code":"1","language":"cobol"}`, 400, "cobol"},
		{"POST", "/execute/async", `{"code":"1"}`, 400, "callback_url"},
		{"POST", "/commands/run", `{"command":""}`, 400, "command"},
		{"POST", "/files/write", `{"path":"/etc/passwd","content":"x"}`, 403, "PATH_NOT_ALLOWED"},
		{"POST", "/files/write", `{"path":"/tmp/x","content":"!","encoding":"base64"}`, 400, "base64"},
		{"POST", "/files/write", `{"path":"/tmp/x","content":"x","encoding":"rot13"}`, 400, "rot13"},
		{"GET", "/files/read?path=/workspace/../etc/shadow", "", 403, "PATH_NOT_ALLOWED"},
		{"GET", "/files/download?path=/etc/shadow", "", 403, "PATH_NOT_ALLOWED"},
		{"GET", "/files/download?path=/tmp/a&path=/etc/shadow", "", 400, "more than one path"},
		{"GET", "/files/read?path=/tmp/no-such", "", 404, "FILE_NOT_FOUND"},
		{"POST", "/files/upload", "x", 400, "multipart"},
		{"PUT", "/env", `{"env_vars":{},"merge":true}`, 400, "merge"},
		{"POST", "/execute/kill/..%2Fx", "", 404, "PROCESS_NOT_FOUND"},
		{"GET", "/desktop/screenshot", "", 400, "DESKTOP_NOT_AVAILABLE"},
		{"POST", "/desktop/x11/ocr", "{}", 400, "DESKTOP_NOT_AVAILABLE"},
	} {
		check(c.agent(s, s.Token, step.method, step.path, step.body), step)
	}
	for _, step := range []step{
		{"POST", at + "/pause", "", 400, "not_supported"}, // without gVisor
		{"POST", at + "/resume", "", 200, "running"},
		{"DELETE", at, "", 200, "deleted"},
		{"DELETE", at, "", 404, "sandbox not found"},
		{"GET", at, "", 404, "sandbox not found"},
	} {
		check(c.api(step.method, step.path, step.body), step)
	}
}

// Attack: tokens that are forged, of another sandbox, of another team, of E2B's door, or
// of a key that was revoked; and headers that say two things.
func TestHOPXTokens(t *testing.T) {
	r, clients := hopxServer(t, nil, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, second, theirs := red.create(), red.create(), blue.create()
	ask := func(s hopxSandbox, token string, headers ...string) int {
		return red.agent(s, token, "GET", "/files/exists?path=/tmp", "", headers...).status
	}
	if got := ask(ours, ours.Token); got != 200 {
		t.Errorf("the sandbox's own token: %d", got)
	}
	if got := ask(ours, "", "X-API-Key", red.key); got != 200 {
		t.Errorf("the API key: %d", got)
	}
	_, gate, _ := strings.Cut(ours.Token, ".")
	flipped := []byte(ours.Token)
	flipped[len(flipped)-1] ^= 1
	for name, token := range map[string]string{
		"none": "", "of another sandbox": second.Token, "of another team's": theirs.Token, "forged": string(flipped), "cut": ours.Token[:len(ours.Token)-2],
		"without its sandbox": gate, "with another sandbox": strings.Replace(second.Token, second.ID, ours.ID, 1), "long": ours.Token + strings.Repeat("0", 1000),
		"of the user who runs the daemon": "hopx_" + ours.ID + ".cst_local_" + strings.Repeat("0", 64),
	} {
		if got := ask(ours, token); got != 401 {
			t.Errorf("a token %s: %d", name, got)
		}
	}
	if got := ask(theirs, ours.Token); got != 401 {
		t.Errorf("the token at another team's sandbox: %d", got)
	}
	if got := ask(theirs, "", "X-API-Key", red.key); got != 404 {
		t.Errorf("the key at another team's sandbox: %d", got)
	}
	if got := ask(ours, ours.Token, "Authorization", "Bearer "+second.Token); got != 401 {
		t.Errorf("two tokens: %d", got)
	}
	if a := red.send("GET", "/hopx/v1/sandboxes", "", "Authorization", "Bearer "+ours.Token); a.status != 401 {
		t.Errorf("the token at the control plane: %d %s", a.status, a.text)
	}
	e2bToken := red.send("POST", "/e2b/v2/sandboxes/"+strings.Replace(ours.ID, "-", "", 1)+"/connect", "{}", "X-API-Key", red.key)
	var other e2bSandbox
	if e2bToken.decode(t, &other); other.EnvdAccessToken == "" || ask(ours, "hopx_"+ours.ID+"."+other.EnvdAccessToken) != 401 {
		t.Errorf("a token of E2B's door: %s", e2bToken.text)
	}
	for _, path := range []string{"", "/pause", "/resume", "/token/refresh", "/timeout"} {
		for _, method := range []string{"GET", "DELETE", "POST", "PUT"} {
			if a := red.api(method, "/v1/sandboxes/"+theirs.ID+path, `{"timeout_seconds":60}`); a.status != 404 && a.status != 405 {
				t.Errorf("%s %s of another team's sandbox: %d %s", method, path, a.status, a.text)
			}
		}
	}
	revokeKeys(t, r, "red")
	if got := ask(ours, ours.Token); got != 401 {
		t.Errorf("the token of a revoked key: %d", got)
	}
}

// A key without the scope to change sandboxes changes none, by either plane.
func TestHOPXScopes(t *testing.T) {
	r, clients := hopxServer(t, nil, "red")
	ours := clients[0].create()
	reader := asHOPX(sdkKey(t, r, "red", sandbox.ScopeSandboxesRead))
	for _, route := range []string{"DELETE /v1/sandboxes/ID", "POST /v1/sandboxes/ID/pause", "PUT /v1/sandboxes/ID/timeout", "POST /v1/sandboxes", "POST /v1/templates/build", "DELETE /v1/templates/other"} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"/v1/sandboxes": `{"template_id":"host"}`, "/v1/templates/build": `{"name":"x","from_image":"x","cpu":1,"memory":512,"diskGB":1,"steps":[{"type":"RUN","args":["true"]}]}`}[path]
		if body == "" {
			body = `{"timeout_seconds":60}`
		}
		if a := reader.api(method, strings.ReplaceAll(path, "ID", ours.ID), body); a.status != 403 {
			t.Errorf("%s: %d %s", route, a.status, a.text)
		}
	}
	var fresh struct {
		Token string `json:"auth_token"`
	}
	reader.api("POST", "/v1/sandboxes/"+ours.ID+"/token/refresh", "").decode(t, &fresh)
	for _, route := range []string{"POST /execute", "POST /commands/run", "POST /files/write", "DELETE /files/remove?path=/tmp/x", "PUT /env"} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"/execute": `{"code":"1"}`, "/commands/run": `{"command":"true"}`, "/files/write": `{"path":"/tmp/x","content":"x"}`, "/env": `{"env_vars":{}}`}[path]
		if a := reader.agent(ours, fresh.Token, method, path, body); a.status != 403 {
			t.Errorf("%s: %d %s", route, a.status, a.text)
		}
	}
}

// The product's names lead to the door where the operator says so, and nowhere else.
func TestHOPXNames(t *testing.T) {
	_, clients := hopxServer(t, func(cfg *config.Config) {
		cfg.Previews.Domain, cfg.AllowedHosts = "local.vms.hopx.dev", []string{"api.hopx.dev"}
	}, "red", "blue")
	c := clients[0]
	a := c.send("POST", "/v1/sandboxes", `{"template_id":"host"}`, "Host", "api.hopx.dev", "X-API-Key", c.key)
	var s hopxSandbox
	if a.decode(t, &s); a.status != 201 || !strings.HasPrefix(s.PublicHost, "http://7777-"+s.ID+".local.vms.hopx.dev") {
		t.Fatalf("created by name: %d %s", a.status, a.text)
	}
	host := "7777-" + s.ID + ".local.vms.hopx.dev"
	second := clients[1].send("POST", "/v1/sandboxes", `{"template_id":"host"}`, "Host", "api.hopx.dev", "X-API-Key", clients[1].key)
	var theirs hopxSandbox
	second.decode(t, &theirs)
	for name, c2 := range map[string]struct {
		host, path, token string
		status            int
	}{
		"its agent":          {host, "/files/exists?path=/tmp", s.Token, 200},
		"another's token":    {host, "/files/exists?path=/tmp", theirs.Token, 401},
		"a path to another":  {host, "/hopx/vm/" + theirs.ID + "/env", theirs.Token, 401},
		"its own, by a path": {host, "/hopx/vm/" + s.ID + "/env", s.Token, 404},
		"Cove's own API":     {"api.hopx.dev", "/v1/keys", "", 401},
		"no sandbox":         {"7777-sbx-none.local.vms.hopx.dev", "/env", s.Token, 404},
	} {
		headers := []string{"Host", c2.host}
		if c2.token != "" {
			headers = append(headers, "Authorization", "Bearer "+c2.token)
		}
		if a := c.send("GET", c2.path, "", headers...); a.status != c2.status {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.text, c2.status)
		}
	}
	_, plain := hopxServer(t, nil, "red")
	if a := plain[0].send("GET", "/v1/sandboxes", "", "Host", "api.hopx.dev", "X-API-Key", plain[0].key); a.status == 200 {
		t.Errorf("a server that was not told answers to the name: %s", a.text)
	}
}
