package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// ssClient asks the door for Superserve's SDK of a daemon.
type ssClient struct{ e2bClient }

func (c *ssClient) api(method, path, body string) e2bAnswer {
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

// ssServer starts a daemon, and makes a client with these scopes for each of some teams.
func ssServer(t *testing.T, scopes []sandbox.Scope, teams ...string) (*running, []*ssClient) {
	t.Helper()
	r := mustStart(t, nil)
	t.Cleanup(func() { r.end(t) })
	var clients []*ssClient
	for _, team := range teams {
		clients = append(clients, ssKey(t, r, team, scopes))
	}
	return r, clients
}

func ssKey(t *testing.T, r *running, team string, scopes []sandbox.Scope) *ssClient {
	t.Helper()
	k, err := r.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: team, Team: team, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return &ssClient{e2bClient{t, r.tcp.String(), k.Secret}}
}

// A sandbox's token opens the data plane of that sandbox until its key is revoked, by
// whatever name the sandbox is called, and nothing else.
func TestSuperserveTokens(t *testing.T) {
	r, clients := ssServer(t, nil, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, second, theirs := red.create(), red.create(), blue.create()
	by := map[string]func(id, token string) e2bAnswer{
		"header": func(id, token string) e2bAnswer {
			return red.send("GET", "/superserve/files?path=/etc/hostname", "", "X-Superserve-Sandbox-Id", id, "X-Access-Token", token)
		},
		"path": func(id, token string) e2bAnswer {
			return red.send("GET", "/superserve/boxd-"+id+"/files?path=/etc/hostname", "", "X-Access-Token", token)
		},
		"host": func(id, token string) e2bAnswer {
			return red.send("GET", "/files?path=/etc/hostname", "", "Host", "boxd-"+id+".sandbox.superserve.ai", "X-Access-Token", token)
		},
		"shared host": func(id, token string) e2bAnswer {
			return red.send("GET", "/files?path=/etc/hostname", "", "Host", "sandbox.superserve.ai", "X-Superserve-Sandbox-Id", id, "X-Access-Token", token)
		},
		"subprotocol": func(id, token string) e2bAnswer {
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
	keys, err := sandbox.All(t.Context(), r.client(t).ListKeys)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if k.Team == "red" {
			if _, err := r.client(t).RevokeKey(t.Context(), k.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a := by["header"](ours.ID, ours.Token); a.status != http.StatusUnauthorized {
		t.Errorf("the token of a revoked key: %d", a.status)
	}
}

// All routes ask for their scopes and know no other team's things.
func TestSuperserveScopes(t *testing.T) {
	r, clients := ssServer(t, nil, "red", "blue")
	ours := clients[0].create()
	reader := ssKey(t, r, "red", []sandbox.Scope{sandbox.ScopeSandboxesRead})
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
	_, clients := ssServer(t, nil, "red")
	c := clients[0]
	ours := c.create()
	for name, ask := range map[string]struct {
		a      e2bAnswer
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
	r, clients := ssServer(t, nil, sandbox.LocalCaller().Team)
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

// A stranger opens a port of a sandbox that the SDK has created, but none of which its
// owner has or had a private preview.
func TestSuperservePorts(t *testing.T) {
	r, clients := ssServer(t, nil, sandbox.LocalCaller().Team)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer page.Close()
	at, err := url.Parse(page.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	private := func(id string) error {
		_, err := r.client(t).CreatePreview(t.Context(), id, sandbox.CreatePreviewRequest{Port: port})
		return err
	}
	for _, c := range []struct {
		name   string
		before func(id string) error
		want   int
	}{
		{name: "new", before: func(string) error { return nil }, want: http.StatusOK},
		{name: "private", before: private, want: http.StatusUnauthorized},
		{name: "private and deleted", want: http.StatusNotFound, before: func(id string) error {
			if err := private(id); err != nil {
				return err
			}
			return r.client(t).DeletePreview(t.Context(), id, port)
		}},
	} {
		id := clients[0].create().ID
		if err := c.before(id); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a := clients[0].send("GET", "/superserve/"+at.Port()+"-"+id+"/", "", "X-Superserve-Sandbox-Id", id)
			if a.status != c.want || c.want == http.StatusOK && a.text != "hello" {
				t.Errorf("%s: %d %s, want %d", c.name, a.status, a.text, c.want)
			}
		}
	}
}
