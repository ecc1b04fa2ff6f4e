package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/sandbox"
)

// script are the headers of a request of the console's scripts.
func script(more ...string) map[string]string {
	h := map[string]string{"Cove-Console": "1", "Content-Type": "application/json"}
	for i := 0; i < len(more); i += 2 {
		if h[more[i]] = more[i+1]; more[i+1] == "" {
			delete(h, more[i])
		}
	}
	return h
}

// key makes an API key.
func (r *running) key(t *testing.T, req sandbox.CreateKeyRequest) *sandbox.NewKey {
	t.Helper()
	key, err := r.client(t).CreateKey(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// signIn signs in, and returns the cookie as a browser sends it.
func (r *running) signIn(t *testing.T, body console.SignIn) string {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, text := r.request(t, "POST", "/console/session", script(), string(data))
	if resp.StatusCode != 200 || len(resp.Cookies()) != 1 {
		t.Fatalf("sign in: %s %s, cookies %v", resp.Status, text, resp.Cookies())
	}
	c := resp.Cookies()[0]
	return c.Name + "=" + c.Value
}

// link asks for a link over the Unix socket, and returns its token.
func (r *running) link(t *testing.T) string {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.cfg.SocketPath())
	}}
	resp, err := (&http.Client{Transport: tr}).Post("http://localhost/console/links", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var link console.Link
	if err := json.NewDecoder(resp.Body).Decode(&link); err != nil || resp.StatusCode != 200 {
		t.Fatalf("link: %s, %v", resp.Status, err)
	}
	token, ok := strings.CutPrefix(link.URL, "http://"+r.tcp.String()+"/console/#link=")
	if left := time.Until(link.ExpiresAt); !ok || left <= 0 || left > time.Minute {
		t.Fatalf("link %+v", link)
	}
	return token
}

// status returns the status of a request of the console's scripts with a cookie.
func (r *running) status(t *testing.T, method, path, cookie string) int {
	t.Helper()
	resp, _ := r.request(t, method, path, script("Cookie", cookie), "")
	return resp.StatusCode
}

func TestConsoleSignInByKey(t *testing.T) {
	r := mustStart(t, nil)
	key := r.key(t, sandbox.CreateKeyRequest{Name: "laptop", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesWrite}, ExpiresInSeconds: 3600})
	resp, text := r.request(t, "POST", "/console/session", script(), `{"key":"`+key.Secret+`"}`)
	var state console.SessionState
	if err := json.Unmarshal([]byte(text), &state); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s %s, %v", resp.Status, text, err)
	}
	if state.KeyID != key.ID || state.KeyName != "laptop" || state.Local || state.Team != "default" || state.Version != "1.2.3" ||
		!slices.Equal(state.Scopes, key.Scopes) || state.ExpiresAt == nil || !state.ExpiresAt.Equal(*key.ExpiresAt) {
		t.Errorf("the session is %s, of key %+v", text, key.Key)
	}
	cookie := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"cove_console=", "; Path=/", "; HttpOnly", "; SameSite=Strict"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the cookie %q is without %q", cookie, want)
		}
	}
	if strings.Contains(cookie, "Secure") || strings.Contains(cookie, "Domain") {
		t.Errorf("over HTTP the cookie is %q", cookie)
	}
	if strings.Contains(text, strings.TrimPrefix(strings.Split(cookie, ";")[0], "cove_console=")) {
		t.Error("the answer tells scripts the cookie")
	}

	cookie = strings.Split(cookie, ";")[0]
	if got := r.status(t, "GET", "/console/session", cookie); got != 200 {
		t.Errorf("the session: %d", got)
	}
	resp, text = r.request(t, "POST", "/v1/sandboxes", script("Cookie", cookie), `{"name":"mine"}`)
	if resp.StatusCode != 201 {
		t.Errorf("create: %s %s", resp.Status, text)
	}
	if got := resp.Header.Get("Content-Security-Policy"); !strings.Contains(got, "sandbox") || resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("an answer to a session can be a page: %v", resp.Header)
	}
	// The audit names the key, as for any other call of it.
	events, err := r.client(t).Audit(t.Context(), sandbox.AuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range events.Items {
		if e.KeyID == key.ID {
			actions = append(actions, e.Action)
		}
	}
	if !slices.Contains(actions, "console.sign_in") || !slices.Contains(actions, "sandbox.create") {
		t.Errorf("audited of the key: %v", actions)
	}

	resp, _ = r.request(t, "DELETE", "/console/session", script("Cookie", cookie), "")
	if out := resp.Header.Get("Set-Cookie"); resp.StatusCode != 204 || !strings.Contains(out, "Max-Age=0") {
		t.Errorf("sign out: %s, cookie %q", resp.Status, out)
	}
	if got := r.status(t, "GET", "/v1/sandboxes", cookie); got != 401 {
		t.Errorf("after that: %d", got)
	}
}

func TestConsoleSignInRefused(t *testing.T) {
	r := mustStart(t, nil)
	good := `{"key":"` + r.key(t, sandbox.CreateKeyRequest{Name: "k"}).Secret + `"}`
	for name, q := range map[string]struct {
		header map[string]string
		body   string
		status int
		says   string
	}{
		"wrong key":           {script(), `{"key":"cove_X"}`, 401, "not known"},
		"wrong link":          {script(), `{"link":"x"}`, 401, "cove console"},
		"nothing":             {script(), `{}`, 400, "a key or a link"},
		"both":                {script(), `{"key":"a","link":"b"}`, 400, "not both"},
		"unknown member":      {script(), `{"key":"a","more":1}`, 400, "the body is not"},
		"a member twice":      {script(), `{"key":"a","key":"b"}`, 400, "the body is not"},
		"two bodies":          {script(), good + good, 400, "the body is not"},
		"no JSON":             {script(), `key=a`, 400, "the body is not"},
		"a form":              {script("Content-Type", "application/x-www-form-urlencoded"), "key=a", 400, "Content-Type"},
		"large":               {script(), `{"key":"` + strings.Repeat("x", 5000) + `"}`, 413, "bytes"},
		"a page of elsewhere": {script("Origin", "https://evil.example"), good, 403, "web pages"},
		"a form of elsewhere": {map[string]string{"Origin": "null", "Content-Type": "text/plain"}, good, 403, "web pages"},
		"another port":        {script("Origin", "http://localhost:3000"), good, 403, "web pages"},
		"no proof":            {map[string]string{"Content-Type": "application/json"}, good, 403, "own pages"},
	} {
		resp, text := r.request(t, "POST", "/console/session", q.header, q.body)
		if resp.StatusCode != q.status || !strings.Contains(text, q.says) || len(resp.Cookies()) > 0 {
			t.Errorf("%s: %s %s, cookies %v; want %d that says %q", name, resp.Status, text, resp.Cookies(), q.status, q.says)
		}
	}
}

func TestConsoleSignInIsLimited(t *testing.T) {
	r := mustStart(t, nil)
	for kind, body := range map[string]string{"keys": `{"key":"cove_%d"}`, "links": `{"link":"%d"}`} {
		last := 0
		for i := 0; i < 70 && last != 429; i++ {
			resp, _ := r.request(t, "POST", "/console/session", script(), fmt.Sprintf(body, i))
			last = resp.StatusCode
		}
		if last != 429 {
			t.Errorf("after 70 unknown %s: %d", kind, last)
		}
	}
}

func TestConsoleLink(t *testing.T) {
	r := mustStart(t, nil)
	token := r.link(t)
	cookie := r.signIn(t, console.SignIn{Link: token})
	_, text := r.request(t, "GET", "/console/session", script("Cookie", cookie), "")
	if !strings.Contains(text, `"local":true`) || !strings.Contains(text, `"admin"`) {
		t.Errorf("the session is %s", text)
	}
	if got := r.status(t, "GET", "/v1/keys", cookie); got != 200 {
		t.Errorf("admin's matters: %d", got)
	}
	resp, text := r.request(t, "POST", "/console/session", script(), `{"link":"`+token+`"}`)
	if resp.StatusCode != 401 || !strings.Contains(text, "used already") {
		t.Errorf("the second use: %s %s", resp.Status, text)
	}
	if resp, text := r.request(t, "POST", "/console/links", script("Cookie", cookie), ""); resp.StatusCode != 403 || !strings.Contains(text, "Unix socket") {
		t.Errorf("a link by TCP: %s %s", resp.Status, text)
	}
}

func TestConsoleLinkUsedAtOnce(t *testing.T) {
	r := mustStart(t, nil)
	body := `{"link":"` + r.link(t) + `"}`
	var wg sync.WaitGroup
	statuses := make([]int, 16)
	for i := range statuses {
		wg.Go(func() {
			resp, _ := r.request(t, "POST", "/console/session", script(), body)
			statuses[i] = resp.StatusCode
		})
	}
	wg.Wait()
	slices.Sort(statuses)
	if statuses[0] != 200 || statuses[1] != 401 || statuses[15] != 401 {
		t.Errorf("answers %v, want one 200", statuses)
	}
}

// A cookie alone is what pages of other sites, and of other ports, can have a browser
// send too.
func TestConsoleCookieIsForItsOwnPages(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.AllowedHosts = []string{"cove.example"} })
	cookie := r.signIn(t, console.SignIn{Link: r.link(t)})
	own := "http://" + r.tcp.String()
	for name, q := range map[string]struct {
		method, path string
		header       map[string]string
		status       int
	}{
		"the cookie alone":                   {"GET", "/v1/sandboxes", nil, 403},
		"scripts":                            {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1"}, 200},
		"another value":                      {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "0"}, 403},
		"an image of the page":               {"GET", "/v1/sandboxes", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		"an address that was typed":          {"GET", "/v1/sandboxes", map[string]string{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 403},
		"a link of another site":             {"GET", "/v1/sandboxes", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403},
		"a script of another site":           {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "Sec-Fetch-Site": "cross-site"}, 403},
		"another port":                       {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "Sec-Fetch-Site": "same-site"}, 403},
		"the own origin":                     {"POST", "/v1/sandboxes", map[string]string{"Origin": own}, 201},
		"an allowed host's page":             {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "Origin": "http://cove.example:3000"}, 403},
		"an opaque origin":                   {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "Origin": "null"}, 403},
		"a form of another site":             {"POST", "/v1/sandboxes", map[string]string{"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403},
		"a form without an origin":           {"POST", "/v1/sandboxes", map[string]string{"Content-Type": "text/plain"}, 403},
		"an event stream":                    {"GET", "/v1/sandboxes", map[string]string{"Accept": "text/event-stream", "Sec-Fetch-Site": "same-origin"}, 200},
		"an event stream of another site":    {"GET", "/v1/sandboxes", map[string]string{"Accept": "text/event-stream", "Origin": "https://evil.example"}, 403},
		"an event stream of an allowed host": {"GET", "/v1/sandboxes", map[string]string{"Accept": "text/event-stream", "Origin": "https://cove.example"}, 403},
		"signing out from elsewhere":         {"DELETE", "/console/session", nil, 403},
		"metrics":                            {"GET", "/metrics", map[string]string{"Cove-Console": "1"}, 200},
		"a key goes first":                   {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "Authorization": "Bearer cove_X"}, 401},
		"a key's header goes first":          {"GET", "/v1/sandboxes", map[string]string{"Cove-Console": "1", "X-Api-Key": "cove_X"}, 401},
	} {
		header := map[string]string{"Cookie": cookie}
		body := ""
		if q.method == "POST" {
			header["Content-Type"], body = "application/json", "{}"
		}
		for k, v := range q.header {
			header[k] = v
		}
		if resp, text := r.request(t, q.method, q.path, header, body); resp.StatusCode != q.status {
			t.Errorf("%s: %s %s, want %d", name, resp.Status, text, q.status)
		}
	}
}

func TestConsoleWebSocket(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.AllowedHosts = []string{"cove.example"} })
	if _, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{Name: "work"}); err != nil {
		t.Fatal(err)
	}
	cookie := r.signIn(t, console.SignIn{Link: r.link(t)})
	for name, q := range map[string]struct {
		header map[string]string
		ok     bool
	}{
		"the own page":           {map[string]string{"Origin": "http://" + r.tcp.String()}, true},
		"no origin":              {map[string]string{"Cove-Console": "1"}, false},
		"no origin, same-origin": {map[string]string{"Sec-Fetch-Site": "same-origin"}, false},
		"another site":           {map[string]string{"Origin": "https://evil.example"}, false},
		"another port":           {map[string]string{"Origin": "http://127.0.0.1:1"}, false},
		"an allowed host":        {map[string]string{"Origin": "http://cove.example"}, false},
		"an opaque origin":       {map[string]string{"Origin": "null"}, false},
	} {
		header := http.Header{"Cookie": {cookie}}
		for k, v := range q.header {
			header.Set(k, v)
		}
		conn, resp, err := websocket.Dial(t.Context(), "ws://"+r.tcp.String()+"/v1/sandboxes/work/terminal", &websocket.DialOptions{HTTPHeader: header})
		if err == nil {
			_ = conn.CloseNow()
		}
		if (err == nil) != q.ok || !q.ok && resp != nil && resp.StatusCode != 403 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConsoleCookieOpensNoOtherDoor(t *testing.T) {
	r := mustStart(t, nil)
	sb, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client(t).CreatePreview(t.Context(), sb.ID, sandbox.CreatePreviewRequest{Port: 3000}); err != nil {
		t.Fatal(err)
	}
	cookie := r.signIn(t, console.SignIn{Link: r.link(t)})
	for _, q := range []struct{ method, path, host, body string }{
		{"POST", "/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
		{"POST", "/mcp/", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
		{"POST", "/mcp?dialect=microsandbox", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
		{"GET", "/e2b/sandboxes", "", ""},
		{"GET", "/", "", ""},
		{"GET", "/", "3000-" + sb.ID + ".localhost", ""},
	} {
		header := script("Cookie", cookie, "Accept", "application/json, text/event-stream")
		if q.host != "" {
			header["Host"] = q.host
		}
		if resp, text := r.request(t, q.method, q.path, header, q.body); resp.StatusCode != 401 {
			t.Errorf("%s %s%s: %s %s, want 401", q.method, q.host, q.path, resp.Status, text)
		}
	}
}

// A program in a sandbox has paths of its own, which E2B's clients ask for at the address
// that all sandboxes share.
func TestConsoleLeavesPathsToSandboxes(t *testing.T) {
	r := mustStart(t, nil)
	resp, text := r.request(t, "GET", "/console/", map[string]string{"E2b-Sandbox-Id": "sbxnone", "E2b-Sandbox-Port": "3000"}, "")
	if resp.Header.Get("Content-Security-Policy") != "" || strings.Contains(text, "<html") {
		t.Errorf("the console answers in place of a sandbox: %s %s", resp.Status, text)
	}
}

func TestConsoleSessionEnds(t *testing.T) {
	r := mustStart(t, nil)
	reader := r.key(t, sandbox.CreateKeyRequest{Name: "reader", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}})
	other := r.key(t, sandbox.CreateKeyRequest{Name: "other"})
	foreign := r.key(t, sandbox.CreateKeyRequest{Name: "foreign", Team: "blue", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}})
	first, second := r.signIn(t, console.SignIn{Key: reader.Secret}), r.signIn(t, console.SignIn{Key: reader.Secret})
	others, foreigners := r.signIn(t, console.SignIn{Key: other.Secret}), r.signIn(t, console.SignIn{Key: foreign.Secret})
	local := r.signIn(t, console.SignIn{Link: r.link(t)})

	// A key without the scope sees, and changes nothing.
	if got := r.status(t, "GET", "/v1/sandboxes", first); got != 200 {
		t.Errorf("reads: %d", got)
	}
	if resp, text := r.request(t, "POST", "/v1/sandboxes", script("Cookie", first), "{}"); resp.StatusCode != 403 {
		t.Errorf("writes: %s %s", resp.Status, text)
	}

	list := func(cookie string) []sandbox.ConsoleSession {
		t.Helper()
		_, text := r.request(t, "GET", "/console/sessions", script("Cookie", cookie), "")
		var l sandbox.List[sandbox.ConsoleSession]
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return l.Items
	}
	for name, q := range map[string]struct {
		cookie string
		want   int
	}{"own": {first, 2}, "another key's": {others, 1}, "another team's": {foreigners, 1}, "admin's": {local, 4}} {
		if got := list(q.cookie); len(got) != q.want {
			t.Errorf("%s sessions: %+v, want %d", name, got, q.want)
		}
	}
	mine := list(others)[0]
	if mine.KeyID != other.ID || mine.Client == "" {
		t.Errorf("the session is listed as %+v", mine)
	}
	for name, cookie := range map[string]string{"another key": first, "another team's admin": foreigners} {
		if got := r.status(t, "DELETE", "/console/sessions/"+mine.ID, cookie); got != 404 {
			t.Errorf("%s ends it: %d", name, got)
		}
	}
	if got := r.status(t, "DELETE", "/console/sessions/"+mine.ID, local); got != 204 {
		t.Errorf("admin ends it: %d", got)
	}
	if got := r.status(t, "GET", "/v1/sandboxes", others); got != 401 {
		t.Errorf("the session that was ended: %d", got)
	}

	if _, err := r.client(t).RevokeKey(t.Context(), reader.ID); err != nil {
		t.Fatal(err)
	}
	for _, cookie := range []string{first, second} {
		if got := r.status(t, "GET", "/v1/sandboxes", cookie); got != 401 {
			t.Errorf("of a revoked key: %d", got)
		}
	}
	if got := list(local); len(got) != 1 {
		t.Errorf("left: %+v", got)
	}
	for name, forged := range map[string]string{
		"empty": "cove_console=", "random": "cove_console=" + strings.Repeat("A", 43), "an id": "cove_console=" + mine.ID, "HTTPS's": "__Host-cove_console=" + strings.Repeat("A", 43),
		"long": "cove_console=" + strings.Repeat("A", 4096),
	} {
		if got := r.status(t, "GET", "/v1/sandboxes", forged); got != 401 {
			t.Errorf("%s forged cookie: %d", name, got)
		}
	}
	// One that another port has set does not lock the browser out.
	if got := r.status(t, "GET", "/v1/sandboxes", "cove_console="+strings.Repeat("A", 43)+"; "+local); got != 200 {
		t.Errorf("beside a forged cookie: %d", got)
	}
	// Who signs in anew has one session.
	before := strings.Clone(local)
	resp, _ := r.request(t, "POST", "/console/session", script("Cookie", local), `{"link":"`+r.link(t)+`"}`)
	if resp.StatusCode != 200 || r.status(t, "GET", "/console/session", before) != 401 {
		t.Errorf("after another sign-in, %s, the session before is good", resp.Status)
	}
}

func TestConsoleSessionOutlivesTheDaemon(t *testing.T) {
	dir := t.TempDir()
	keep := func(c *config.Config) { c.StateDir = dir }
	r := mustStart(t, keep)
	key := r.key(t, sandbox.CreateKeyRequest{Name: "k"})
	byKey, byLink := r.signIn(t, console.SignIn{Key: key.Secret}), r.signIn(t, console.SignIn{Link: r.link(t)})
	unused := r.link(t)
	r.end(t)
	r = mustStart(t, keep)
	for _, cookie := range []string{byKey, byLink} {
		if got := r.status(t, "GET", "/v1/sandboxes", cookie); got != 200 {
			t.Errorf("after a restart: %d", got)
		}
	}
	if resp, _ := r.request(t, "POST", "/console/session", script(), `{"link":"`+unused+`"}`); resp.StatusCode != 401 {
		t.Errorf("a link of the daemon before: %s", resp.Status)
	}
}

func TestConsoleRequestsAreBounded(t *testing.T) {
	r := mustStart(t, nil, func(s *setup) { s.RequestsPerKey = 1 })
	if _, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{Name: "work"}); err != nil {
		t.Fatal(err)
	}
	cookie := r.signIn(t, console.SignIn{Key: r.key(t, sandbox.CreateKeyRequest{Name: "k"}).Secret})
	conn, _, err := websocket.Dial(t.Context(), "ws://"+r.tcp.String()+"/v1/sandboxes/work/terminal",
		&websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {cookie}, "Origin": {"http://" + r.tcp.String()}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if got := r.status(t, "GET", "/v1/sandboxes", cookie); got != 429 {
		t.Errorf("one more than a key may have: %d", got)
	}
}

func TestConsoleInDevelopmentMode(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.Dev = true })
	resp, text := r.request(t, "GET", "/console/session", nil, "")
	if resp.StatusCode != 200 || !strings.Contains(text, `"local":true`) || !strings.Contains(text, `"expires_at":null`) {
		t.Errorf("%s %s", resp.Status, text)
	}
	if got := r.status(t, "DELETE", "/console/session", ""); got != 204 {
		t.Errorf("sign out: %d", got)
	}
}
