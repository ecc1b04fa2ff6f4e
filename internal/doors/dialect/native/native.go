// Package native is Cove's own MCP surface: tools named noun_verb, grouped in
// toolsets.
package native

import (
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Name is the dialect's name.
const Name = "native"

// Dialect is Cove's own MCP surface.
type Dialect struct {
	tools []dialect.Tool
}

var (
	_ dialect.Dynamic    = (*Dialect)(nil)
	_ dialect.Resourcer  = (*Dialect)(nil)
	_ dialect.Streamer   = (*Dialect)(nil)
	_ dialect.Instructor = (*Dialect)(nil)
	_ dialect.Lister     = (*Dialect)(nil)
	_ dialect.Completer  = (*Dialect)(nil)
	_ dialect.Prompter   = (*Dialect)(nil)
)

// New returns the dialect. All callers share it, as it never changes.
func New() *Dialect { return made() }

// made makes the dialect once: deriving the schemas from types takes 20 ms.
var made = sync.OnceValue(func() *Dialect {
	d := &Dialect{tools: []dialect.Tool{
		tool("sandbox_create", 0, createSandbox),
		tool("sandbox_list", readOnly|idempotent, listSandboxes),
		tool("sandbox_get", readOnly|idempotent, getSandbox),
		tool("sandbox_update", destructive|idempotent, updateSandbox),
		tool("sandbox_kill", destructive|idempotent, killSandbox),
		tool("sandbox_env", destructive|idempotent, changeEnv),
		tool("sandbox_stats", readOnly|idempotent, getStats),

		asking(tool("sandbox_exec", destructive|openWorld, runCommand)),
		asking(tool("run_code", destructive|openWorld, runCode)),
		tool("code_context", destructive|idempotent, controlContext),
		asking(tool("job_get", readOnly|idempotent, followJob)),
		tool("job_list", readOnly|idempotent, listJobs),
		tool("job_stop", destructive|idempotent, stopJob),
		tool("process_list", readOnly|idempotent, listProcesses),
		tool("process_kill", destructive, killProcess),

		tool("file_read", readOnly|idempotent, readFile),
		tool("file_write", destructive, writeFile),
		tool("file_edit", destructive, editFile),
		tool("file_list", readOnly|idempotent, listFiles),
		tool("file_search", readOnly|idempotent, searchFiles),
		tool("file_move", destructive, moveFile),
		tool("file_delete", destructive, deleteFile),
		tool("dir_download", readOnly|idempotent, downloadDir),

		tool("sandbox_fork", 0, forkSandbox),
		tool("sandbox_merge", destructive, mergeFork),
		tool("sandbox_diff", readOnly|idempotent, compareFiles),
		asking(tool("sandbox_try", destructive|openWorld, tryCommands)),
		tool("sandbox_pause", idempotent, pauseSandbox),
		tool("sandbox_resume", destructive|idempotent, resumeSandbox),
		tool("snapshot_create", 0, createSnapshot),
		tool("snapshot_list", readOnly|idempotent, listSnapshots),
		tool("snapshot_restore", destructive, restoreSnapshot),
		tool("snapshot_delete", destructive, deleteSnapshot),

		tool("network_get", readOnly|idempotent, getNetwork),
		tool("network_set", destructive|idempotent, setNetwork),
		tool("network_log", readOnly|idempotent, readNetworkLog),
		tool("secret_list", readOnly|idempotent, listSecrets),
		tool("secret_attach", idempotent, attachSecret),
		tool("secret_detach", destructive|idempotent, detachSecret),
		tool("preview_create", idempotent|openWorld, createPreview),
		tool("preview_list", readOnly|idempotent, listPreviews),
		tool("preview_link", openWorld, linkPreview),
		tool("preview_delete", destructive|idempotent, deletePreview),

		tool("computer_create", openWorld, createComputer),
		tool("computer_screenshot", readOnly|idempotent, seeScreen),
		tool("computer_action", destructive|openWorld, act),
		tool("computer_windows", destructive, changeWindows),
		tool("computer_clipboard", idempotent, useClipboard),
		tool("computer_open", openWorld, openPage),
		tool("computer_view", openWorld, linkView),

		tool("template_list", readOnly|idempotent, listTemplates),
		tool("template_get", readOnly|idempotent, getTemplate),
		tool("template_build", openWorld, buildTemplate),
		tool("template_build_status", destructive|idempotent, followBuild),
		tool("template_delete", destructive, deleteTemplate),
		tool("volume_create", 0, createVolume),
		tool("volume_list", readOnly|idempotent, listVolumes),
		tool("volume_delete", destructive|idempotent, deleteVolume),

		tool("toolset_list", readOnly|idempotent, listToolsets),
		tool("toolset_enable", readOnly|idempotent, enableToolsets),
	}}
	for i := range d.tools {
		if t := &d.tools[i]; slices.Contains(coreTools, t.Def.Name) {
			t.Also = []string{toolsetCore}
		}
	}
	return d
})

// Name returns [Name].
func (d *Dialect) Name() string { return Name }

// Server describes Cove.
func (d *Dialect) Server(version string) dialect.Server {
	return dialect.Server{
		Implementation: &mcp.Implementation{
			Name:       "cove",
			Title:      "Cove sandboxes",
			Version:    version,
			WebsiteURL: "https://github.com/cove-sh/cove",
		},
		Instructions: d.Instructions(d.tools),
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// StreamsOutput reports that run_code and sandbox_exec stream their output.
func (d *Dialect) StreamsOutput() bool { return true }

// HasTasks reports that long calls become tasks.
func (d *Dialect) HasTasks() bool { return true }

// Resources returns sandboxes and their files.
func (d *Dialect) Resources() []dialect.ResourceTemplate {
	return []dialect.ResourceTemplate{fileResource(), sandboxResource()}
}

// The limits of results in bytes. Clients truncate a result at about 25,000 tokens.
const (
	maxStreamBytes = 32 << 10 // of stdout and of stderr in a result
	maxResultBytes = 64 << 10 // of a listing in a result
	defaultRead    = 64 << 10 // of a file, unless a limit is given
	maxRead        = 1 << 20
	maxWrite       = 8 << 20
	maxArchive     = 7 << 20 // in base64 below 10 MiB, the most that clients accept in one message
)

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}
