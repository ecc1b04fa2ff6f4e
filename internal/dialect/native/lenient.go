package native

import (
	"context"
	"encoding/json"
	"regexp"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
)

// lenient returns the tool with arguments corrected by [correct] before they
// are checked.
func lenient(t dialect.Tool) dialect.Tool {
	schema, ok := t.Def.InputSchema.(*jsonschema.Schema)
	if !ok {
		return t
	}
	run := t.Run
	t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
		corrected := *c
		corrected.Args = correct(schema, c.Args)
		return run(ctx, &corrected)
	}
	return t
}

// wholeNumber matches decimal integers that a float64 holds exactly.
var wholeNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,14})$`)

// correct rewrites arguments whose type is wrong but whose meaning is certain:
// an integer or a boolean in a string, and a string for a command where the
// tool also takes a shell line. Everything else is returned unchanged, for the
// schema to judge. args is hostile.
func correct(s *jsonschema.Schema, args json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(args, &m) != nil {
		return args
	}
	changed := false
	for name, raw := range m {
		property := s.Properties[name]
		var value string
		if property == nil || len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &value) != nil {
			continue
		}
		switch {
		case property.Type == "integer" && wholeNumber.MatchString(value),
			property.Type == "boolean" && (value == "true" || value == "false"):
			m[name] = json.RawMessage(value)
			changed = true
		case name == "command" && property.Type == "array" && value != "" && s.Properties["shell"] != nil && absent(m["shell"]):
			m["shell"] = raw
			delete(m, name)
			changed = true
		}
	}
	if !changed {
		return args
	}
	corrected, err := json.Marshal(m)
	if err != nil {
		return args
	}
	return corrected
}

// absent reports whether an argument is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
