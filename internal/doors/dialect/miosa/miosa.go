// Package miosa serves clients of MIOSA's MCP server: 25 tools for sandboxes, files,
// commands, previews, snapshots and desktop computers, with an active sandbox in each
// session. README.md lists the differences.
package miosa

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// Name is the name of the dialect.
const Name = "miosa"

// Dialect is the product's surface.
type Dialect struct{ dialect.Product }

var (
	_ dialect.Failer     = (*Dialect)(nil)
	_ dialect.Configured = (*Dialect)(nil)
	_ dialect.Logged     = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{dialect.Product{
		ID: Name, ServerName: "miosa-mcp", Title: "Cove, speaking MIOSA", Instructions: instructions,
		ServerVars: []string{"MIOSA_API_URL", "MIOSA_BASE_URL"}, KeyVars: []string{"MIOSA_API_KEY"}, Domains: []string{"miosa.ai"},
	}}
	for _, def := range definitions() {
		d.Table = append(d.Table, runners[def.Name](def))
	}
	return d
}

// runners make the tools from their definitions, by name.
var runners = map[string]func(*definition) dialect.Tool{
	"sandbox_create":          tool(createSandbox),
	"sandbox_get":             tool(getSandbox),
	"sandbox_list":            tool(listSandboxes),
	"sandbox_stop":            tool(stopSandbox),
	"sandbox_destroy":         tool(destroySandbox),
	"sandbox_resume":          tool(resumeSandbox),
	"file_write":              tool(writeFile),
	"file_read":               tool(readFile),
	"file_list":               tool(listFiles),
	"file_delete":             tool(deleteFile),
	"file_move":               tool(moveFile, alias{"from", "source"}, alias{"from", "src"}, alias{"from", "old_path"}, alias{"to", "dest"}, alias{"to", "destination"}, alias{"to", "new_path"}),
	"sandbox_exec":            waiting(exec, execAliases...),
	"sandbox_exec_stream":     waiting(execStream, execAliases...),
	"sandbox_exec_background": tool(execBackground, execAliases...),
	"sandbox_job_status":      tool(jobStatus, jobAliases...),
	"preview_create":          tool(createPreview),
	"preview_list":            tool(listPreviews),
	"preview_destroy":         tool(destroyPreview, previewAliases...),
	"snapshot_create":         tool(createSnapshot),
	"snapshot_restore":        tool(restoreSnapshot, restoreAliases...),
	"snapshot_list":           tool(listSnapshots),
	"computer_create":         tool(createComputer, alias{"template", "template_type"}, alias{"template", "template_id"}),
	"computer_screenshot":     tool(screenshot),
	"computer_action":         tool(act, alias{"clicks", "amount"}),
	"computer_stop":           tool(stopComputer),
}

// Other names of arguments that some tools accept. "id" names the tool's own subject before
// it names a sandbox: see [arguments.plain].
var (
	execAliases    = []alias{{"cwd", "working_dir"}, {"cwd", "dir"}, {"timeout", "timeout_sec"}}
	jobAliases     = []alias{{"job_id", "id"}}
	previewAliases = []alias{{"preview_id", "id"}}
	restoreAliases = []alias{{"snapshot_id", "snapshot"}, {"snapshot_id", "name"}, {"snapshot_id", "id"}}
)

//go:embed tools.json
var toolsJSON []byte

// definition is a tool of tools.json.
type definition struct {
	*mcp.Tool
	// Hidden are arguments that are accepted but not shown.
	Hidden map[string]json.RawMessage `json:"hidden"`
}

// definitions returns the tools in the product's order.
func definitions() []*definition {
	var list []*definition
	if err := json.Unmarshal(toolsJSON, &list); err != nil {
		panic(fmt.Sprintf("tools.json: %v", err)) // every test of the package finds it
	}
	for i, def := range dialect.Definitions(toolsJSON) {
		list[i].Tool = def
	}
	return list
}

// Environment implements [dialect.Configured]. The product's address may end with the path
// of its REST interface.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	server, key = d.Product.Environment(get)
	return strings.TrimSuffix(server, "/api/v1"), key
}

// LogLevel returns the level in MIOSA_LOG_LEVEL; the product's default is warn.
func (d *Dialect) LogLevel(get func(string) string) slog.Level {
	level, ok := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "error": slog.LevelError}[strings.ToLower(get("MIOSA_LOG_LEVEL"))]
	if !ok {
		return slog.LevelWarn
	}
	return level
}

// instructions are the server's instructions. Clients that keep only the first 512
// characters show the first paragraph.
const instructions = `sandbox_create boots a sandbox and makes it the active one of this session: sandbox_id may then be left out of the other tools. Commands are bash lines. sandbox_exec waits for them; one that still runs after half a minute, such as a dev server, goes on as a job (sandbox_job_status). Start servers with sandbox_exec_background, then preview_create gives the URL of a port.

sandbox_stop pauses a sandbox with all its state, and using it again wakes it; sandbox_destroy is final. snapshot_create before risky changes, snapshot_restore to go back. For a desktop: computer_create, then computer_screenshot to see and computer_action to click, type, press keys and scroll, in pixels of the screenshot.`
