package intercept

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// headersOf makes the policy set headers, with a secret whose placeholder no program has.
func (w *harness) headersOf(b engine.Binding, rules ...sandbox.HeaderRule) {
	w.t.Helper()
	if err := w.x.Set(&engine.Network{Bindings: []engine.Binding{b}, Headers: rules}, valuesOf(map[string]string{b.Placeholder: value})); err != nil {
		w.t.Fatal(err)
	}
}

func forHeaders(hosts ...string) engine.Binding {
	return engine.Binding{
		Placeholder: placeholder, SecretID: "sec_1", Secret: "github", Hosts: hosts,
		Auth: sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Basic "},
	}
}

// TestHeaders checks that the policy's headers, with the values of secrets, replace the
// program's, only for their hosts, and that they are masked and recorded as secrets are.
func TestHeaders(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost, otherHost, "a.wild.example")
	w.headersOf(forHeaders(apiHost, "*.wild.example"),
		sandbox.HeaderRule{To: apiHost, Set: map[string]string{"Authorization": "Bearer " + placeholder, "X-Plain": "plain", "X-Twice": placeholder + "," + placeholder}},
		sandbox.HeaderRule{To: "*.wild.example", Set: map[string]string{"Authorization": "Basic " + placeholder}})
	for _, version := range []int{1, 2} {
		c := w.client(version)
		for host, want := range map[string]map[string]string{
			apiHost:          {"Authorization": "Bearer " + value, "X-Plain": "plain", "X-Twice": value + "," + value},
			"a.wild.example": {"Authorization": "Basic " + value, "X-Plain": "mine", "X-Twice": ""},
			otherHost:        {"Authorization": "own", "X-Plain": "mine", "X-Twice": ""},
		} {
			if res, _ := do(t, c, "GET", "https://"+host+"/", "", "Authorization: own", "X-Plain: mine"); res.StatusCode != 200 {
				t.Fatalf("%s: %v", host, res)
			}
			r, _, _ := g.request()
			for name, text := range want {
				if got := r.Header.Get(name); got != text || len(r.Header.Values(name)) > 1 {
					t.Errorf("HTTP/%d %s: %s is %q, want %q", version, host, name, got, text)
				}
			}
		}
	}
	for _, ev := range w.requests(4) {
		if ev.Secret != "github" || ev.Reason != "" || ev.Verdict != sandbox.NetworkAllowed {
			t.Errorf("recorded %+v", ev)
		}
	}
}

// Attack: a program names a header in Connection, for a proxy to remove it; it stays.
func TestHeadersStay(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	w.headersOf(forHeaders(apiHost), sandbox.HeaderRule{To: apiHost, Set: map[string]string{"Authorization": "Bearer " + placeholder, "X-Plain": "plain"}})
	if res := w.raw(apiHost, "GET / HTTP/1.1\r\nHost: "+apiHost+"\r\nConnection: close, authorization, X-Plain\r\nX-Plain: mine\r\n\r\n"); res.StatusCode != 200 {
		t.Fatal(res)
	}
	if r, _, _ := g.request(); r.Header.Get("Authorization") != "Bearer "+value || r.Header.Get("X-Plain") != "plain" {
		t.Errorf("sent %v", r.Header)
	}
}

// TestHeadersOfRevokedSecret checks that a revoked secret is not sent, nor a request
// without its header.
func TestHeadersOfRevokedSecret(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	b := forHeaders(apiHost)
	b.Revoked = true
	w.headersOf(b, sandbox.HeaderRule{To: apiHost, Set: map[string]string{"Authorization": "Bearer " + placeholder}})
	if res, body := do(t, w.client(1), "GET", "https://"+apiHost+"/", ""); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "credential_revoked") {
		t.Errorf("%v %s", res, body)
	}
	if r, _, _ := g.request(); r != nil {
		t.Error("the request was sent")
	}
}

// A value of a header that the host echoes is masked.
func TestHeadersAreMasked(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		_, _ = rw.Write([]byte("you sent " + r.Header.Get("Authorization")))
	}), apiHost)
	w.headersOf(forHeaders(apiHost), sandbox.HeaderRule{To: apiHost, Set: map[string]string{"Authorization": "Bearer " + placeholder}})
	res, body := do(t, w.client(1), "GET", "https://"+apiHost+"/", "")
	if strings.Contains(body+res.Header.Get("X-Echo"), value) || !strings.Contains(body, "you sent Bearer ") {
		t.Errorf("%s, %q", body, res.Header.Get("X-Echo"))
	}
}

// Attack: plain HTTP gets no header, and a client that speaks a protocol other than HTTP
// over TLS does not bypass the rule.
func TestHeadersNeedHTTPS(t *testing.T) {
	w := newHarness(t)
	var g got
	w.plainHost(&g, apiHost)
	w.headersOf(forHeaders(apiHost), sandbox.HeaderRule{To: apiHost, Set: map[string]string{"X-Plain": "plain", "Authorization": placeholder}})
	c := w.client(1)
	if res, _ := do(t, c, "GET", "http://"+apiHost+"/", ""); res.StatusCode != 200 {
		t.Fatal(res)
	}
	if r, _, _ := g.request(); r.Header.Get("Authorization") != "" || r.Header.Get("X-Plain") != "" {
		t.Errorf("sent %v", r.Header)
	}
	if err := w.x.Set(&engine.Network{Headers: []sandbox.HeaderRule{{To: apiHost, Set: map[string]string{"X-Plain": "plain"}}}}, nil); err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(w.connect(apiHost, true), &tls.Config{RootCAs: w.roots(), ServerName: apiHost, NextProtos: []string{"foreign"}})
	defer conn.Close()
	if conn.Handshake() == nil {
		t.Error("another protocol passes")
	}
	w.reason("offers no HTTP")
}
