package dialect

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

type args struct {
	Name  string            `json:"name"`
	Count int               `json:"count"`
	Deep  []map[string]bool `json:"deep"`
	Any   any               `json:"any"`
}

const schema = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "minLength": 1, "maxLength": 4},
		"count": {"type": "integer", "minimum": 0, "maximum": 10, "default": 7},
		"deep": {"type": "array", "maxItems": 2, "items": {"type": "object", "additionalProperties": {"type": "boolean"}}},
		"any": {"anyOf": [{"type": "string"}, {"type": "number"}]}
	},
	"required": ["name"],
	"additionalProperties": false
}`

func testTool() Tool {
	return New("", &mcp.Tool{Name: "t", InputSchema: json.RawMessage(schema)}, func(_ context.Context, _ *Call, in args) (*mcp.CallToolResult, error) {
		return Text("", in), nil
	})
}

func TestArguments(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	tests := []struct {
		name, args string
		want       args
		problem    string
	}{
		{"good", `{"name":"a","count":1}`, args{Name: "a", Count: 1}, ""},
		{"default", `{"name":"a"}`, args{Name: "a", Count: 7}, ""},
		{"null is missing", `{"name":"a","count":null}`, args{Name: "a", Count: 7}, ""},
		{"nothing", ``, args{}, `t: "name" is missing`},
		{"null", `null`, args{}, `t: "name" is missing`},
		{"not an object", `"x"`, args{}, `the arguments must be one JSON object`},
		{"unknown", `{"name":"a","nam":1}`, args{}, `t: unknown argument "nam"; known are `},
		{"long unknown", `{"` + long + `":1}`, args{}, `t: unknown argument "xxx`},
		{"empty", `{"name":""}`, args{}, `t: "name" must not be empty`},
		{"long", `{"name":"` + long + `"}`, args{}, `t: "name" may have at most 4 characters`},
		{"type", `{"name":1}`, args{}, `t: "name" must be a string`},
		{"fraction", `{"name":"a","count":1.5}`, args{}, `t: "count" must be an integer`},
		{"too small", `{"name":"a","count":-1}`, args{}, `t: "count" must be at least 0`},
		{"too large", `{"name":"a","count":99999999999999999999999}`, args{}, `t: "count" must be at most 10`},
		{"exponent", `{"name":"a","count":1e0}`, args{}, `t: the arguments do not match the schema; integers are written`},
		{"inside", `{"name":"a","deep":[{"k":1}]}`, args{}, `t: "deep[0].k" must be a boolean`},
		{"too many", `{"name":"a","deep":[{},{},{}]}`, args{}, `t: "deep" may have at most 2 entries`},
		{"what only the validator knows", `{"name":"a","any":[]}`, args{}, `t: the arguments do not match the schema: `},
		{"case matters", `{"Name":"a"}`, args{}, `t: unknown argument "Name"`},
		{"not UTF-8", "{\"name\":\"\xff\"}", args{}, `the arguments are not valid UTF-8`},
		{"infinite", `{"name":"a","count":1e999}`, args{}, `the arguments must be one JSON object`},
	}
	tool := testTool()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := tool.Run(t.Context(), &Call{Args: json.RawMessage(tt.args)})
			if tt.problem == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, res.StructuredContent); diff != "" {
					t.Error(diff)
				}
				return
			}
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.HasPrefix(err.Error(), tt.problem) || len(err.Error()) > 600 {
				t.Errorf("got %.700v, want %s…", err, tt.problem)
			}
		})
	}
}

func FuzzArguments(f *testing.F) {
	f.Add([]byte(`{"name":"a","count":1,"deep":[{"k":true}],"any":"x"}`))
	f.Add([]byte("{\"name\":\"\xff\"}"))
	tool := testTool()
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := tool.Run(t.Context(), &Call{Args: data})
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !utf8.ValidString(err.Error()) || len(err.Error()) > 1000 {
				t.Fatalf("%v", err)
			}
			return
		}
		if in := res.StructuredContent.(args); in.Name == "" || in.Count < 0 || in.Count > 10 {
			t.Fatalf("%q gave %+v", data, in)
		}
	})
}

func TestFailure(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want ErrorDetail
		text string
	}{
		{"domain", sandbox.Errorf(sandbox.CodeNotFound, "no such sandbox; list yours"),
			ErrorDetail{Code: "not_found", Message: "no such sandbox; list yours"}, "no such sandbox; list yours (not_found)"},
		{"retry", &sandbox.Error{Code: sandbox.CodeQuotaExceeded, Message: "too many", RetryAfter: 1500 * time.Millisecond},
			ErrorDetail{Code: "quota_exceeded", Message: "too many", RetryAfterSeconds: 2}, "too many (quota_exceeded)"},
		{"other", errors.New("dial /run/secret.sock: refused"),
			ErrorDetail{Code: "internal", Message: "internal error; see the server's log for details"}, "internal error; see the server's log for details (internal)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := Failure(tt.err)
			if diff := cmp.Diff(ErrorBody{tt.want}, res.StructuredContent); diff != "" || !res.IsError {
				t.Errorf("isError %v: %s", res.IsError, diff)
			}
			if got := res.Content[0].(*mcp.TextContent).Text; got != tt.text {
				t.Errorf("got %q, want %q", got, tt.text)
			}
		})
	}
}

// own is a dialect that reports errors in its own way.
type own struct{}

func (own) Name() string         { return "own" }
func (own) Server(string) Server { return Server{} }
func (own) Tools() []Tool        { return []Tool{testTool()} }
func (own) Failure(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "Error: " + sandbox.MessageOf(err)}}}
}

func TestOwnFailure(t *testing.T) {
	c := &Call{Args: json.RawMessage(`{}`), Log: slog.New(slog.DiscardHandler)}
	res, err := Invoke(t.Context(), own{}, testTool(), c)
	if err != nil || res.Content[0].(*mcp.TextContent).Text != `Error: t: "name" is missing` {
		t.Error(res, err)
	}
	boom := Tool{Def: &mcp.Tool{Name: "boom"}, Run: func(context.Context, *Call) (*mcp.CallToolResult, error) { panic("x") }}
	res, err = Invoke(t.Context(), own{}, boom, c)
	if err != nil || !res.IsError {
		t.Error(res, err)
	}
	if _, err := Normalize(own{}, Selection{Toolsets: []string{"core"}}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a toolset of a dialect that has none: %v", err)
	}
	tools, err := Select(own{}, Selection{ReadOnly: true})
	if err != nil || len(tools) != 0 {
		t.Errorf("%v %v", tools, err)
	}
}
