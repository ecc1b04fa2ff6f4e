package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// ssClient asks the door for Superserve's SDK of a daemon.
type ssClient struct{ sdkClient }

func (c *ssClient) api(method, path, body string) sdkAnswer {
	c.t.Helper()
	return c.send(method, "/superserve"+path, body, "X-API-Key", c.key)
}

type ssSandbox struct {
	ID    string `json:"id"`
	Token string `json:"access_token"`
}

func (c *ssClient) create() ssSandbox {
	c.t.Helper()
	a := c.api("POST", "/sandboxes", `{"name":"box"}`)
	if a.status != http.StatusCreated {
		c.t.Fatalf("create: %d %s", a.status, a.text)
	}
	var s ssSandbox
	a.decode(c.t, &s)
	return s
}

func asSuperserve(c sdkClient) *ssClient { return &ssClient{c} }

func ssServer(t *testing.T, teams ...string) (*running, []*ssClient) {
	t.Helper()
	return sdkServer(t, nil, asSuperserve, teams...)
}

// A sandbox's token opens the data plane of that sandbox until its key is revoked, by
// whatever name the sandbox is called, and nothing else.
func TestSuperserveTokens(t *testing.T) {
	r, clients := ssServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, second, theirs := red.create(), red.create(), blue.create()
	by := map[string]func(id, token string) sdkAnswer{
		"header": func(id, token string) sdkAnswer {
			return red.send("GET", "/superserve/files?path=/etc/hostname", "", "X-Superserve-Sandbox-Id", id, "X-Access-Token", token)
		},
		"path": func(id, token string) sdkAnswer {
			return red.send("GET", "/superserve/boxd-"+id+"/files?path=/etc/hostname", "", "X-Access-Token", token)
		},
		"host": func(id, token string) sdkAnswer {
			return red.send("GET", "/files?path=/etc/hostname", "", "Host", "boxd-"+id+".sandbox.superserve.ai", "X-Access-Token", token)
		},
		"shared host": func(id, token string) sdkAnswer {
			return red.send("GET", "/files?path=/etc/hostname", "", "Host", "sandbox.superserve.ai", "X-Superserve-Sandbox-Id", id, "X-Access-Token", token)
		},
		"subprotocol": func(id, token string) sdkAnswer {
			return red.send("GET", "/superserve/boxd-"+id+"/files?path=/etc/hostname", "", "Sec-WebSocket-Protocol", "superserve.exec.v1, token."+token)
		},
	}
	flipped := []byte(ours.Token)
	flipped[len(flipped)-1] ^= 1
	for way, ask := range by {
		if a := ask(ours.ID, ours.Token); a.status == http.StatusUnauthorized {
			t.Errorf("the sandbox's own token by %s: %d %s", way, a.status, a.text)
		}
		for name, token := range map[string]string{
			"none": "", "of another sandbox": second.Token, "of another team's": theirs.Token, "forged": string(flipped), "the API key": red.key,
			"of the user who runs the daemon": "cst_local_" + strings.Repeat("0", 64), "long": strings.Repeat("a", 1000),
		} {
			if a := ask(ours.ID, token); a.status != http.StatusUnauthorized || !strings.Contains(a.text, `"code":"auth_failed"`) {
				t.Errorf("a token %s by %s: %d %s", name, way, a.status, a.text)
			}
		}
	}
	if a := red.send("GET", "/superserve/sandboxes", "", "X-API-Key", ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("a token at the control plane: %d", a.status)
	}
	if a := red.send("GET", "/superserve/files?path=/a", "", "E2b-Sandbox-Id", strings.Replace(ours.ID, "-", "", 1), "E2b-Sandbox-Port", "49983", "X-Access-Token", ours.Token); a.status == http.StatusOK {
		t.Errorf("a token at another product's door: %d", a.status)
	}
	revokeKeys(t, r, "red")
	if a := by["header"](ours.ID, ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("the token of a revoked key: %d", a.status)
	}
}

// All routes ask for their scopes and know no other team's things.
func TestSuperserveScopes(t *testing.T) {
	r, clients := ssServer(t, "red", "blue")
	ours := clients[0].create()
	reader := asSuperserve(sdkKey(t, r, "red", sandbox.ScopeSandboxesRead))
	for _, c := range []struct {
		route, body string
		reads, blue int // what a reader and another team get
	}{
		{"GET /sandboxes/ID", "", 200, 404},
		{"PATCH /sandboxes/ID", `{"metadata":{}}`, 403, 404},
		{"POST /sandboxes/ID/pause", "", 403, 404},
		{"DELETE /sandboxes/ID", "", 403, 404},
		{"GET /sandboxes/ID/network", "", 200, 404},
		{"POST /sandboxes", `{"name":"x"}`, 403, 201},
		{"POST /secrets", `{"name":"s","value":"v","provider":"openai"}`, 403, 201},
		{"POST /templates", `{"name":"x","build_spec":{"from":"registry.invalid/x:1"}}`, 403, 202},
	} {
		method, path, _ := strings.Cut(c.route, " ")
		path = strings.ReplaceAll(path, "ID", ours.ID)
		if a := reader.api(method, path, c.body); a.status != c.reads {
			t.Errorf("a reader: %s: %d %s", c.route, a.status, a.text)
		}
		if a := clients[1].api(method, path, c.body); a.status != c.blue {
			t.Errorf("another team: %s: %d %s", c.route, a.status, a.text)
		}
	}
	a := reader.api("GET", "/sandboxes/"+ours.ID, "")
	var seen ssSandbox
	a.decode(t, &seen)
	if seen.Token == ours.Token || seen.Token == "" {
		t.Error("a reader does not get a token of their own")
	}
	if a := reader.send("POST", "/superserve/boxd-"+ours.ID+"/exec", `{"command":"true"}`, "X-Access-Token", seen.Token); a.status != 403 {
		t.Errorf("a reader's token runs a command: %d %s", a.status, a.text)
	}
}

// Errors are in the product's form, and what browsers send does not come in.
func TestSuperserveRefuses(t *testing.T) {
	_, clients := ssServer(t, "red")
	c := clients[0]
	ours := c.create()
	for name, ask := range map[string]struct {
		a      sdkAnswer
		status int
		says   string
	}{
		"no key":             {c.send("GET", "/superserve/sandboxes", ""), 401, "auth_failed"},
		"a route":            {c.api("POST", "/sandboxes/"+ours.ID+"/preview-ports", "{}"), 404, "POST /sandboxes/" + ours.ID + "/preview-ports"},
		"a method":           {c.api("PUT", "/sandboxes", "{}"), 405, "POST, GET"},
		"a long name":        {c.api("GET", "/templates/"+strings.Repeat("a", 300), ""), 404, "does not serve"},
		"an encoded climb":   {c.api("GET", "/sandboxes/%2e%2e/secrets", ""), 404, "does not serve"},
		"a slash in a name":  {c.api("GET", "/sandboxes/..%2Fsecrets", ""), 404, "not found"},
		"the base by name":   {c.api("GET", "/templates/superserve%2Fbase", ""), 200, "superserve/base"},
		"a page's request":   {c.send("POST", "/superserve/sandboxes", "{}", "Origin", "http://evil.example", "X-API-Key", c.key), 403, ""},
		"a browser's port":   {c.send("GET", "/superserve/3000-"+ours.ID+"/", ""), 400, "for programs"},
		"a page by host":     {c.send("GET", "/sandboxes", "", "Host", "api.superserve.ai", "Origin", "https://evil.example", "X-API-Key", c.key), 403, ""},
		"health":             {c.send("GET", "/health", "", "Host", "api.superserve.ai"), 200, `"ok"`},
		"another door's API": {c.send("GET", "/v1/sandboxes", "", "Host", "boxd-"+ours.ID+".sandbox.superserve.ai", "X-Access-Token", ours.Token), 404, "GET /v1/sandboxes"},
	} {
		if ask.a.status != ask.status || !strings.Contains(ask.a.text, ask.says) {
			t.Errorf("%s: %d %s, want %d that says %q", name, ask.a.status, ask.a.text, ask.status, ask.says)
		}
		var body struct {
			Error *struct{ Code, Message string } `json:"error"`
		}
		if ask.status >= 400 && ask.status != 403 && (json.Unmarshal([]byte(ask.a.text), &body) != nil || body.Error == nil || body.Error.Code == "" || body.Error.Message == "") {
			t.Errorf("%s: %s is no error of the product's", name, ask.a.text)
		}
	}
}

// A sandbox that the SDK has created is the same through every other door.
func TestSuperserveSharesSandboxes(t *testing.T) {
	r, clients := ssServer(t, sandbox.LocalCaller().Team)
	c := clients[0]
	ours := c.create()
	box, err := r.client(t).Get(t.Context(), ours.ID)
	if err != nil || box.Name != "box" || box.State != sandbox.StateRunning {
		t.Fatalf("by REST it is %+v, %v", box, err)
	}
	if a := c.send("GET", "/e2b/sandboxes/"+strings.Replace(ours.ID, "-", "", 1), "", "X-API-Key", c.key); a.status != http.StatusOK {
		t.Errorf("by E2B's: %d %s", a.status, a.text)
	}
	made, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if a := c.api("GET", "/sandboxes/"+made.ID, ""); a.status != http.StatusOK || !strings.Contains(a.text, `"name":"other"`) {
		t.Errorf("one that REST has made: %d %s", a.status, a.text)
	}
	if a := c.api("DELETE", "/sandboxes/"+made.ID, ""); a.status != http.StatusNoContent {
		t.Errorf("delete it: %d %s", a.status, a.text)
	}
	if box, err := r.client(t).Get(t.Context(), made.ID); err != nil || box.State != sandbox.StateKilled {
		t.Errorf("then it is %+v, %v", box, err)
	}
}

func TestSuperservePorts(t *testing.T) {
	r, clients := ssServer(t, sandbox.LocalCaller().Team)
	c := clients[0]
	testPorts(t, r, func() string { return c.create().ID }, func(id, port string) sdkAnswer {
		return c.send("GET", "/superserve/"+port+"-"+id+"/", "", "X-Superserve-Sandbox-Id", id)
	})
}
