// Package superserve speaks to clients of Superserve's MCP server: 19 tools
// without sessions, whose calls name their sandbox. README.md tells what
// differs.
package superserve

import (
	_ "embed"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Name is the name of the dialect.
const Name = "superserve"

// Dialect is the product's surface.
type Dialect struct{ tools []dialect.Tool }

var (
	_ dialect.Failer      = (*Dialect)(nil)
	_ dialect.Sessionless = (*Dialect)(nil)
	_ dialect.Configured  = (*Dialect)(nil)
	_ dialect.PlainJSON   = (*Dialect)(nil)
	_ dialect.Ported      = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{}
	for _, def := range dialect.Definitions(toolsJSON) {
		t := runners[def.Name](def)
		// The product calls it read-only, but it publishes the port.
		t.Writes = def.Name == "sandbox_preview_url"
		d.tools = append(d.tools, t)
	}
	return d
}

// runners make the tools of their definitions, by name.
var runners = map[string]func(*mcp.Tool) dialect.Tool{
	"sandbox_create":             tool(create),
	"sandbox_template_list":      tool(listTemplates),
	"sandbox_template_create":    tool(createTemplate),
	"sandbox_list":               tool(list),
	"sandbox_info":               tool(info),
	"sandbox_pause":              tool(pause),
	"sandbox_resume":             tool(resume),
	"sandbox_kill":               tool(kill),
	"sandbox_update":             tool(update),
	"sandbox_preview_url":        tool(previewURL),
	"sandbox_network_log":        tool(networkLog),
	"sandbox_exec":               tool(exec),
	"sandbox_files_read":         tool(readFile),
	"sandbox_files_write":        tool(writeFile),
	"sandbox_files_list":         tool(listFiles),
	"sandbox_files_download_dir": tool(downloadDir),
	"secret_list":                tool(listSecrets),
	"sandbox_attach_secret":      tool(attachSecret),
	"sandbox_detach_secret":      tool(detachSecret),
}

//go:embed tools.json
var toolsJSON []byte

// Name returns the dialect's name.
func (d *Dialect) Name() string { return Name }

// Server describes the server as clients of the product know it.
func (d *Dialect) Server(version string) dialect.Server {
	return dialect.Server{
		Implementation: &mcp.Implementation{Name: "superserve", Title: "Cove, speaking Superserve", Version: version},
		Instructions:   instructions,
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// Sessionless tells that a call needs no session.
func (d *Dialect) Sessionless() bool { return true }

// PlainJSON tells that clients take JSON and no streams.
func (d *Dialect) PlainJSON() bool { return true }

// Environment reads the product's variables: the server to talk to in place of
// the local daemon, and the key for it. An address of the product's own service
// is not one of ours, and left out.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	server = dialect.ServerAt([]string{get("SUPERSERVE_BASE_URL")}, "superserve.ai")
	return strings.TrimRight(server, "/"), get("SUPERSERVE_API_KEY")
}

// What a client shows that keeps only the first 512 characters is the first
// paragraph.
const instructions = `Sandboxes are isolated machines. Get an id with sandbox_create or sandbox_list and give it as sandbox_id to the other tools. Exec and file tools wake a paused sandbox by themselves: do not resume it first. Pausing keeps all state; sandbox_kill is final. sandbox_files_read refuses files over 1 MiB: use sandbox_exec with head -c.

List templates before you use from_template; build one with sandbox_template_create and poll sandbox_template_list until it is ready. Bind credentials as secrets, never as env_vars: the sandbox only sees a stand-in. Egress is open unless this server has another default: allow_out adds destinations, deny_out blocks CIDR ranges, and a strict allowlist is both, with deny_out ["0.0.0.0/0"]. sandbox_network_log tells what a sandbox has reached. sandbox_preview_url makes a port public: its URL asks for no authentication.`
