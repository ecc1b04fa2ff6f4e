package native

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

func TestCorrect(t *testing.T) {
	schema := argumentSchema(reflect.TypeFor[execArgs](), "sandbox_exec")
	for _, tt := range []struct{ name, args, want string }{
		{"right as it is", `{"sandbox": "7", "timeout_ms": 5}`, `{"sandbox": "7", "timeout_ms": 5}`},
		{"integer", `{"sandbox":"7","timeout_ms":"5000"}`, `{"sandbox":"7","timeout_ms":5000}`},
		{"boolean", `{"background":"true"}`, `{"background":true}`},
		{"line", `{"command":"ls -la | wc"}`, `{"shell":"ls -la | wc"}`},
		{"line, shell null", `{"command":"ls","shell":null}`, `{"shell":"ls"}`},
		{"line beside shell", `{"command":"ls","shell":"pwd"}`, `{"command":"ls","shell":"pwd"}`},
		{"empty line", `{"command":""}`, `{"command":""}`},
		{"fraction", `{"timeout_ms":"5.5"}`, `{"timeout_ms":"5.5"}`},
		{"unit", `{"timeout_ms":"5s"}`, `{"timeout_ms":"5s"}`},
		{"hexadecimal", `{"timeout_ms":"0x10"}`, `{"timeout_ms":"0x10"}`},
		{"leading zero", `{"timeout_ms":"010"}`, `{"timeout_ms":"010"}`},
		{"too many digits", `{"timeout_ms":"1234567890123456"}`, `{"timeout_ms":"1234567890123456"}`},
		{"other spelling of true", `{"background":"yes"}`, `{"background":"yes"}`},
		{"deep", `{"env":{"timeout_ms":"5"}}`, `{"env":{"timeout_ms":"5"}}`},
		{"unknown", `{"nope":"5"}`, `{"nope":"5"}`},
		{"fraction of zeros", `{"timeout_ms":5000.0}`, `{"timeout_ms":5000}`},
		{"list in a string", `{"command":"[\"ls\", \"-la\"]"}`, `{"command":["ls","-la"]}`},
		{"no list in a string", `{"command":"[ -e x ] && ls"}`, `{"shell":"[ -e x ] \u0026\u0026 ls"}`},
		{"object in a string", `{"env":"{\"PORT\": 8080}"}`, `{"env":{"PORT":"8080"}}`},
		{"numbers in a map of strings", `{"env":{"A":1,"B":true,"C":1.5,"D":"x","E":[1],"F":1e3}}`, `{"env":{"A":"1","B":"true","C":"1.5","D":"x","E":[1],"F":1e3}}`},
		{"number for a string", `{"stdin":5}`, `{"stdin":5}`},
		{"not an object", `["5"]`, `["5"]`},
	} {
		if got := string(correct(schema, json.RawMessage(tt.args))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Nested values are corrected too.
func TestCorrectNested(t *testing.T) {
	schema := argumentSchema(reflect.TypeFor[createArgs](), "sandbox_create")
	for args, want := range map[string]string{
		`{"network":{"allow_out":"pypi.org","max_connections":"5"}}`:               `{"network":{"allow_out":["pypi.org"],"max_connections":5}}`,
		`{"network":"{\"preset\":\"none\"}","ports":[{"host":"0","guest":80}]}`:    `{"network":{"preset":"none"},"ports":[{"host":0,"guest":80}]}`,
		`{"network":{"allow_out":""},"mounts":"[{\"target\":\"/data\"}]","x":"5"}`: `{"network":{"allow_out":""},"mounts":[{"target":"/data"}],"x":"5"}`,
		`{"network":"none"}`: `{"network":"none"}`,
	} {
		got := correct(schema, json.RawMessage(args))
		var g, w any
		if json.Unmarshal(got, &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !reflect.DeepEqual(g, w) {
			t.Errorf("%s became %s, want %s", args, got, want)
		}
	}
}

// Every tool of the dialect takes arguments whose meaning is certain.
func TestLenientCall(t *testing.T) {
	svc := &slow{}
	c := &dialect.Call{
		Service: svc, Args: json.RawMessage(`{"sandbox":"s","command":"ls -la","timeout_ms":"70000"}`),
		Status: func(string) {}, Output: func(dialect.Output) {}, Log: slog.New(slog.DiscardHandler),
	}
	for _, tool := range New().Tools() {
		if tool.Def.Name != "sandbox_exec" {
			continue
		}
		if res, err := dialect.Invoke(t.Context(), New(), tool, c); err != nil || res.IsError {
			t.Fatal(res, err)
		}
	}
	if svc.got.Shell != "ls -la" || svc.got.TimeoutMS != 70_000 || svc.got.Command != nil {
		t.Errorf("%+v", svc.got)
	}
}

// A corrected object is still an object, and correcting it again changes nothing.
func FuzzCorrect(f *testing.F) {
	for _, seed := range []string{`{"command":"ls"}`, `{"timeout_ms":"5"}`, `{"background":"false","x":null}`, `[]`, `{"command":"\ud800"}`} {
		f.Add([]byte(seed))
	}
	schema := argumentSchema(reflect.TypeFor[execArgs](), "sandbox_exec")
	f.Fuzz(func(t *testing.T, args []byte) {
		once := correct(schema, args)
		if json.Valid(args) && !json.Valid(once) {
			t.Fatalf("%q became %q", args, once)
		}
		if twice := correct(schema, once); string(twice) != string(once) && utf8.Valid(args) {
			t.Fatalf("%q became %q, and then %q", args, once, twice)
		}
	})
}
