package sso

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

func TestFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlows()
		a, b := f.begin(), f.begin()
		seen := map[string]bool{}
		for _, s := range []string{a.token, a.state, a.nonce, a.verifier, b.token, b.state, b.nonce, b.verifier} {
			if seen[s] || len(s) < 43 {
				t.Errorf("%q is short, or twice there", s)
			}
			seen[s] = true
		}
		if got, err := f.end(a.token, a.state); err != nil || got != a {
			t.Errorf("ended as %+v, %v; begun as %+v", got, err, a)
		}
		later := []byte(b.token)
		if last := &later[len(later)-1]; *last == 'A' {
			*last = 'Q'
		} else {
			*last = 'A'
		}
		for name, c := range map[string]struct {
			by           *flows
			token, state string
		}{
			"a second time":         {f, a.token, a.state},
			"another state":         {f, b.token, a.state},
			"no state":              {f, b.token, ""},
			"no token":              {f, "", b.state},
			"another end":           {f, string(later), b.state},
			"a token of no length":  {f, base64.RawURLEncoding.EncodeToString([]byte("short")), b.state},
			"another process's key": {newFlows(), b.token, b.state},
		} {
			if got, err := c.by.end(c.token, c.state); sandbox.CodeOf(err) != sandbox.CodeForbidden {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		time.Sleep(flowTime)
		if _, err := f.end(b.token, b.state); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated || !strings.Contains(err.Error(), "10 minutes") {
			t.Errorf("after its time: %v", err)
		}
		// The memory for completed sign-ins is bounded, and is freed.
		for range maxUsed - 1 {
			one := f.begin()
			if _, err := f.end(one.token, one.state); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		one := f.begin()
		if _, err := f.end(one.token, one.state); err != nil {
			t.Fatalf("the flow of before is still there: %v", err)
		}
		one = f.begin()
		if _, err := f.end(one.token, one.state); sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
			t.Errorf("one more than there may be: %v", err)
		}
		time.Sleep(flowTime)
		one = f.begin()
		if _, err := f.end(one.token, one.state); err != nil {
			t.Errorf("a while later: %v", err)
		}
	})
}

// TestRefusedAnswersTakeNoMemory checks that refused responses, which anybody can bring,
// take no memory.
func TestRefusedAnswersTakeNoMemory(t *testing.T) {
	p := New(Config{Name: "Example", Issuer: "https://login.example", Log: slog.New(slog.DiscardHandler)})
	defer p.Close()
	p.found.at, p.found.until = &metadata{}, time.Now().Add(time.Hour)
	f := p.flows.begin()
	for _, answer := range []url.Values{{"error": {"access_denied"}}, {"iss": {"https://other.example"}}, {}} {
		answer.Set("state", f.state)
		person, err := p.Finish(t.Context(), f.token, answer)
		if person != nil || err == nil || strings.Contains(err.Error(), "already") || len(p.flows.used) > 0 {
			t.Errorf("%v: %v, %v; %d are remembered", answer, person, err, len(p.flows.used))
		}
	}
}

func TestRules(t *testing.T) {
	rules := []Rule{
		{Claim: "groups", Value: "platform", Team: "a"},
		{Claim: "email", Value: "Ann@Example.com", Team: "b"},
		{Claim: "email", Value: "*@example.com", Team: "c"},
		{Claim: "admin", Value: "true", Team: "d"},
		{Claim: "https://example.com/role", Value: "ops", Team: "e"},
	}
	for _, c := range []struct {
		name   string
		claims claimSet
		team   string
	}{
		{"nothing", claimSet{}, ""},
		{"a group", claimSet{"groups": []any{"x", "platform"}}, "a"},
		{"a text", claimSet{"groups": "platform"}, "a"},
		{"part of a text", claimSet{"groups": "platforms"}, ""},
		{"a number in a list", claimSet{"groups": []any{7, map[string]any{"platform": true}}}, ""},
		{"a group named otherwise", claimSet{"groups": []any{"Platform"}}, ""},
		{"an address", claimSet{"email": "ann@EXAMPLE.com", "email_verified": true}, "b"},
		{"a verified text", claimSet{"email": "bob@example.com", "email_verified": "true"}, "c"},
		{"an address that nobody has verified", claimSet{"email": "ann@example.com"}, ""},
		{"one that is not", claimSet{"email": "ann@example.com", "email_verified": false}, ""},
		{"a number for true", claimSet{"email": "ann@example.com", "email_verified": 1}, ""},
		{"a subdomain", claimSet{"email": "ann@x.example.com", "email_verified": true}, ""},
		{"a longer domain", claimSet{"email": "ann@notexample.com", "email_verified": true}, ""},
		{"two at signs", claimSet{"email": "x@evil.test@example.com", "email_verified": true}, ""},
		{"letters of another script", claimSet{"email": "аnn@example.com", "email_verified": true}, ""},
		{"a list of addresses", claimSet{"email": []any{"ann@example.com"}, "email_verified": true}, ""},
		{"what is true", claimSet{"admin": true}, "d"},
		{"a claim with a long name", claimSet{"https://example.com/role": "ops"}, "e"},
		{"the first rule counts", claimSet{"groups": "platform", "email": "ann@example.com", "email_verified": true}, "a"},
	} {
		p := c.claims.person("https://login.example", "1", rules)
		got := ""
		if r := ruleFor(rules, p); r != nil {
			got = r.Team
		}
		if got != c.team {
			t.Errorf("%s: team %q, want %q", c.name, got, c.team)
		}
	}
	p := claimSet{"groups": []any{"platform", "secret project"}, "email": "ann@example.com", "email_verified": true, "phone": "1"}.person("https://login.example", "1", rules)
	want := &sandbox.Person{Issuer: "https://login.example", Subject: "1", Email: "ann@example.com", Claims: []sandbox.Claim{
		{Name: "groups", Value: "platform"}, {Name: "email", Value: "Ann@Example.com"}, {Name: "email", Value: "*@example.com"},
	}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("more or less is kept than the rules ask for (-want +got):\n%s", diff)
	}
	provider := New(Config{Issuer: "https://login.example", Rules: rules})
	defer provider.Close()
	if c, err := provider.CallerOf(p); err != nil || c.Team != "a" || c.KeyID != "sso:ann@example.com" {
		t.Errorf("the caller is %+v, %v", c, err)
	}
	p.Issuer = "https://other.example"
	if _, err := provider.CallerOf(p); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
		t.Errorf("somebody of another provider: %v", err)
	}
}

func TestClaimsInErrors(t *testing.T) {
	rules := []Rule{{Claim: "groups", Value: "a"}, {Claim: "email", Value: "*@a.test"}, {Claim: "groups", Value: "b"}, {Claim: "role", Value: "x"}, {Claim: "n", Value: "1"}}
	var many []any
	for i := range 12 {
		many = append(many, fmt.Sprint("g", i, strings.Repeat("x", 200)))
	}
	got := claimSet{"groups": many, "email": "b@b.test", "n": 1}.lookedAt(rules)
	for _, want := range []string{`groups (which is "g0x`, " and 2 more); email (which is not verified); role (which is missing); n (which is empty, or no text)"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is without %q", got, want)
		}
	}
	if strings.Contains(got, "g10") || strings.Contains(got, strings.Repeat("x", 150)) || strings.Contains(got, `"a"`) || strings.Contains(got, "a.test") {
		t.Errorf("it says too much: %s", got)
	}
}

func TestSecure(t *testing.T) {
	for address, want := range map[string]bool{
		"https://login.example.com/x": true, "http://127.0.0.1:80": true, "http://localhost/x": true, "http://[::1]:1/": true,
		"http://login.example.com": false, "http://127.0.0.1.example.com": false, "ftp://localhost": false, "": false, "javascript:alert(1)": false,
		"https://": false, "https://user@login.example.com": false, "http://10.0.0.1": false,
	} {
		if secure(address) != want {
			t.Errorf("%q: %v", address, !want)
		}
	}
	m := metadata{Authorization: "https://a.test", Token: "http://127.0.0.1/t", Keys: "https://a.test"}
	if m.check("https://a.test") == nil {
		t.Error("a provider on the network sends secrets to this machine in the open")
	}
	if err := m.check("http://127.0.0.1"); err != nil {
		t.Error(err)
	}
}

func TestReadable(t *testing.T) {
	if got := readable("a\nb", "c\x1b[2Jd"); got != "a b (c [2Jd)" {
		t.Errorf("got %q", got)
	}
	if got := readable("x", strings.Repeat("y", 1000)); len(got) > 310 {
		t.Errorf("%d bytes", len(got))
	}
}
