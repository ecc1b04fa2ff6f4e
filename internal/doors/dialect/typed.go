package dialect

import (
	"context"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// New makes a tool whose arguments are checked against its input schema and
// decoded into In, with the schema's defaults for what is missing. Arguments
// that are null count as missing. It panics if the schema is wrong, which a
// test of the dialect finds.
func New[In any](toolset string, def *mcp.Tool, run func(ctx context.Context, c *Call, in In) (*mcp.CallToolResult, error)) Tool {
	args, err := newArguments(def.Name, mustSchema(def))
	if err != nil {
		panic(fmt.Sprintf("tool %s: %v", def.Name, err))
	}
	return Tool{Def: def, Toolset: toolset, Run: func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		var in In
		if err := args.decode(c.Args, &in); err != nil {
			return nil, err
		}
		return run(ctx, c, in)
	}}
}

// mustSchema returns the input schema of a tool, which may be raw JSON. It panics
// if the schema is malformed.
func mustSchema(def *mcp.Tool) *jsonschema.Schema {
	if s, ok := def.InputSchema.(*jsonschema.Schema); ok {
		return s
	}
	data, err := json.Marshal(def.InputSchema)
	s := new(jsonschema.Schema)
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		panic(fmt.Sprintf("tool %s: %v", def.Name, err))
	}
	return s
}

// arguments checks and decodes the arguments of one tool.
type arguments struct {
	tool     string
	schema   *jsonschema.Schema
	resolved *jsonschema.Resolved
	defaults json.RawMessage
}

func newArguments(tool string, schema *jsonschema.Schema) (*arguments, error) {
	resolved, err := schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		return nil, err
	}
	defaults := make(map[string]json.RawMessage)
	for name, p := range schema.Properties {
		if p.Default != nil {
			defaults[name] = p.Default
		}
	}
	data, err := json.Marshal(defaults)
	if err != nil {
		return nil, err
	}
	return &arguments{tool: tool, schema: schema, resolved: resolved, defaults: data}, nil
}

func (a *arguments) decode(raw json.RawMessage, in any) error {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	// The decoder would replace invalid bytes with U+FFFD, and a file written from
	// them would differ from what the client meant.
	if !utf8.Valid(raw) {
		return sandbox.Errorf(sandbox.CodeInvalid, "the arguments are not valid UTF-8; send binary data as base64")
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "the arguments must be one JSON object")
	}
	for name, v := range m {
		if v == nil {
			delete(m, name)
		}
	}
	if problem := explain(a.schema, m, ""); problem != "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s: %s", a.tool, problem)
	}
	if err := a.resolved.Validate(m); err != nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s: the arguments do not match the schema: %s", a.tool, clip.Text(err.Error(), 300))
	}
	if err := json.Unmarshal(a.defaults, in); err != nil {
		return fmt.Errorf("decode defaults of %s: %w", a.tool, err)
	}
	if err := json.Unmarshal(raw, in); err != nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "%s: the arguments do not match the schema; integers are written without a fraction or exponent", a.tool)
	}
	return nil
}
