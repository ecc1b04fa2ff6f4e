package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/testing/oidctest"
	"github.com/cove-sh/cove/sandbox"
)

// ssoRules let platform do everything in the team research, staff look, and people of
// example.com look in another team.
func ssoRules() []config.SSORule {
	return []config.SSORule{
		{Claim: "groups", Value: "platform", Team: "research", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}},
		{Claim: "groups", Value: "staff", Team: "research", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}},
		{Claim: "email", Value: "*@example.com", Team: "guests", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}},
	}
}

// withSSO has people sign in by a provider.
func withSSO(t *testing.T, p *oidctest.Provider, change func(*config.Config)) func(*config.Config) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(oidctest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *config.Config) {
		c.SSO.Name, c.SSO.Issuer, c.SSO.ClientID, c.SSO.ClientSecretFile, c.SSO.Rules = "Example", p.Issuer, "cove", file, ssoRules()
		if change != nil {
			change(c)
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
	}
}

// beginSSO begins to sign in as a browser does, and returns where it is sent and the
// cookie that it has then.
func (r *running) beginSSO(t *testing.T, header ...string) (to, cookie string) {
	t.Helper()
	resp, text := r.request(t, "POST", "/console/sso", script(header...), "")
	var start console.SignOnStart
	if err := json.Unmarshal([]byte(text), &start); err != nil || resp.StatusCode != 200 || len(resp.Cookies()) != 1 {
		t.Fatalf("begin: %s %s, %v", resp.Status, text, err)
	}
	return start.URL, strings.Split(resp.Header.Get("Set-Cookie"), ";")[0]
}

// comeBack is what a browser does that the provider has sent back.
func (r *running) comeBack(t *testing.T, to *url.URL, cookie string) (*http.Response, string) {
	t.Helper()
	return r.request(t, "GET", to.RequestURI(), map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, "")
}

// signOn signs somebody in, and returns the cookie of the session.
func (r *running) signOn(t *testing.T, user string) string {
	t.Helper()
	to, cookie := r.beginSSO(t)
	resp, text := r.comeBack(t, oidctest.SignIn(t, to, user), cookie)
	for _, c := range resp.Cookies() {
		if c.Name == "cove_console" && resp.StatusCode == 303 {
			return c.Name + "=" + c.Value
		}
	}
	t.Fatalf("sign in %s: %s %s", user, resp.Status, text)
	return ""
}

// state returns the session of a cookie.
func (r *running) state(t *testing.T, cookie string) console.SessionState {
	t.Helper()
	resp, text := r.request(t, "GET", "/console/session", script("Cookie", cookie), "")
	var state console.SessionState
	if err := json.Unmarshal([]byte(text), &state); err != nil || resp.StatusCode != 200 {
		t.Fatalf("the session: %s %s", resp.Status, text)
	}
	return state
}

func TestSSO(t *testing.T) {
	p := oidctest.Start(t)
	r := mustStart(t, withSSO(t, p, nil))
	if _, text := r.request(t, "GET", "/console/sso", nil, ""); text != `{"name":"Example"}` {
		t.Errorf("the page for signing in is told %s", text)
	}

	resp, text := r.request(t, "POST", "/console/sso", script(), "")
	line := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"cove_console_sso=", "; Path=/", "; HttpOnly", "; SameSite=Lax"} {
		if !strings.Contains(line, want) {
			t.Errorf("the cookie %q is without %q", line, want)
		}
	}
	var start console.SignOnStart
	if err := json.Unmarshal([]byte(text), &start); err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(start.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := to.Query()
	for name, want := range map[string]string{
		"response_type": "code", "client_id": "cove", "redirect_uri": "http://" + r.tcp.String() + "/console/sso/callback",
		"scope": "openid email profile", "code_challenge_method": "S256",
	} {
		if q.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, q.Get(name), want)
		}
	}
	token := strings.TrimPrefix(strings.Split(line, ";")[0], "cove_console_sso=")
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		if len(q.Get(name)) != 43 || strings.Contains(start.URL, token) {
			t.Errorf("%s is %q", name, q.Get(name))
		}
	}

	resp, text = r.comeBack(t, oidctest.SignIn(t, start.URL, "alice"), strings.Split(line, ";")[0])
	if resp.StatusCode != 303 || resp.Header.Get("Location") != "/console/" {
		t.Fatalf("come back: %s %s", resp.Status, text)
	}
	lines := resp.Header.Values("Set-Cookie")
	if len(lines) != 2 || !strings.Contains(lines[0], "cove_console_sso=; ") || !strings.Contains(lines[0], "Max-Age=0") ||
		!strings.Contains(lines[1], "cove_console=") || !strings.Contains(lines[1], "SameSite=Strict") || !strings.Contains(lines[1], "HttpOnly") {
		t.Errorf("the cookies are %q", lines)
	}
	alice := strings.Split(lines[1], ";")[0]
	state := r.state(t, alice)
	if state.KeyID != "sso:alice@example.com" || state.KeyName != "alice@example.com" || state.Local || state.Team != "research" || !slices.Equal(state.Scopes, []sandbox.Scope{sandbox.ScopeAdmin}) ||
		state.ExpiresAt == nil || time.Until(*state.ExpiresAt) > 12*time.Hour {
		t.Errorf("alice's session is %+v", state)
	}

	// What she does is hers in the audit record.
	if resp, text := r.request(t, "POST", "/v1/sandboxes", script("Cookie", alice), `{"name":"hers"}`); resp.StatusCode != 201 {
		t.Errorf("create: %s %s", resp.Status, text)
	}
	_, text = r.request(t, "GET", "/v1/audit", script("Cookie", alice), "")
	var audit sandbox.List[sandbox.AuditEvent]
	if err := json.Unmarshal([]byte(text), &audit); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, e := range audit.Items {
		if e.KeyID == "sso:alice@example.com" && e.Team == "research" {
			said[e.Action] = e.Detail
		}
	}
	if want := state.ID + ", subject alice of " + p.Issuer; said["console.sign_in"] != want {
		t.Errorf("signing in is recorded as %q, want %q", said["console.sign_in"], want)
	}
	if _, ok := said["sandbox.create"]; !ok {
		t.Errorf("recorded of alice: %v", said)
	}

	// The first rule counts that somebody fulfils, and scopes hold.
	bob := r.signOn(t, "bob")
	if got := r.state(t, bob); got.Team != "research" || !slices.Equal(got.Scopes, []sandbox.Scope{sandbox.ScopeSandboxesRead}) {
		t.Errorf("bob's session is %+v", got)
	}
	if resp, text := r.request(t, "POST", "/v1/sandboxes", script("Cookie", bob), `{}`); resp.StatusCode != 403 {
		t.Errorf("bob makes a sandbox: %s %s", resp.Status, text)
	}
	if resp, text := r.request(t, "GET", "/v1/sandboxes", script("Cookie", bob), ""); resp.StatusCode != 200 || !strings.Contains(text, `"hers"`) {
		t.Errorf("bob looks: %s %s", resp.Status, text)
	}
	erin := r.signOn(t, "erin")
	if got := r.state(t, erin); got.KeyID != "sso:subject:erin" || got.KeyName != "erin" {
		t.Errorf("erin's session is %+v", got)
	}

	// Sessions are listed with the person, and ended like others.
	_, text = r.request(t, "GET", "/console/sessions", script("Cookie", alice), "")
	var sessions sandbox.List[sandbox.ConsoleSession]
	if err := json.Unmarshal([]byte(text), &sessions); err != nil || len(sessions.Items) != 3 {
		t.Fatalf("sessions: %s", text)
	}
	for _, s := range sessions.Items {
		if s.Person == nil || s.Person.Issuer != p.Issuer || s.KeyID != s.Person.Actor() {
			t.Errorf("a session is listed as %+v", s)
		}
		if s.KeyID == "sso:bob@example.com" {
			if got := r.status(t, "DELETE", "/console/sessions/"+s.ID, alice); got != 204 {
				t.Errorf("end bob's session: %d", got)
			}
		}
	}
	if got := r.status(t, "GET", "/v1/sandboxes", bob); got != 401 {
		t.Errorf("bob after that: %d", got)
	}
	if got := r.status(t, "DELETE", "/console/session", erin); got != 204 {
		t.Errorf("erin signs out: %d", got)
	}
	if got := r.status(t, "GET", "/v1/sandboxes", erin); got != 401 {
		t.Errorf("erin after that: %d", got)
	}
}

// Some providers say all in the ID token, others at another address only.
func TestSSOClaimsOfIDToken(t *testing.T) {
	p := oidctest.Start(t)
	r := mustStart(t, withSSO(t, p, func(c *config.Config) { c.SSO.ClientID = "whole" }))
	p.Change("/userinfo", func([]byte) []byte { return []byte("{}") })
	if got := r.state(t, r.signOn(t, "alice")); got.KeyID != "sso:alice@example.com" || got.Team != "research" {
		t.Errorf("alice's session is %+v", got)
	}
}

func TestSSORefuses(t *testing.T) {
	p, other := oidctest.Start(t), oidctest.Start(t)
	r := mustStart(t, withSSO(t, p, nil))
	elsewhere := mustStart(t, withSSO(t, other, nil))
	another := mustStart(t, withSSO(t, p, func(c *config.Config) { c.SSO.ClientID = "whole" }))
	with := func(back *url.URL, set ...string) *url.URL {
		q := back.Query()
		for i := 0; i < len(set); i += 2 {
			if q.Set(set[i], set[i+1]); set[i+1] == "" {
				q.Del(set[i])
			}
		}
		return &url.URL{Scheme: back.Scheme, Host: back.Host, Path: back.Path, RawQuery: q.Encode()}
	}
	edit := func(to string, set ...string) string {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		return with(u, set...).String()
	}
	discovery := "/.well-known/openid-configuration"
	for _, c := range []struct {
		name string
		// come returns with what the browser comes back.
		come   func(t *testing.T, to, cookie string) (*url.URL, string)
		status int
		says   []string
	}{
		{"nobody's rule", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return oidctest.SignIn(t, to, "dave"), cookie
		},
			403, []string{"Example has signed you in as dave@elsewhere.test", "no rule", `groups (which is &#34;ops&#34;, &#34;&lt;script&gt;`, `email (which is &#34;dave@elsewhere.test&#34;)`}},
		{"address that is not verified", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return oidctest.SignIn(t, to, "carol"), cookie
		}, 403, []string{"signed you in as carol,", "groups (which is missing)", "email (which is not verified)"}},
		{"no cookie", func(t *testing.T, to, _ string) (*url.URL, string) { return oidctest.SignIn(t, to, "alice"), "" },
			403, []string{"his browser has not begun"}},
		{"a made-up cookie", func(t *testing.T, to, _ string) (*url.URL, string) {
			return oidctest.SignIn(t, to, "alice"), "cove_console_sso=" + strings.Repeat("A", 54)
		}, 403, []string{"of another browser"}},
		{"two cookies", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return oidctest.SignIn(t, to, "alice"), cookie + "; " + cookie
		}, 403, []string{"his browser has not begun"}},
		{"another browser's state", func(t *testing.T, to, _ string) (*url.URL, string) {
			_, theirs := r.beginSSO(t)
			return oidctest.SignIn(t, to, "alice"), theirs
		}, 403, []string{"of another browser"}},
		{"no state", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return with(oidctest.SignIn(t, to, "alice"), "state", ""), cookie
		}, 403, []string{"of another browser"}},
		{"two states", func(t *testing.T, to, cookie string) (*url.URL, string) {
			back := oidctest.SignIn(t, to, "alice")
			back.RawQuery += "&state=x"
			return back, cookie
		}, 400, []string{"state twice"}},
		{"a replay", func(t *testing.T, to, cookie string) (*url.URL, string) {
			back := oidctest.SignIn(t, to, "alice")
			if resp, text := r.comeBack(t, back, cookie); resp.StatusCode != 303 {
				t.Fatalf("the first time: %s %s", resp.Status, text)
			}
			return back, cookie
		}, 403, []string{"used already"}},
		{"another sign-in's code", func(t *testing.T, to, cookie string) (*url.URL, string) {
			theirs, _ := r.beginSSO(t)
			back := oidctest.SignIn(t, theirs, "alice")
			u, err := url.Parse(to)
			if err != nil {
				t.Fatal(err)
			}
			return with(back, "state", u.Query().Get("state")), cookie
		}, 403, []string{"does not take the code", "invalid_grant"}},
		{"no code", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return with(oidctest.SignIn(t, to, "alice"), "code", ""), cookie
		}, 400, []string{"no code"}},
		{"another issuer's answer", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return with(oidctest.SignIn(t, to, "alice"), "iss", other.Issuer), cookie
		}, 403, []string{"not of Example"}},
		{"another issuer's ID token", func(t *testing.T, to, cookie string) (*url.URL, string) {
			var theirs []byte
			other.Change("/oauth/token", func(answer []byte) []byte { theirs = bytes.Clone(answer); return answer })
			elsewhere.signOn(t, "alice")
			p.Change("/oauth/token", func([]byte) []byte { return theirs })
			return oidctest.SignIn(t, to, "alice"), cookie
		}, 403, []string{"cannot be verified"}},
		{"another program's ID token", func(t *testing.T, to, cookie string) (*url.URL, string) {
			var theirs []byte
			p.Change("/oauth/token", func(answer []byte) []byte { theirs = bytes.Clone(answer); return answer })
			another.signOn(t, "alice")
			p.Change("/oauth/token", func([]byte) []byte { return theirs })
			return oidctest.SignIn(t, to, "alice"), cookie
		}, 403, []string{"cannot be verified"}},
		{"an ID token of before", func(t *testing.T, to, cookie string) (*url.URL, string) {
			var before []byte
			p.Change("/oauth/token", func(answer []byte) []byte { before = bytes.Clone(answer); return answer })
			r.signOn(t, "alice")
			p.Change("/oauth/token", func([]byte) []byte { return before })
			return oidctest.SignIn(t, to, "bob"), cookie
		}, 403, []string{"its nonce is another"}},
		{"no nonce", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return oidctest.SignIn(t, edit(to, "nonce", ""), "alice"), cookie
		}, 403, []string{"has no nonce"}},
		{"no ID token", func(t *testing.T, to, cookie string) (*url.URL, string) {
			p.Change("/oauth/token", func(answer []byte) []byte {
				return bytes.Replace(answer, []byte(`"id_token"`), []byte(`"is_token"`), 1)
			})
			return oidctest.SignIn(t, to, "alice"), cookie
		}, 403, []string{"says nobody"}},
		{"somebody else's details", func(t *testing.T, to, cookie string) (*url.URL, string) {
			p.Change("/userinfo", func(answer []byte) []byte {
				return bytes.Replace(answer, []byte(`"sub":"bob"`), []byte(`"sub":"alice"`), 1)
			})
			return oidctest.SignIn(t, to, "bob"), cookie
		}, 403, []string{"names somebody else"}},
		{"somebody who has declined", func(t *testing.T, to, cookie string) (*url.URL, string) {
			return with(oidctest.SignIn(t, to, "alice"), "code", "", "error", "access_denied", "error_description", "<b>no</b>\nno"), cookie
		}, 403, []string{"Example has not signed you in: access_denied (&lt;b&gt;no&lt;/b&gt; no)"}},
		{"a provider that breaks off", func(t *testing.T, to, cookie string) (*url.URL, string) {
			back := oidctest.SignIn(t, to, "alice")
			p.Down(true)
			return back, cookie
		}, 503, []string{"Example does not answer", "API key"}},
		{"endless details", func(t *testing.T, to, cookie string) (*url.URL, string) {
			p.Change("/userinfo", func([]byte) []byte {
				return append([]byte(`{"sub":"alice","a":"`), bytes.Repeat([]byte("a"), 2<<20)...)
			})
			return oidctest.SignIn(t, to, "alice"), cookie
		}, 503, []string{"does not answer as it should"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				p.Down(false)
				for _, path := range []string{"/oauth/token", "/userinfo", discovery} {
					p.Change(path, nil)
				}
			}()
			to, cookie := r.beginSSO(t)
			back, cookie := c.come(t, to, cookie)
			resp, text := r.comeBack(t, back, cookie)
			if resp.StatusCode != c.status || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" || strings.Contains(resp.Header.Get("Set-Cookie"), "cove_console=") {
				t.Errorf("%s %q %s", resp.Status, resp.Header["Set-Cookie"], text)
			}
			if strings.Contains(text, "<script") || strings.Contains(text, "<b>") || !strings.Contains(text, `href="/console/"`) {
				t.Errorf("the page is %s", text)
			}
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("the page does not say %q: %s", want, text)
				}
			}
		})
	}
}

// What the provider says of itself is not believed if it would send secrets in the open.
func TestSSOProviderOfBadWords(t *testing.T) {
	for name, change := range map[string]struct{ from, to, says string }{
		"another issuer":       {`"issuer":"http://127.0.0.1`, `"issuer":"http://localhost`, "does not answer as it should"},
		"a token address":      {`"token_endpoint":"http://127.0.0.1`, `"token_endpoint":"http://login.example`, "does not answer as it should"},
		"an address of people": {`"authorization_endpoint":"http`, `"authorization_endpoint":"javascript`, "does not answer as it should"},
	} {
		t.Run(name, func(t *testing.T) {
			p := oidctest.Start(t)
			changed := false
			p.Change("/.well-known/openid-configuration", func(answer []byte) []byte {
				now := bytes.Replace(answer, []byte(change.from), []byte(change.to), 1)
				changed = !bytes.Equal(now, answer)
				return now
			})
			r := mustStart(t, withSSO(t, p, nil))
			resp, text := r.request(t, "POST", "/console/sso", script(), "")
			if resp.StatusCode != 503 || !strings.Contains(text, change.says) || resp.Header.Get("Set-Cookie") != "" || !changed {
				t.Errorf("%s %s, changed %v", resp.Status, text, changed)
			}
		})
	}
}

// A provider that says its name in each answer has to do so.
func TestSSOIssuerInEachAnswer(t *testing.T) {
	p := oidctest.Start(t)
	p.Change("/.well-known/openid-configuration", func(answer []byte) []byte {
		return append([]byte(`{"authorization_response_iss_parameter_supported":true,`), answer[1:]...)
	})
	r := mustStart(t, withSSO(t, p, nil))
	to, cookie := r.beginSSO(t)
	if resp, text := r.comeBack(t, oidctest.SignIn(t, to, "alice"), cookie); resp.StatusCode != 403 || !strings.Contains(text, "not of Example") {
		t.Errorf("without: %s %s", resp.Status, text)
	}
	to, cookie = r.beginSSO(t)
	back := oidctest.SignIn(t, to, "alice")
	back.RawQuery += "&iss=" + url.QueryEscape(p.Issuer)
	if resp, text := r.comeBack(t, back, cookie); resp.StatusCode != 303 {
		t.Errorf("with it: %s %s", resp.Status, text)
	}
}

func TestSSOExpiredToken(t *testing.T) {
	r := mustStart(t, withSSO(t, oidctest.Start(t), func(c *config.Config) { c.SSO.ClientID = "late" }))
	to, cookie := r.beginSSO(t)
	if resp, text := r.comeBack(t, oidctest.SignIn(t, to, "alice"), cookie); resp.StatusCode != 403 || !strings.Contains(text, "has expired") {
		t.Errorf("%s %s", resp.Status, text)
	}
}

func TestSSOWrongSecret(t *testing.T) {
	t.Setenv("COVE_SSO_CLIENT_SECRET", "not the secret")
	r := mustStart(t, withSSO(t, oidctest.Start(t), func(c *config.Config) { c.SSO.ClientSecretFile = "" }))
	to, cookie := r.beginSSO(t)
	resp, text := r.comeBack(t, oidctest.SignIn(t, to, "alice"), cookie)
	if resp.StatusCode != 503 || !strings.Contains(text, "client id and secret") || strings.Contains(text, "not the secret") {
		t.Errorf("%s %s", resp.Status, text)
	}
	if _, err := start(t, withSSO(t, oidctest.Start(t), nil)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("with a secret in the file and another in the environment: %v", err)
	}
}

// The server starts while the provider is away, and people can sign in as soon as it is
// there.
func TestSSOProviderDown(t *testing.T) {
	p := oidctest.Start(t)
	p.Down(true)
	r := mustStart(t, withSSO(t, p, nil))
	resp, text := r.request(t, "POST", "/console/sso", script(), "")
	if resp.StatusCode != 503 || !strings.Contains(text, "Example does not answer") {
		t.Errorf("%s %s", resp.Status, text)
	}
	if key := r.key(t, sandbox.CreateKeyRequest{Name: "k"}); r.signIn(t, console.SignIn{Key: key.Secret}) == "" {
		t.Error("nobody can sign in with a key")
	}
}

func TestSSOBegin(t *testing.T) {
	r := mustStart(t, withSSO(t, oidctest.Start(t), nil))
	for name, c := range map[string]struct {
		header map[string]string
		status int
		says   string
	}{
		"a page of another site":    {map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403, "other sites"},
		"a page of another port":    {map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403, "other sites"},
		"no page":                   {nil, 403, "own pages"},
		"another name of this host": {script("Host", "localhost:1"), 400, "open the console at http://" + r.tcp.String() + "/console/"},
	} {
		resp, text := r.request(t, "POST", "/console/sso", c.header, "")
		if resp.StatusCode != c.status || !strings.Contains(text, c.says) || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s %s", name, resp.Status, text)
		}
	}
	none := mustStart(t, nil)
	if _, text := none.request(t, "GET", "/console/sso", nil, ""); text != `{"name":""}` {
		t.Errorf("without single sign-on the page is told %s", text)
	}
	for _, method := range []string{"POST", "GET"} {
		path := map[string]string{"POST": "/console/sso", "GET": "/console/sso/callback?state=x&code=y"}[method]
		if resp, text := none.request(t, method, path, script(), ""); resp.StatusCode != 404 || !strings.Contains(text, "no single sign-on") {
			t.Errorf("%s without single sign-on: %s %s", method, resp.Status, text)
		}
	}
}

// Answers that are refused are limited for each address.
func TestSSOTries(t *testing.T) {
	r := mustStart(t, withSSO(t, oidctest.Start(t), nil))
	statuses := map[int]int{}
	for range 70 {
		resp, _ := r.request(t, "GET", "/console/sso/callback?state=x&code=y", nil, "")
		statuses[resp.StatusCode]++
	}
	if statuses[403] < 60 || statuses[429] == 0 {
		t.Errorf("of 70 tries: %v", statuses)
	}
}

// Behind a proxy that speaks HTTPS the cookies are for HTTPS, though the request that
// comes back says nothing of it.
func TestSSOBehindAProxy(t *testing.T) {
	r := mustStart(t, withSSO(t, oidctest.Start(t), func(c *config.Config) {
		c.AllowedHosts, c.SSO.RedirectURL = []string{"cove.example"}, "https://cove.example/console/sso/callback"
	}))
	resp, text := r.request(t, "POST", "/console/sso", script("Host", "cove.example", "Origin", "https://cove.example"), "")
	line := resp.Header.Get("Set-Cookie")
	if !strings.HasPrefix(line, "__Host-cove_console_sso=") || !strings.Contains(line, "; Secure") || !strings.Contains(text, url.QueryEscape("https://cove.example/console/sso/callback")) {
		t.Errorf("begin: %s %s, cookie %q", resp.Status, text, line)
	}
	// One that a page of plain HTTP could have set does not count.
	resp, text = r.request(t, "GET", "/console/sso/callback?state=x&code=y", map[string]string{"Host": "cove.example", "Cookie": strings.TrimPrefix(strings.Split(line, ";")[0], "__Host-")}, "")
	if resp.StatusCode != 403 || !strings.Contains(text, "not begun") || !strings.HasPrefix(resp.Header.Get("Set-Cookie"), "__Host-cove_console_sso=; ") {
		t.Errorf("the other cookie: %s %s %q", resp.Status, text, resp.Header["Set-Cookie"])
	}
}

// Rules that the server has later count for sessions that there are: what they take away
// is away.
func TestSSORulesChange(t *testing.T) {
	p := oidctest.Start(t)
	r := mustStart(t, withSSO(t, p, nil))
	alice, bob := r.signOn(t, "alice"), r.signOn(t, "bob")
	next := func(change func(*config.Config)) {
		t.Helper()
		dir := r.cfg.StateDir
		listen := r.tcp.String()
		r.end(t)
		r = mustStart(t, func(c *config.Config) {
			withSSO(t, p, change)(c)
			c.StateDir, c.Listen = dir, listen
		})
	}
	next(func(c *config.Config) {
		c.SSO.Rules = c.SSO.Rules[:1]
		c.SSO.Rules[0].Scopes = []sandbox.Scope{sandbox.ScopeSandboxesRead}
	})
	if got := r.state(t, alice); !slices.Equal(got.Scopes, []sandbox.Scope{sandbox.ScopeSandboxesRead}) {
		t.Errorf("alice may still %v", got.Scopes)
	}
	if got := r.status(t, "GET", "/console/session", bob); got != 401 {
		t.Errorf("bob, of whom no rule speaks any more: %d", got)
	}
	next(func(c *config.Config) { c.SSO.Rules[0].Team = "others" })
	if got := r.status(t, "GET", "/console/session", alice); got != 401 {
		t.Errorf("alice, who would be of another team: %d", got)
	}
	next(func(c *config.Config) { c.SSO = config.Default(func(string) string { return "" }).SSO })
	if got := r.status(t, "GET", "/console/session", alice); got != 401 {
		t.Errorf("alice, without single sign-on: %d", got)
	}
}
