package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// TestSecretAuth checks that a secret's rule is mapped, or refused by name.
func TestSecretAuth(t *testing.T) {
	for _, c := range []struct {
		body string
		want *sandbox.SecretAuth
		err  string
	}{
		{body: `{"type":"bearer"}`, want: &sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Bearer "}},
		{body: `{"type":"basic","username":"u"}`, want: &sandbox.SecretAuth{Type: "basic", User: "u"}},
		{body: `{"type":"basic"}`, err: "auth.username"},
		{body: `{"type":"api-key","header":"X-Key","prefix":"Token "}`, want: &sandbox.SecretAuth{Type: "header", Name: "X-Key", Prefix: "Token "}},
		{body: `{"type":"api-key"}`, err: "auth.header"},
		{body: `{"type":"bearer","header":"X"}`, err: "auth.header does not go"},
		{body: `{"type":"custom","headers":{"X-Auth":"v1 {{value}}"}}`, want: &sandbox.SecretAuth{Type: "header", Name: "X-Auth", Prefix: "v1 "}},
		{body: `{"type":"custom","headers":{"X-Auth":"{{ value }} after"}}`, err: "auth.headers"},
		{body: `{"type":"custom","headers":{"A":"{{ value }}","B":"{{ value }}"}}`, err: "auth.headers"},
		{body: `{"type":"custom"}`, err: "auth.headers"},
		{body: `{"type":"oauth"}`, err: "auth.type"},
		{body: `{"per_host":[{"hosts":["b","a"],"type":"bearer"}]}`, want: &sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Bearer "}},
		{body: `{"per_host":[{"hosts":["a"],"type":"bearer"}]}`, err: "auth.per_host"},
		{body: `{"per_host":[],"type":"bearer"}`, err: "auth.per_host excludes"},
		{body: `{"type":"bearer","scope":"x"}`, err: "scope: Cove does not know"},
	} {
		var auth secretAuth
		err := decodeJSON([]byte(c.body), &auth)
		var got *sandbox.SecretAuth
		if err == nil {
			got, err = auth.mapped([]string{"a", "b"})
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: the error is %v, want %q", c.body, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); err == nil && diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.body, diff)
		}
	}
}

// TestSecretForEveryHost refuses a secret for every host, which no sandbox could get.
func TestSecretForEveryHost(t *testing.T) {
	auth := secretAuth{authRule: authRule{Type: "bearer"}}
	if _, err := auth.mapped([]string{sandbox.AnyHost}); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "hosts") {
		t.Errorf("a secret for every host: %v", err)
	}
}

// TestDecode refuses bodies that two readers could interpret differently, or that request
// what would have no effect.
func TestDecode(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"a"}`:                                         "",
		`{"name":"a","name":"b"}`:                              "twice",
		`{"name":"a"} {}`:                                      "more after",
		`{"name":"a","preview_access":"public"}`:               "preview_access: Cove does not know",
		`{"name":"a","network":{"allow_in":["a"]}}`:            "allow_in: Cove does not know",
		`{"name":"a","timeout_seconds":1.5}`:                   "timeout_seconds",
		`{"name":`:                                             "not valid",
		`{"name":"a","metadata":{"superserve.x":""}}`:          "reserved",
		`{"name":""}`:                                          "name",
		`{"name":"a","timeout_seconds":604801}`:                "timeout_seconds",
		`{"name":"a","auto_delete_seconds":-1}`:                "auto_delete_seconds",
		`{"name":"a","from_template":"x","from_snapshot":"y"}`: "either",
	} {
		var b createBody
		err := decodeJSON([]byte(body), &b)
		if err == nil {
			err = b.check()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", body, err, want)
		}
	}
}

// TestUpdate checks that null switches a timer off, and that an absent field changes
// nothing.
func TestUpdate(t *testing.T) {
	box := &sandbox.Sandbox{Metadata: map[string]string{"old": "1", "_superserve.name": "A name", "_superserve.ports": "key-a"}}
	var off, minute, atPause int64 = 0, 60, 1
	pause := sandbox.ActionPause
	for body, want := range map[string]sandbox.UpdateRequest{
		`{"timeout_seconds":null,"auto_delete_seconds":null}`: {IdleTimeoutSeconds: &off, PausedLifetimeSeconds: &off},
		`{"timeout_seconds":60,"auto_delete_seconds":0}`:      {IdleTimeoutSeconds: &minute, OnTimeout: &pause, PausedLifetimeSeconds: &atPause},
		`{"metadata":{"new":"2"}}`:                            {Metadata: map[string]string{"new": "2", "_superserve.name": "A name", "_superserve.ports": "key-a"}},
		`{"metadata":{}}`:                                     {Metadata: map[string]string{"_superserve.name": "A name", "_superserve.ports": "key-a"}},
		`{"network":{}}`:                                      {},
	} {
		var b updateBody
		if err := decodeJSON([]byte(body), &b); err != nil || b.check() != nil {
			t.Fatalf("%s: %v, %v", body, err, b.check())
		}
		if diff := cmp.Diff(want, b.request(box)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	if err := (&updateBody{}).check(); err == nil {
		t.Error("an empty change was accepted")
	}
}

func TestExecRequest(t *testing.T) {
	for _, c := range []struct {
		body string
		want []string
		ms   int64
		err  string
	}{
		{body: `{"command":"echo a"}`, want: []string{"/bin/sh", "-c", "echo a"}, ms: 29_000},
		{body: `{"command":"ls","args":["-l","/a b"],"timeout_s":900}`, want: []string{"ls", "-l", "/a b"}, ms: 900_000},
		{body: `{"command":""}`, err: "command"},
		{body: `{"command":"a","working_dir":"b"}`, err: "working_dir"},
		{body: `{"command":"a","timeout_s":0}`, err: "timeout_s"},
		{body: `{"command":"a","timeout_s":99999}`, err: "timeout_s"},
		{body: `{"command":"a","user":"b"}`, err: "user: Cove does not know"},
	} {
		var b execBody
		err := decodeJSON([]byte(c.body), &b)
		var req sandbox.ExecRequest
		if err == nil {
			req, err = b.request(defaultTimeout)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: the error is %v, want %q", c.body, err, c.err)
		}
		if err == nil && (cmp.Diff(c.want, req.Command) != "" || req.TimeoutMS != c.ms) {
			t.Errorf("%s: got %q within %d ms", c.body, req.Command, req.TimeoutMS)
		}
	}
}

// TestFailure checks that the reason of a failed build has a code that clients read.
func TestFailure(t *testing.T) {
	for reason, want := range map[string]string{
		"step 2 of 3 (run): it failed with exit code 5": "step_failed: step 2 of 3 (run): it failed with exit code 5",
		"the registry does not answer":                  "build_failed: the registry does not answer",
	} {
		if got := failure(reason); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
