package native

import (
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// briefs are schemas of arguments as clients get them, by name: short forms of
// what is seldom needed or told in full by a tool of another toolset. Arguments are
// checked against the whole ones, and their errors say what is possible.
var briefs = map[string]*jsonschema.Schema{
	"network": {
		Type: "object",
		Description: "What it may reach; usually the public Internet if left out. preset none or packages (registries and code hosts) with allow_out for further domains. " +
			"Further fields: those of network_set.",
		Properties: map[string]*jsonschema.Schema{
			"preset":    {Type: "string", Enum: []any{string(sandbox.NetworkOpen), string(sandbox.NetworkPackages), string(sandbox.NetworkNone)}},
			"allow_out": {Type: "array", Items: &jsonschema.Schema{Type: "string"}},
			"deny_out":  {Type: "array", Items: &jsonschema.Schema{Type: "string"}},
		},
		PropertyOrder: []string{"preset", "allow_out", "deny_out"},
	},
	"webhook": {
		Type:        "object",
		Description: `With background: POST to {"url": …} when it has ended, signed with "secret" as of standardwebhooks.com.`,
	},
	"ports": {
		Type:        "array",
		Description: `Ports of the host that lead to it, such as {"host": 0, "guest": 80}; host 0 is a free one.`,
		Items:       &jsonschema.Schema{Type: "object"},
	},
	"mounts": {
		Type:        "array",
		Description: `What to show in it: {"target": "/data"} with one of volume (a name), host (a directory) and tmpfs (true); read_only, size_mib.`,
		Items:       &jsonschema.Schema{Type: "object"},
	},
}

// brief returns the tool with a definition that is short: without the bounds of
// lengths, which errors tell, and, of core tools, with [briefs].
func brief(t dialect.Tool) dialect.Tool {
	schema, ok := t.Def.InputSchema.(*jsonschema.Schema)
	if !ok {
		return t
	}
	short := unbounded(schema)
	for name, b := range briefs {
		if short.Properties[name] != nil && slices.Contains(coreTools, t.Def.Name) {
			short.Properties[name] = b
		}
	}
	def := *t.Def
	def.InputSchema = short
	t.Def = &def
	return t
}

// unbounded returns a copy of a schema without bounds of lengths.
func unbounded(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil {
		return nil
	}
	c := *s
	c.MinLength, c.MaxLength, c.MinItems, c.MaxItems, c.MinProperties, c.MaxProperties = nil, nil, nil, nil, nil, nil
	if c.Maximum != nil && *c.Maximum >= maxOffset {
		c.Maximum = nil
	}
	c.Items = unbounded(s.Items)
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not == nil {
		c.AdditionalProperties = unbounded(s.AdditionalProperties)
	}
	if s.Properties != nil {
		c.Properties = make(map[string]*jsonschema.Schema, len(s.Properties))
		for name, p := range s.Properties {
			c.Properties[name] = unbounded(p)
		}
	}
	return &c
}
