package egress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

func headers(to string, set ...string) sandbox.HeaderRule {
	r := sandbox.HeaderRule{To: to, Set: map[string]string{}}
	for i := 0; i < len(set); i += 2 {
		r.Set[set[i]] = set[i+1]
	}
	return r
}

func TestCheckHeaders(t *testing.T) {
	long := strings.Repeat("x", sandbox.MaxHeaderValue)
	many := headers("a.example")
	for i := range sandbox.MaxHeaders + 1 {
		many.Set[fmt.Sprint("X-", i)] = "1"
	}
	for says, rules := range map[string][]sandbox.HeaderRule{
		"use at most 32":          make([]sandbox.HeaderRule, sandbox.MaxHeaderRules+1),
		"neither a domain":        {headers("a/b", "X", "1")},
		"single word":             {headers("internal", "X", "1")},
		"wrong place":             {headers("*", "X", "1")},
		"neither a domain nor":    {headers("1.2.3.4/8", "X", "1")},
		"already has a rule":      {headers("a.example", "X", "1"), headers("A.example.", "Y", "1")},
		"has 0 headers":           {headers("a.example")},
		"has 21 headers":          {many},
		"not a valid header name": {headers("a.example", "a b", "1")},
		"header name; use":        {headers("a.example", strings.Repeat("n", sandbox.MaxHeaderName+1), "1")},
		"how a request is sent":   {headers("a.example", "transfer-encoding", "chunked")},
		"Host controls how":       {headers("a.example", "host", "b.example")},
		"has 2049 bytes":          {headers("a.example", "X", long+"x")},
		"control characters":      {headers("a.example", "X", "a\r\nY: b")},
		"white space":             {headers("a.example", "X", "a ")},
		"X-A twice":               {headers("a.example", "x-a", "1", "X-A", "2")},
		"does not name a secret":  {headers("a.example", "X", "${secret:a b}")},
		"a ${ that does not name": {headers("a.example", "X", "${secret:a} ${other}")},
		"servers show and log":    {headers("a.example", "user-agent", "me ${secret:a}")},
	} {
		err := Check(sandbox.NetworkPolicy{Headers: rules})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\r") {
			t.Errorf("%s: %v", says, err)
		}
	}
	if err := Check(sandbox.NetworkPolicy{Headers: []sandbox.HeaderRule{headers("a.example", "X", long), headers("*.a.example", "User-Agent", "me/$1 {x}", "Authorization", "Basic ${secret:a}")}}); err != nil {
		t.Error(err)
	}
}

func TestBindHeaders(t *testing.T) {
	rules := []sandbox.HeaderRule{
		headers("API.example.", "authorization", "Bearer ${secret:gh}", "x-both", "${secret:gh}-${secret:other}"),
		headers("*.Bücher.example", "X-Plain", "$HOME"),
	}
	want := []sandbox.HeaderRule{
		headers("api.example", "Authorization", "Bearer <gh>", "X-Both", "<gh>-<other>"),
		headers("*.xn--bcher-kva.example", "X-Plain", "$HOME"),
	}
	if diff := cmp.Diff(want, BindHeaders(rules, func(secret string) string { return "<" + secret + ">" })); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string][]string{"gh": {"api.example"}, "other": {"api.example"}}, HeaderSecrets(rules)); diff != "" {
		t.Error(diff)
	}
}

func TestHeadersFor(t *testing.T) {
	rules := []sandbox.HeaderRule{headers("*.example", "X", "1"), headers("*.b.example", "X", "2"), headers("a.b.example", "X", "3")}
	for host, want := range map[string]string{"example": "", "c.example": "*.example", "b.example": "*.example", "c.b.example": "*.b.example", "a.b.example": "a.b.example", "notexample": "", "x.a.b.example": "*.b.example", "": ""} {
		got := ""
		if r := HeadersFor(rules, host); r != nil {
			got = r.To
		}
		if got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}
