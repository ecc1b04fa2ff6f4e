package sdkdoor_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
)

func TestFind(t *testing.T) {
	on := sdkdoor.On[string]
	routes := []sdkdoor.Route[string]{
		on("GET", "/boxes", "list"), on("POST", "/boxes", "make"), on("GET", "/boxes/metrics", "metrics"), on("GET", "/boxes/*", "get"), on("DELETE", "/boxes/*/of/*", "end"),
	}
	for request, want := range map[string]string{
		"GET /boxes": "list ", "POST /boxes": "make ", "PUT /boxes": "none ; GET, POST", "GET /boxes/metrics": "metrics ", "GET /boxes/a": "get a",
		"DELETE /boxes/a/of/b": "end a b", "GET /boxes/a%2Fb": "get a/b", "GET /boxes/": "none ; ", "GET /boxes/..": "none ; ", "GET /boxes/%2E": "none ; ",
		"GET //boxes": "none ; ", "GET /other": "none ; ", "HEAD /boxes/a": "none ; GET", "GET /boxes/" + strings.Repeat("a", 257): "none ; ",
	} {
		method, path, _ := strings.Cut(request, " ")
		found, args, allowed := sdkdoor.Find(routes, httptest.NewRequest(method, "http://x"+path, http.NoBody))
		got := "none ; " + allowed
		if found != nil {
			got = found.Serve + " " + strings.Join(args, " ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

func TestUnserved(t *testing.T) {
	r := httptest.NewRequest("PUT", "http://x/a", http.NoBody)
	if got, want := sdkdoor.Unserved(r, "X", "GET, POST"), "Cove does not serve PUT /a of X's API; it serves GET, POST"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r = httptest.NewRequest("GET", "http://x/"+strings.Repeat("a", 10_000), http.NoBody)
	if got := sdkdoor.Unserved(r, "X", ""); len(got) > 300 || !strings.HasSuffix(got, "see docs/compat.md for what it serves") {
		t.Errorf("%q", got)
	}
}

func TestDecodeJSON(t *testing.T) {
	for text, says := range map[string]string{
		`{"a":1}`: "", ` {"a":1} `: "", `{"a":1}}`: "more after", `{"a":1} {}`: "more after", `{"a":1,"a":2}`: "twice", "{\"a\":\"\xff\"}": limits.ErrNotUTF8.Error(),
		`{"a":"x"}`: "cannot unmarshal", `{`: "unexpected", ``: "EOF", `{"b":1}`: "unknown",
	} {
		var v struct {
			A int `json:"a"`
		}
		err := sdkdoor.DecodeJSON([]byte(text), &v)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", text, err, says)
		}
		if name, ok := sdkdoor.UnknownMember(err); ok != (says == "unknown") || ok && name != "b" {
			t.Errorf("%s: the unknown member %q", text, name)
		}
	}
}

// Only members that say nothing, and that the type lacks or has as raw JSON, are left
// out.
func TestDecodeKnown(t *testing.T) {
	type inner struct {
		A   *int              `json:"a"`
		Env map[string]string `json:"env"`
		Raw json.RawMessage   `json:"raw,omitempty"`
	}
	type outer struct {
		inner
		In   inner            `json:"in"`
		List []inner          `json:"list"`
		Map  map[string]inner `json:"map"`
	}
	for text, want := range map[string]string{
		`{"new":null,"newer":[],"raw":null}`:                                      `{"a":null,"env":null,"in":{"a":null,"env":null},"list":null,"map":null}`,
		`{"new":null,"A":12345678901,"env":{"new":"","newer":""},"raw":[null]}`:   `{"a":12345678901,"env":{"new":"","newer":""},"raw":[null],"in":{"a":null,"env":null},"list":null,"map":null}`,
		`{"in":{"new":[],"raw":{}},"list":[{"new":{}}],"map":{"new":{"b":null}}}`: `{"a":null,"env":null,"in":{"a":null,"env":null},"list":[{"a":null,"env":null}],"map":{"new":{"a":null,"env":null}}}`,
		`{"new":{"a":[]}}`: "new", `{"new":[null]}`: "new", `{"new":0}`: "new", `{"new":""}`: "new", `{"in":{"new":{"b":{}}}}`: "new", `{"list":[{"b":1}]}`: "b", `{"map":{"x":{"b":1}}}`: "b",
		`{"new":null} {`: "more after", `{"new":null,"new":null}`: "twice", `{`: "unexpected", `[]`: "cannot unmarshal",
	} {
		var v outer
		err := sdkdoor.DecodeKnown([]byte(text), &v, sdkdoor.Empty)
		name, unknown := sdkdoor.UnknownMember(err)
		got, jerr := json.Marshal(v)
		switch {
		case jerr != nil:
			t.Fatal(jerr)
		case err == nil && string(got) != want, unknown && name != want, err != nil && !unknown && !strings.Contains(err.Error(), want):
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}
