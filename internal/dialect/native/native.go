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

// New returns the dialect.
func New() *Dialect {
	d := &Dialect{tools: []dialect.Tool{
		sandboxCreate(), sandboxList(), sandboxGet(), sandboxUpdate(), sandboxKill(), sandboxEnv(), sandboxStats(),
		sandboxExec(), runCode(), codeContext(), jobGet(), jobList(), jobStop(), processList(), processKill(),
		fileRead(), fileWrite(), fileEdit(), fileList(), fileSearch(), fileMove(), fileDelete(), dirDownload(),
		sandboxFork(), sandboxMerge(), sandboxDiff(), sandboxTry(), sandboxPause(), sandboxResume(),
		snapshotCreate(), snapshotList(), snapshotRestore(), snapshotDelete(),
		networkGet(), networkSet(), networkLog(), secretList(), secretAttach(), secretDetach(),
		previewCreate(), previewListTool(), previewLink(), previewDelete(),
		computerCreate(), computerScreenshot(), computerAction(), computerWindows(), computerClipboard(), computerOpen(), computerView(),
		templateList(), templateGet(), templateBuild(), templateBuildStatus(), templateDelete(),
		volumeCreate(), volumeList(), volumeDelete(),
		toolsetList(), toolsetEnable(),
	}}
	for i, t := range d.tools {
		t = brief(lenient(t))
		if slices.Contains(coreTools, t.Def.Name) {
			t.Also = []string{toolsetCore}
		}
		d.tools[i] = t
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

// StreamsOutput tells that run_code and sandbox_exec tell output as it comes.
func (d *Dialect) StreamsOutput() bool { return true }

// HasTasks tells that long calls become tasks.
func (d *Dialect) HasTasks() bool { return true }

// Resources returns sandboxes and their files.
func (d *Dialect) Resources() []dialect.ResourceTemplate {
	return []dialect.ResourceTemplate{fileResource(), sandboxResource()}
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
