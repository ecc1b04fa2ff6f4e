// Package native is Cove's own MCP surface: tools named noun_verb, grouped in
// toolsets.
package native

import (
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Name is the dialect's name.
const Name = "native"

// The toolsets.
const (
	toolsetCore    = "core"
	toolsetCode    = "code"
	toolsetTime    = "time"
	toolsetNetwork = "network"
	// toolsetComputer is not on by default: clients take so many tools only.
	toolsetComputer = "computer"
	// Nor is toolsetTemplates.
	toolsetTemplates = "templates"
	// Nor is toolsetVolumes.
	toolsetVolumes = "volumes"
)

// Dialect is Cove's own MCP surface.
type Dialect struct {
	tools []dialect.Tool
}

var (
	_ dialect.Toolsetter = (*Dialect)(nil)
	_ dialect.Resourcer  = (*Dialect)(nil)
	_ dialect.Streamer   = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	return &Dialect{tools: []dialect.Tool{
		sandboxCreate(), sandboxList(), sandboxGet(), sandboxUpdate(), sandboxKill(),
		sandboxExec(),
		fileRead(), fileWrite(), fileEdit(), fileList(), fileMove(), fileDelete(), dirDownload(),
		runCode(), codeContext(), jobList(), jobGet(), jobStop(),
		processList(), processKill(), sandboxEnv(), sandboxStats(),
		sandboxPause(), sandboxResume(), sandboxFork(), sandboxDiff(), sandboxMerge(), sandboxTry(),
		snapshotCreate(), snapshotList(), snapshotRestore(), snapshotDelete(),
		networkGet(), networkSet(), networkLog(), secretList(), secretAttach(), secretDetach(),
		previewCreate(), previewListTool(), previewLink(), previewDelete(),
		computerCreate(), computerScreenshot(), computerAction(), computerWindows(), computerClipboard(), computerOpen(), computerView(),
		templateList(), templateGet(), templateBuild(), templateBuildStatus(), templateDelete(),
		volumeCreate(), volumeList(), volumeDelete(),
	}}
}

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
		Instructions: instructions,
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// Toolsets returns the toolsets; all but computers, templates and volumes are on by
// default.
func (d *Dialect) Toolsets() (known, defaults []string) {
	defaults = []string{toolsetCore, toolsetCode, toolsetTime, toolsetNetwork}
	return append(slices.Clone(defaults), toolsetComputer, toolsetTemplates, toolsetVolumes), defaults
}

// StreamsOutput tells that run_code and sandbox_exec tell output as it comes.
func (d *Dialect) StreamsOutput() bool { return true }

// Resources returns the files of sandboxes.
func (d *Dialect) Resources() []dialect.ResourceTemplate {
	return []dialect.ResourceTemplate{fileResource()}
}

// instructions begin with what a client needs that keeps only their first 512
// characters, up to the line "More:".
const instructions = `Cove runs untrusted code in isolated Linux sandboxes (gVisor).

1. sandbox_create returns an id. Other tools take it (or the sandbox's name) as "sandbox".
2. run_code runs Python, JavaScript, Bash and more as in a notebook; sandbox_exec runs a command; file_* work on files.
3. sandbox_kill ends it and deletes its files.
4. sandbox_fork copies a running sandbox, memory too: fork before a risky step. sandbox_try runs alternatives in forks and keeps the one you pick.

More:
- Relative paths start at the sandbox's working directory.
- Sandboxes reach the network as their policy allows, usually the public Internet and nothing private; network_log tells what was blocked, network_set changes it. secret_attach lets one use a credential without seeing it.
- preview_create makes a port of a sandbox a URL, preview_link a link to hand out.
- run_code keeps variables and imports between calls, shows plots and tables, and works without a sandbox too.
- A command that runs longer than 45 s goes on as a job: poll it with job_get, end it with job_stop. Start servers with "background": true.
- sandbox_diff shows which files a sandbox or fork has changed; sandbox_merge brings a fork back into its parent.
- snapshot_create keeps a state by name; snapshot_restore goes back to it, sandbox_create begins with it. With "history" a step is kept before each command: snapshot_restore with step -1 undoes the last.
- sandbox_pause frees memory and keeps everything on disk. A paused sandbox resumes by itself when a tool needs it.
- Computers, which are sandboxes with a screen, are used with computer_*: the toolset "computer", which the server's or client's owner turns on.
- Templates, with which sandboxes begin, are built with template_*: the toolset "templates", turned on likewise; volumes, whose files outlive sandboxes, with volume_*: the toolset "volumes".
- Sandboxes end by themselves when their lifetime is over, or pause if on_timeout is pause.

Errors carry a stable code in parentheses and say what to do next. Sandboxes keep their files and processes between calls; nothing in one can see another or the host.`

// annotations fills in all hints: what a tool reads only, destroys, or can do
// again without further effect, and whether it reaches beyond Cove.
func annotations(title string, readOnly, destructive, idempotent, openWorld bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{
		Title:           title,
		ReadOnlyHint:    readOnly,
		DestructiveHint: &destructive,
		IdempotentHint:  idempotent,
		OpenWorldHint:   &openWorld,
	}
}

// The limits of results. Clients cut a result at about 25,000 tokens.
const (
	maxStreamBytes = 32 << 10 // of stdout and of stderr in a result
	maxResultBytes = 64 << 10 // of a listing in a result
	defaultRead    = 64 << 10 // of a file, unless a limit is given
	maxRead        = 1 << 20
	maxWrite       = 8 << 20
	maxArchive     = 10 << 20
)

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}
