// Package podflare speaks to clients of Podflare: its session server, in which
// one MCP session is one sandbox, and its hosted server, whose calls name
// theirs. README.md tells what differs.
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
type Dialect struct {
	name         string
	instructions string
	tools        []dialect.Tool
}

var (
	_ dialect.Failer      = (*Dialect)(nil)
	_ dialect.Sessionless = (*Dialect)(nil)
	_ dialect.Configured  = (*Dialect)(nil)
)

// New returns the session server: seven tools, which work on the sandbox of
// their session unless they name another.
func New() *Dialect {
	return newDialect(Name, sessionInstructions, "run_python", "run_bash", "fork", "diff", "merge_into", "upload", "download")
}

// NewHosted returns the hosted server: eight tools, which name their sandbox.
func NewHosted() *Dialect {
	return newDialect(HostedName, hostedInstructions,
		"create_sandbox", "run_python", "run_bash", "fork", "merge_into", "upload", "download", "destroy_sandbox")
}

func newDialect(name, instructions string, names ...string) *Dialect {
	d := &Dialect{name: name, instructions: instructions}
	defs := make(map[string]*mcp.Tool)
	for _, def := range dialect.Definitions(toolsJSON) {
		defs[def.Name] = def
	}
	for _, n := range names {
		def := defs[n]
		if name == HostedName {
			if target := runners[n].target; target != "" {
				def.InputSchema = requiring(def.InputSchema, target)
			}
		}
		d.tools = append(d.tools, runners[n].tool(def, name == HostedName))
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
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("tools.json: %v", err))
	}
	return data
}

// Name returns the dialect's name.
func (d *Dialect) Name() string { return d.name }

// Server describes the server as clients of the product know it.
func (d *Dialect) Server(version string) dialect.Server {
	return dialect.Server{
		Implementation: &mcp.Implementation{Name: "podflare", Title: "Cove, speaking Podflare", Version: version},
		Instructions:   d.instructions,
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// SessionBound tells that the sandboxes of a session go with it.
func (d *Dialect) SessionBound() bool { return d.name == Name }

// Sessionless tells that the hosted surface answers a call without a session.
func (d *Dialect) Sessionless() bool { return d.name == HostedName }

// Failure tells an error as the product does: an object with its text.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	res := result(map[string]any{"error": sandbox.MessageOf(err)})
	res.IsError = true
	return res
}

// result is an object as text and as structured content; a file's bytes are sent
// once, as text.
func result(v any) *mcp.CallToolResult {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode a result: %v", err)) // of our own types
	}
	if f, ok := v.(file); ok && f.Content != nil {
		v = nil
	}
	return dialect.Text(string(data), v)
}

const sessionInstructions = `One sandbox belongs to this session: the first call creates it, and it is destroyed with its forks when the session ends. Keep results with download.

run_python keeps variables and imports between calls; run_bash is a fresh shell each time. fork copies the running sandbox, memory too: explore in the children (sandbox_id), compare them with diff, and keep the best with merge_into.`

const hostedInstructions = `create_sandbox returns a sandbox_id, which every other tool takes; destroy_sandbox ends it.

run_python keeps variables and imports between calls; run_bash is a fresh shell each time. fork copies a running sandbox, memory too: explore in the children, keep the best with merge_into, destroy the others.`
