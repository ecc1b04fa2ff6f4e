package server_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/sandbox"
)

// daytonaClient asks the door of Daytona of a daemon.
type daytonaClient struct{ sdkClient }

func asDaytona(c sdkClient) *daytonaClient { return &daytonaClient{c} }

func (c *daytonaClient) send(method, path, body string, headers ...string) (status int, text string) {
	c.t.Helper()
	a := c.sdkClient.send(method, path, body, headers...)
	return a.status, a.text
}

func (c *daytonaClient) api(method, path, body string) (int, string) {
	c.t.Helper()
	return c.send(method, "/daytona/api"+path, body, "Authorization", "Bearer "+c.key)
}

func (c *daytonaClient) toolbox(id, method, path, body string) (int, string) {
	c.t.Helper()
	return c.send(method, "/daytona/toolbox/"+id+path, body, "Authorization", "Bearer "+c.key)
}

type daytonaSandbox struct{ ID, Name, State, ToolboxProxyURL string }

func (c *daytonaClient) create(body string) daytonaSandbox {
	c.t.Helper()
	status, text := c.api("POST", "/sandbox", body)
	var s daytonaSandbox
	if status != http.StatusOK || json.Unmarshal([]byte(text), &s) != nil {
		c.t.Fatalf("create: %d %s", status, text)
	}
	return s
}

// token is what a preview of a port is opened with.
func (c *daytonaClient) token(id string, port int) string {
	c.t.Helper()
	status, text := c.api("GET", "/sandbox/"+id+"/ports/"+strconv.Itoa(port)+"/preview-url", "")
	var link struct{ Token string }
	if status != http.StatusOK || json.Unmarshal([]byte(text), &link) != nil || link.Token == "" {
		c.t.Fatalf("preview: %d %s", status, text)
	}
	return link.Token
}

func daytonaServer(t *testing.T, teams ...string) (*running, []*daytonaClient) {
	t.Helper()
	return sdkServer(t, nil, asDaytona, teams...)
}

// The engine of these tests does not pause.
const daytonaTemplate = `{"snapshot":"host","autoStopInterval":0}`

// The life of a sandbox, in the product's words and statuses.
func TestDaytonaLife(t *testing.T) {
	_, clients := daytonaServer(t, "red")
	c := clients[0]
	s := c.create(`{"snapshot":"host","autoStopInterval":0,"name":"one","env":{},"labels":{"a":"b","code-toolbox-language":"python"}}`)
	at := "/sandbox/" + s.ID
	for _, step := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/health", "", 200, "ok"},
		{"GET", "/config", "", 200, "/daytona/toolbox"},
		{"GET", "/socket.io/?EIO=4&transport=websocket", "", 404, "no events"},
		{"GET", at, "", 200, `"state":"started"`},
		{"GET", "//sandbox/one", "", 200, s.ID},
		{"GET", "/sandbox?labels=" + url.QueryEscape(`{"a":"b"}`), "", 200, s.ID},
		{"GET", "/sandbox?labels=" + url.QueryEscape(`{"a":"c"}`), "", 200, `"items":[]`},
		{"GET", "/sandbox?labels=x", "", 400, "labels"},
		{"GET", "/sandbox?color=red", "", 400, "color"},
		{"GET", "/sandbox?limit=0", "", 400, "limit"},
		{"GET", "/sandbox?cursor=x", "", 400, "cursor"},
		{"POST", "/sandbox", `{"snapshot":"host","color":"red"}`, 400, "color"},
		{"POST", "/sandbox", `{"snapshot":"host","autoStopInterval":0,"name":"one"}`, 409, "one"},
		{"POST", "/sandbox", `{"snapshot":"none"}`, 404, "none"},
		{"POST", "/sandbox", `{"snapshot":"host","cpu":2}`, 400, "cpu"},
		{"POST", "/sandbox", `{"snapshot":"host","buildInfo":{}}`, 400, "buildInfo"},
		{"POST", "/sandbox", `{"snapshot":"host","snapshot":"host"}`, 400, "snapshot"},
		{"POST", at + "/autostop/x", "", 400, "minutes"},
		{"POST", at + "/autostop/-5", "", 400, "minutes"},
		{"POST", at + "/ttl/-5", "", 400, "ttlMinutes"},
		{"POST", at + "/autodelete/-1", "", 200, `"autoDeleteInterval":-1`},
		{"POST", at + "/autoarchive/50000", "", 400, "autoArchiveInterval"},
		{"POST", at + "/archive", "", 400, "stop it"},
		{"PUT", at + "/labels", `{"labels":{"cove.x":"y"}}`, 400, "cove."},
		{"PUT", at + "/labels", `{"labels":{"n":"m"}}`, 200, "code-toolbox-language"},
		{"GET", at + "/ports/0/preview-url", "", 400, "port"},
		{"GET", at + "/ports/70000/preview-url", "", 400, "port"},
		{"POST", at + "/last-activity", "", 201, ""},
		{"POST", at + "/network-settings", `{}`, 400, "networkBlockAll"},
		{"POST", at + "/backup", "", 501, "POST /sandbox/" + s.ID + "/backup"},
		{"GET", "/object-storage/push-access", "", 501, "push-access"},
		{"GET", "/sandbox/..%2F..%2Fv1%2Fkeys", "", 404, "not clean"},
		{"GET", "/sandbox/../health", "", 404, "not clean"},
		{"GET", "/snapshots?limit=1000", "", 400, "limit"},
		{"GET", "/snapshots/host", "", 200, `"state":"active"`},
		{"GET", "/snapshots/org%2Fname:1", "", 404, "org/name:1"},
		{"POST", "/snapshots", `{"name":"x","buildInfo":{"dockerfileContent":"FROM a\nCOPY b c"}}`, 400, "dockerfileContent"},
		{"DELETE", at, "", 200, `"state":"destroyed"`},
		{"GET", at, "", 404, "not found"},
		{"DELETE", at, "", 404, "not found"},
	} {
		status, text := c.api(step.method, step.path, step.body)
		if status != step.status || !strings.Contains(text, step.says) {
			t.Errorf("%s %s %s: %d %s, want %d that says %q", step.method, step.path, step.body, status, text, step.status, step.says)
		}
		if status < 400 {
			continue
		}
		var f struct {
			StatusCode                    int
			Message, Code, Source, Method string
		}
		if err := json.Unmarshal([]byte(text), &f); err != nil || f.StatusCode != status || f.Message == "" || f.Code == "" || f.Source != "DAYTONA_API" || f.Method != step.method {
			t.Errorf("%s %s: the error is %s", step.method, step.path, text)
		}
	}
}

// A sandbox that was made here is the same one for Cove's own clients.
func TestDaytonaSameSandbox(t *testing.T) {
	r, clients := daytonaServer(t, sandbox.LocalCaller().Team)
	s := clients[0].create(`{"snapshot":"host","autoStopInterval":0,"name":"mine"}`)
	box, err := r.client(t).Get(t.Context(), s.ID)
	if err != nil || box.Name != "mine" || box.IdleTimeoutSeconds != 0 || box.LifetimeSeconds != 0 {
		t.Errorf("%+v, %v", box, err)
	}
}

// Attack: another team's sandbox on every route of one sandbox, and no key.
func TestDaytonaOtherTeams(t *testing.T) {
	_, clients := daytonaServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	theirs := blue.create(`{"snapshot":"host","autoStopInterval":0,"name":"secret-name"}`)
	unknown := "sbx-" + strings.Repeat("a", len(theirs.ID)-4)
	for _, route := range []string{
		"GET ", "DELETE ", "POST /start", "POST /stop", "POST /pause", "POST /archive", "POST /fork", "POST /snapshot", "POST /resize",
		"POST /network-settings", "PUT /labels", "POST /autostop/1", "POST /autopause/1", "POST /autodelete/1", "POST /autoarchive/1", "POST /ttl/1",
		"POST /last-activity", "GET /toolbox-proxy-url", "GET /ports/3000/preview-url", "GET /ports/1/preview-url", "GET /ports/3000/signed-preview-url", "GET /signing-key",
	} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"POST /snapshot": `{"name":"x"}`, "POST /network-settings": `{"networkBlockAll":true}`}[route]
		status, foreign := red.api(method, "/sandbox/"+theirs.ID+path, body)
		absentStatus, absent := red.api(method, "/sandbox/"+unknown+path, body)
		cut := func(text string) string { text, _, _ = strings.Cut(text, `"timestamp"`); return text }
		if status != 404 || absentStatus != 404 || cut(strings.ReplaceAll(foreign, theirs.ID, unknown)) != cut(absent) {
			t.Errorf("%s: foreign %d %s, unknown %d %s", route, status, foreign, absentStatus, absent)
		}
		if status, text := red.send(method, "/daytona/api/sandbox/"+theirs.ID+path, body); status != 401 {
			t.Errorf("%s without a key: %d %s", route, status, text)
		}
	}
	for _, name := range []string{theirs.ID, "secret-name"} {
		for _, route := range []string{"GET /files?path=/etc", "POST /process/execute", "GET /process/session", "GET /version", "GET /none"} {
			method, path, _ := strings.Cut(route, " ")
			if status, text := red.toolbox(name, method, path, `{"command":"id"}`); status != 404 || !strings.Contains(text, "DAYTONA_DAEMON") {
				t.Errorf("%s of %s: %d %s", route, name, status, text)
			}
			if status, _ := red.send(method, "/daytona/toolbox/"+theirs.ID+path, ""); status != 401 {
				t.Errorf("%s without a key: %d", route, status)
			}
		}
	}
}

// Attack: tokens of other ports, sandboxes, teams and purposes, forged ones, and those of
// a key that was revoked.
func TestDaytonaTokens(t *testing.T) {
	r, clients := daytonaServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, second, theirs := red.create(daytonaTemplate), red.create(daytonaTemplate), blue.create(daytonaTemplate)
	ask := func(id, token string) int {
		status, _ := red.send("GET", "/daytona/toolbox/"+id+"/version?DAYTONA_SANDBOX_AUTH_KEY="+url.QueryEscape(token), "")
		return status
	}
	good := red.token(ours.ID, access.PortToolbox)
	if got := ask(ours.ID, good); got != 200 {
		t.Errorf("the sandbox's own token: %d", got)
	}
	for name, token := range map[string]string{
		"none": "", "of a preview": red.token(ours.ID, 3000), "of another sandbox": red.token(second.ID, 1), "of another team's": blue.token(theirs.ID, 1),
		"forged": good[:len(good)-1] + "x", "cut": good[:len(good)-2], "of the user who runs the daemon": "cst_local_" + strings.Repeat("0", 64),
		"the API key": red.key, "long": strings.Repeat("a", 1000),
	} {
		if got := ask(ours.ID, token); got != 401 {
			t.Errorf("a token %s: %d", name, got)
		}
	}
	if got := ask(theirs.ID, good); got != 401 {
		t.Errorf("the token at another team's sandbox: %d", got)
	}
	if status, _ := red.send("GET", "/daytona/toolbox/"+ours.ID+"/version?DAYTONA_SANDBOX_AUTH_KEY="+good+"&DAYTONA_SANDBOX_AUTH_KEY=x", ""); status != 401 {
		t.Errorf("two tokens: %d", status)
	}
	if status, _ := red.send("GET", "/daytona/api/sandbox/"+ours.ID+"?DAYTONA_SANDBOX_AUTH_KEY="+good, ""); status != 401 {
		t.Errorf("the token at the control plane: %d", status)
	}
	revokeKeys(t, r, "red")
	if got := ask(ours.ID, good); got != 401 {
		t.Errorf("the token of a revoked key: %d", got)
	}
}

// Attack: signatures for another path, method, time, sandbox or route.
func TestDaytonaSignatures(t *testing.T) {
	_, clients := daytonaServer(t, "red")
	red := clients[0]
	ours, second := red.create(daytonaTemplate), red.create(daytonaTemplate)
	_, text := red.api("GET", "/sandbox/"+ours.ID+"/signing-key", "")
	var key string
	if err := json.Unmarshal([]byte(text), &key); err != nil || key == "" {
		t.Fatalf("%s: %v", text, err)
	}
	later, before := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	link := func(id, route, path string, expires int64, signature string) string {
		return "/daytona/toolbox/" + id + route + "?path=" + url.QueryEscape(path) + "&expires=" + strconv.FormatInt(expires, 10) + "&signature=" + url.QueryEscape(signature)
	}
	sign := func(method, path string, expires int64) string { return access.Sign(key, method, path, expires) }
	for _, expires := range []int64{0, later} {
		if status, text := red.send("GET", link(ours.ID, "/files/download", "/etc/hostname", expires, sign("GET", "/etc/hostname", expires)), ""); status == 401 {
			t.Errorf("a good link: %d %s", status, text)
		}
	}
	good := link(ours.ID, "/files/download", "/a", later, sign("GET", "/a", later))
	for name, at := range map[string]string{
		"for another path":    link(ours.ID, "/files/download", "/b", later, sign("GET", "/a", later)),
		"for another method":  link(ours.ID, "/files/download", "/a", later, sign("POST", "/a", later)),
		"for another time":    link(ours.ID, "/files/download", "/a", later+1, sign("GET", "/a", later)),
		"that has expired":    link(ours.ID, "/files/download", "/a", before, sign("GET", "/a", before)),
		"for another sandbox": link(second.ID, "/files/download", "/a", later, sign("GET", "/a", later)),
		"for another route":   link(ours.ID, "/files", "/a", later, sign("GET", "/a", later)),
		"at a disguised one":  link(ours.ID, "/files/download/../info", "/a", later, sign("GET", "/a", later)),
		"with two paths":      good + "&path=/b",
		"with another number": strings.Replace(good, "expires=", "expires=%2B", 1),
		"with no signature":   link(ours.ID, "/files/download", "/a", later, ""),
	} {
		if status, text := red.send("GET", at, ""); status != 401 {
			t.Errorf("a link %s: %d %s", name, status, text)
		}
	}
}

// Attack: headers of another product's door, a preview's host name, and paths that only
// look like the door's, do not lead past the check of who calls.
func TestDaytonaSmuggling(t *testing.T) {
	_, clients := daytonaServer(t, "red", "blue")
	red, blue := clients[0], clients[1]
	ours, theirs := red.create(daytonaTemplate), blue.create(daytonaTemplate)
	for name, headers := range map[string][]string{
		"E2B's headers":       {"E2b-Sandbox-Id", strings.Replace(theirs.ID, "-", "", 1), "E2b-Sandbox-Port", "49983"},
		"two keys":            {"Authorization", "Bearer " + blue.key},
		"a key of theirs too": {"X-API-Key", blue.key},
	} {
		status, text := red.send("GET", "/daytona/toolbox/"+theirs.ID+"/version", "", append([]string{"Authorization", "Bearer " + red.key}, headers...)...)
		if status != 404 && status != 401 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	token := red.token(ours.ID, 3000)
	for name, host := range map[string]string{
		"another sandbox": "3000-" + theirs.ID + ".localhost", "another port": "3001-" + ours.ID + ".localhost", "no sandbox": "3000-x.localhost",
	} {
		for _, path := range []string{"/", "/daytona/api/sandbox", "/v1/sandboxes"} {
			status, text := red.send("GET", path, "", "Host", host, access.HeaderPreview, token, "Authorization", "Bearer "+red.key)
			if status < 400 || strings.Contains(text, `"items"`) {
				t.Errorf("%s, %s: %d %s", name, path, status, text)
			}
		}
	}
	for _, path := range []string{
		"/daytona/toolbox/" + ours.ID + "/../" + theirs.ID + "/version", "/daytona/toolbox/" + ours.ID + "/%2e%2e/" + theirs.ID + "/version",
		"/daytona/toolbox/" + ours.ID + "%2F..%2F" + theirs.ID + "/version", "/daytona/%61pi/sandbox", "/daytona/toolbox/", "/daytona/toolbox/" + ours.ID, "/daytona/", "/daytona/none",
	} {
		status, text := red.send("GET", path, "", "Authorization", "Bearer "+red.key)
		if status < 400 || strings.Contains(text, `"version"`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// A key without the scope to change sandboxes changes none, by no plane.
func TestDaytonaScopes(t *testing.T) {
	r, clients := daytonaServer(t, "red")
	ours := clients[0].create(daytonaTemplate)
	reader := asDaytona(sdkKey(t, r, "red", sandbox.ScopeSandboxesRead))
	for _, route := range []string{
		"DELETE /sandbox/ID", "POST /sandbox/ID/stop", "POST /sandbox/ID/fork", "POST /sandbox/ID/snapshot", "PUT /sandbox/ID/labels", "POST /sandbox/ID/autostop/5",
		"GET /sandbox/ID/ports/3000/preview-url", "POST /sandbox", "POST /volumes", "DELETE /snapshots/host",
	} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"POST": `{"name":"v"}`, "PUT": `{"labels":{}}`}[method]
		if strings.HasSuffix(path, "/autostop/5") || strings.HasSuffix(path, "/stop") {
			body = ""
		}
		if status, text := reader.api(method, strings.ReplaceAll(path, "ID", ours.ID), body); status != 403 {
			t.Errorf("%s: %d %s", route, status, text)
		}
	}
	for _, route := range []string{"POST /process/execute", "POST /process/session", "DELETE /files?path=/tmp/x&recursive=true", "POST /files/folder?path=/tmp/x"} {
		method, path, _ := strings.Cut(route, " ")
		body := map[string]string{"/process/execute": `{"command":"id"}`, "/process/session": `{"sessionId":"s"}`}[path]
		if status, text := reader.toolbox(ours.ID, method, path, body); status != 403 {
			t.Errorf("%s: %d %s", route, status, text)
		}
	}
}

// An upload is taken, and one that is refused is answered.
func TestDaytonaUpload(t *testing.T) {
	_, clients := daytonaServer(t, "red")
	c := clients[0]
	at := "/daytona/toolbox/" + c.create(daytonaTemplate).ID + "/files/"
	form := func(field, content string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"" + field + "\"; filename=\"f\"\r\n\r\n" + content + "\r\n--x--\r\n"
	}
	name := url.QueryEscape(t.TempDir() + "/f")
	for _, step := range []struct {
		route, body string
		status      int
		says        string
	}{
		{"upload-v2?path=" + name, form("file", "content"), 200, `"name":"f"`},
		{"upload-v2?path=" + name, form("other", "content"), 400, "no part file"},
		{"upload-v2", form("file", "content"), 400, "path is missing"},
		{"bulk-upload", form("other", strings.Repeat("a", 1<<20)), 400, "neither files[N].path"},
	} {
		status, text := c.send("POST", at+step.route, step.body, "Authorization", "Bearer "+c.key, "Content-Type", "multipart/form-data; boundary=x")
		if status != step.status || !strings.Contains(text, step.says) {
			t.Errorf("%s: %d %s, want %d that says %q", step.route, status, text, step.status, step.says)
		}
	}
}
