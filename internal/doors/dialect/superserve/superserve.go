// Package superserve serves clients of Superserve's MCP server: 19 tools without sessions,
// whose calls name their sandbox. README.md lists the differences.
package superserve

import (
	_ "embed"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Name is the name of the dialect.
const Name = "superserve"

// Dialect is the product's surface.
type Dialect struct{ dialect.Product }

var (
	_ dialect.Failer      = (*Dialect)(nil)
	_ dialect.Sessionless = (*Dialect)(nil)
	_ dialect.Configured  = (*Dialect)(nil)
	_ dialect.PlainJSON   = (*Dialect)(nil)
	_ dialect.Ported      = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{dialect.Product{
		ID: Name, ServerName: "superserve", Title: "Cove, speaking Superserve", Instructions: instructions,
		ServerVars: []string{"SUPERSERVE_BASE_URL"}, KeyVars: []string{"SUPERSERVE_API_KEY"}, Domains: []string{"superserve.ai"},
	}}
	for _, def := range dialect.Definitions(toolsJSON) {
		t := runners[def.Name](def)
		// The product marks it read-only, but it publishes the port.
		t.Writes = def.Name == "sandbox_preview_url"
		d.Table = append(d.Table, t)
	}
	return d
}

// runners make the tools from their definitions, by name.
var runners = map[string]func(*mcp.Tool) dialect.Tool{
	"sandbox_create":             tool(create),
	"sandbox_template_list":      tool(listTemplates),
	"sandbox_template_create":    tool(createTemplate),
	"sandbox_list":               tool(list),
	"sandbox_info":               on(info),
	"sandbox_pause":              on(pause),
	"sandbox_resume":             on(resume),
	"sandbox_kill":               tool(kill),
	"sandbox_update":             on(update),
	"sandbox_preview_url":        on(previewURL),
	"sandbox_network_log":        on(networkLog),
	"sandbox_exec":               on(exec),
	"sandbox_files_read":         on(readFile),
	"sandbox_files_write":        on(writeFile),
	"sandbox_files_list":         on(listFiles),
	"sandbox_files_download_dir": on(downloadDir),
	"secret_list":                tool(listSecrets),
	"sandbox_attach_secret":      on(attachSecret),
	"sandbox_detach_secret":      on(detachSecret),
}

//go:embed tools.json
var toolsJSON []byte

// Sessionless reports that a call needs no session.
func (d *Dialect) Sessionless() bool { return true }

// PlainJSON reports that clients accept JSON but no streams.
func (d *Dialect) PlainJSON() bool { return true }

// instructions are the server's instructions. Clients that keep only the first 512
// characters show the first paragraph.
const instructions = `Sandboxes are isolated machines. Get an id with sandbox_create or sandbox_list and give it as sandbox_id to the other tools. Exec and file tools wake a paused sandbox by themselves: do not resume it first. Pausing keeps all state; sandbox_kill is final. sandbox_files_read refuses files over 1 MiB: use sandbox_exec with head -c.

List templates before you use from_template; build one with sandbox_template_create and poll sandbox_template_list until it is ready. Bind credentials as secrets, never as env_vars: the sandbox only sees a stand-in. Egress is open unless this server has another default: allow_out adds destinations, deny_out blocks CIDR ranges, and a strict allowlist is both, with deny_out ["0.0.0.0/0"]. sandbox_network_log tells what a sandbox has reached. sandbox_preview_url makes a port public: its URL asks for no authentication.`
