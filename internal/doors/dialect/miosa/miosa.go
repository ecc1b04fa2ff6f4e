// Package miosa speaks to clients of MIOSA's MCP server: 25 tools for
// sandboxes, files, commands, previews, snapshots and desktop computers, with
// an active sandbox in each session. README.md tells what differs.
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
type Dialect struct{ tools []dialect.Tool }

var (
	_ dialect.Failer     = (*Dialect)(nil)
	_ dialect.Configured = (*Dialect)(nil)
	_ dialect.Logged     = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{}
	for _, def := range definitions() {
		d.tools = append(d.tools, runners[def.Name](def))
	}
	return d
}

// runners make the tools of their definitions, by name.
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

// The further names of arguments that some tools take. "id" is what the tool is
// about, before it is a sandbox: see [arguments.plain].
var (
	execAliases    = []alias{{"cwd", "working_dir"}, {"cwd", "dir"}, {"timeout", "timeout_sec"}}
	jobAliases     = []alias{{"job_id", "id"}}
	previewAliases = []alias{{"preview_id", "id"}}
	restoreAliases = []alias{{"snapshot_id", "snapshot"}, {"snapshot_id", "name"}, {"snapshot_id", "id"}}
)

//go:embed tools.json
var toolsJSON []byte

// definition is a tool as tools.json has it.
type definition struct {
	Name        string               `json:"name"`
	Title       string               `json:"title"`
	Description string               `json:"description"`
	InputSchema json.RawMessage      `json:"inputSchema"`
	Annotations *mcp.ToolAnnotations `json:"annotations"`
	// Hidden are arguments that are taken and not shown.
	Hidden map[string]json.RawMessage `json:"hidden"`
}

// definitions returns the tools in the product's order.
func definitions() []*definition {
	var list []*definition
	if err := json.Unmarshal(toolsJSON, &list); err != nil {
		panic(fmt.Sprintf("tools.json: %v", err)) // every test of the package finds it
	}
	return list
}

// Name returns the dialect's name.
func (d *Dialect) Name() string { return Name }

// Server describes the server as clients of the product know it.
func (d *Dialect) Server(version string) dialect.Server {
	return dialect.Server{
		Implementation: &mcp.Implementation{Name: "miosa-mcp", Title: "Cove, speaking MIOSA", Version: version},
		Instructions:   instructions,
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// Environment reads the product's variables: the server to talk to in place of
// the local daemon, and the key for it. An address of the product's own service
// is not one of ours, and left out.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	server = dialect.ServerAt([]string{get("MIOSA_API_URL"), get("MIOSA_BASE_URL")}, "miosa.ai")
	return strings.TrimSuffix(strings.TrimRight(server, "/"), "/api/v1"), get("MIOSA_API_KEY")
}

// LogLevel reads MIOSA_LOG_LEVEL; the product's default is warn.
func (d *Dialect) LogLevel(get func(string) string) slog.Level {
	switch strings.ToLower(get("MIOSA_LOG_LEVEL")) {
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "error":
		return slog.LevelError
	}
	return slog.LevelWarn
}

// What a client shows that keeps only the first 512 characters is the first
// paragraph.
const instructions = `sandbox_create boots a sandbox and makes it the active one of this session: sandbox_id may then be left out of the other tools. Commands are bash lines. sandbox_exec waits for them; one that still runs after half a minute, such as a dev server, goes on as a job (sandbox_job_status). Start servers with sandbox_exec_background, then preview_create gives the URL of a port.

sandbox_stop pauses a sandbox with all its state, and using it again wakes it; sandbox_destroy is final. snapshot_create before risky changes, snapshot_restore to go back. For a desktop: computer_create, then computer_screenshot to see and computer_action to click, type, press keys and scroll, in pixels of the screenshot.`
