// Package podflare serves clients of Podflare: its session server, in which one MCP session
// is one sandbox, and its hosted server, whose calls name their sandbox. README.md lists
// the differences.
package podflare

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The names of the dialects.
const (
	Name       = "podflare"
	HostedName = "podflare@hosted"
)

// Dialect is one of the product's two surfaces.
type Dialect struct{ dialect.Product }

var (
	_ dialect.Failer       = (*Dialect)(nil)
	_ dialect.Sessionless  = (*Dialect)(nil)
	_ dialect.SessionBound = (*Dialect)(nil)
	_ dialect.Configured   = (*Dialect)(nil)
)

// New returns the session server: seven tools, which work on the sandbox of their session
// unless they name another.
func New() *Dialect {
	return newDialect(Name, sessionInstructions, "run_python", "run_bash", "fork", "diff", "merge_into", "upload", "download")
}

// NewHosted returns the hosted server: eight tools, which name their sandbox.
func NewHosted() *Dialect {
	return newDialect(HostedName, hostedInstructions,
		"create_sandbox", "run_python", "run_bash", "fork", "merge_into", "upload", "download", "destroy_sandbox")
}

func newDialect(name, instructions string, names ...string) *Dialect {
	d := &Dialect{dialect.Product{
		ID: name, ServerName: "podflare", Title: "Cove, speaking Podflare", Instructions: instructions,
		ServerVars: []string{"PODFLARE_HOST", "PODFLARE_HOSTD_URL"}, KeyVars: []string{"PODFLARE_API_KEY"},
		Domains: []string{"podflare.dev", "podflare.ai"},
	}}
	defs := make(map[string]*mcp.Tool)
	for _, def := range dialect.Definitions(toolsJSON) {
		defs[def.Name] = def
	}
	for _, n := range names {
		def, r := defs[n], runners[n]
		if name == HostedName && r.target != "" {
			def.InputSchema = requiring(def.InputSchema, r.target)
		}
		d.Table = append(d.Table, r.tool(def, name == HostedName))
	}
	return d
}

//go:embed tools.json
var toolsJSON []byte

// requiring returns an object's schema with one more property required.
func requiring(schema any, property string) json.RawMessage {
	var s map[string]any
	if err := json.Unmarshal(schema.(json.RawMessage), &s); err != nil {
		panic(fmt.Sprintf("tools.json: %v", err))
	}
	required, _ := s["required"].([]any)
	if !slices.Contains(required, any(property)) {
		s["required"] = append(required, property)
	}
	return json.RawMessage(encoded(s))
}

// encoded returns one of this package's own values as JSON.
func encoded(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode a value: %v", err))
	}
	return string(data)
}

// SessionBound reports that the sandboxes of a session end with it.
func (d *Dialect) SessionBound() bool { return d.ID == Name }

// Sessionless reports that the hosted surface answers a call without a session.
func (d *Dialect) Sessionless() bool { return d.ID == HostedName }

// Failure shows an error as the product does: an object with its text.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	res := result(map[string]any{"error": sandbox.MessageOf(err)})
	res.IsError = true
	return res
}

// result returns an object as text and as structured content. The bytes of a file are sent
// only once, as text.
func result(v any) *mcp.CallToolResult {
	text := encoded(v)
	if f, ok := v.(file); ok && f.Content != nil {
		v = nil
	}
	return dialect.Text(text, v)
}

const sessionInstructions = `One sandbox belongs to this session: the first call creates it, and it is destroyed with its forks when the session ends. Keep results with download.

run_python keeps variables and imports between calls; run_bash is a fresh shell each time. fork copies the running sandbox, memory too: explore in the children (sandbox_id), compare them with diff, and keep the best with merge_into.`

const hostedInstructions = `create_sandbox returns a sandbox_id, which every other tool takes; destroy_sandbox ends it.

run_python keeps variables and imports between calls; run_bash is a fresh shell each time. fork copies a running sandbox, memory too: explore in the children, keep the best with merge_into, destroy the others.`
