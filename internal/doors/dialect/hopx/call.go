package hopx

import (
	"context"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// runner makes a tool from its definition. target is the argument that names a sandbox in
// its generation.
type runner func(def *mcp.Tool, target string) dialect.Tool

// tool returns a runner for run. It accepts arguments as the product does: those of the
// schema and the extra ones; others are dropped, and JSON or a number in a string is
// parsed.
func tool[In any](run func(ctx context.Context, c *dialect.Call, in In) (any, error), extra ...string) runner {
	return func(def *mcp.Tool, target string) dialect.Tool {
		return dialect.Lenient(def, newLenient(def, target, extra).arguments, func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
			v, err := run(ctx, c, in)
			if err != nil {
				return nil, err
			}
			return answer(v), nil
		})
	}
}

// answer returns a result in the product's form: one block of text with the object as JSON.
func answer(v any) *mcp.CallToolResult { return dialect.Text(dialect.JSON(v, "  "), nil) }

// lenient converts a tool's arguments to the form of its schema.
type lenient struct {
	types map[string]string // JSON types by name
	// target is the argument that names the sandbox, and also is its name in the other
	// generation.
	target, also string
	extra        map[string]bool
}

func newLenient(def *mcp.Tool, target string, extra []string) *lenient {
	l := &lenient{types: make(map[string]string), extra: make(map[string]bool)}
	for name, p := range dialect.Properties(def) {
		l.types[name] = p.Type
		if len(p.AnyOf) > 0 {
			l.types[name] = p.AnyOf[0].Type
		}
	}
	for _, name := range extra {
		l.extra[name] = true
	}
	if l.types[target] != "" {
		l.target, l.also = target, "sandbox_id"
		if target == l.also {
			l.also = "vm_url"
		}
	}
	return l
}

// nullFields is the argument for which null differs from absent.
const nullFields = "fields"

// arguments returns the arguments that the tool knows.
func (l *lenient) arguments(args map[string]json.RawMessage) map[string]json.RawMessage {
	out := make(map[string]json.RawMessage, len(args))
	for name, v := range args {
		switch {
		case l.types[name] != "":
			out[name] = coerced(v, l.types[name])
		case l.extra[name] && len(v) > 0 && v[0] == '"':
			out[name] = v
		}
	}
	if l.target != "" && !given(out[l.target]) {
		if v, ok := args[l.also]; ok {
			out[l.target] = v
		}
	}
	if string(out["mode"]) == `"`+modeBackground+`"` && !given(out["timeout"]) {
		out["timeout"] = json.RawMessage(strconv.Itoa(backgroundTimeout))
	}
	if string(out[nullFields]) == "null" {
		out[nullFields] = json.RawMessage(`"` + allFields + `"`)
	}
	return out
}

// given reports whether an argument is present. null counts as absent, since it is the
// default of many clients.
func given(raw json.RawMessage) bool { return raw != nil && string(raw) != "null" }

// coerced parses a value that a client sent as text although its type is another.
func coerced(raw json.RawMessage, want string) json.RawMessage {
	text, isText := "", false
	if want != "string" && len(raw) > 0 && raw[0] == '"' {
		if json.Unmarshal(raw, &text) != nil {
			return raw
		}
		text, isText = strings.TrimSpace(text), true
		if text == "null" {
			return json.RawMessage("null")
		}
	}
	switch {
	case want == "integer":
		s := text
		if !isText {
			s = string(raw)
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 && plainNumber(s) {
			return json.RawMessage(strconv.FormatInt(int64(f), 10))
		}
	case want == "boolean" && isText:
		switch strings.ToLower(text) {
		case "true", "1", "yes", "on", "t", "y":
			return json.RawMessage("true")
		case "false", "0", "no", "off", "f", "n":
			return json.RawMessage("false")
		}
	case want == "boolean" && (string(raw) == "0" || string(raw) == "1"):
		return json.RawMessage(strconv.FormatBool(raw[0] == '1'))
	case want == "object" && isText:
		if v := json.RawMessage(text); json.Valid(v) {
			return v
		}
	}
	return raw
}

// plainNumber reports whether s is a decimal number, without the other forms that Go
// accepts.
func plainNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789+-.eE") == "" }
