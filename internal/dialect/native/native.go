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
	_ dialect.Instructor = (*Dialect)(nil)
)

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{tools: []dialect.Tool{
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
	for i, t := range d.tools {
		d.tools[i] = lenient(t)
	}
	return d
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
		Instructions: d.Instructions(d.tools),
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
	maxArchive     = 7 << 20 // in base64 below the 10 MiB of one message that clients take
)

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}
