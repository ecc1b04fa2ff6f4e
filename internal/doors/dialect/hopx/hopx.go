// Package hopx speaks to clients of HOPX's MCP server, in both of its
// generations: v0.1, whose calls name a sandbox by its address, and v0.2,
// whose calls name it by its id. README.md tells what differs.
package hopx

import (
	"context"
	_ "embed"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// The names of the dialects.
const (
	Name   = "hopx"
	NameV2 = "hopx@0.2"
)

// Dialect is one of the product's two surfaces.
type Dialect struct {
	generation
	tools []dialect.Tool
}

// generation is what differs between the surfaces besides the tools.
type generation struct {
	name         string
	instructions string
	guide        string
	// target is the argument that names a sandbox.
	target string
	// failure tells an error of a tool's work.
	failure func(e *failure) any
	// runner is what a tool is in the generation.
	runner func(*row) runner
}

var (
	_ dialect.Failer     = (*Dialect)(nil)
	_ dialect.Configured = (*Dialect)(nil)
	_ dialect.Prompter   = (*Dialect)(nil)
	_ dialect.Resourcer  = (*Dialect)(nil)
)

// New returns v0.1: 34 tools, of which those that work in a sandbox take its
// address and token.
func New() *Dialect {
	return newDialect(generation{
		name: Name, instructions: instructionsV1, guide: guideV1, target: "vm_url", failure: (*failure).v1,
		runner: func(r *row) runner { return r.v1 },
	}, toolsV1)
}

// NewV2 returns v0.2: 35 tools, which take a sandbox's id.
func NewV2() *Dialect {
	return newDialect(generation{
		name: NameV2, instructions: instructionsV2, guide: guideV2, target: "sandbox_id", failure: (*failure).v2,
		runner: func(r *row) runner { return r.v2 },
	}, toolsV2)
}

//go:embed tools.json
var toolsV1 []byte

//go:embed tools-v2.json
var toolsV2 []byte

func newDialect(g generation, table []byte) *Dialect {
	d := &Dialect{generation: g}
	for _, def := range dialect.Definitions(table) {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == def.Name })
		d.tools = append(d.tools, g.runner(&rows[i])(def, g.target))
	}
	return d
}

// Name returns the dialect's name.
func (d *Dialect) Name() string { return d.name }

// Server describes the server as clients of the product know it.
func (d *Dialect) Server(version string) dialect.Server {
	return dialect.Server{
		Implementation: &mcp.Implementation{Name: "hopx", Title: "Cove, speaking HOPX", Version: version},
		Instructions:   d.instructions,
	}
}

// Tools returns the table of tools.
func (d *Dialect) Tools() []dialect.Tool { return d.tools }

// Resources are none, though clients may ask for them.
func (d *Dialect) Resources() []dialect.ResourceTemplate { return nil }

// Prompts returns the product's one prompt, a guide.
func (d *Dialect) Prompts() []dialect.Prompt {
	return []dialect.Prompt{{
		Def: &mcp.Prompt{Name: "quick_code_execution", Description: "How to run code in sandboxes: which tool, which language, and two examples."},
		Get: func(context.Context, map[string]string) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: d.guide}}}}, nil
		},
	}}
}

// Environment reads the product's variables: the server to talk to in place of
// the local daemon, and the key for it. An address of the product's own service
// is not one of ours, and left out.
func (d *Dialect) Environment(get func(string) string) (server, key string) {
	server = dialect.ServerAt([]string{get("HOPX_BASE_URL")}, "hopx.dev", "hopx.ai")
	if key = get("HOPX_API_KEY"); key == "" {
		key = get("HOPX_BEARER_TOKEN")
	}
	return strings.TrimRight(server, "/"), key
}

const instructionsV1 = `Run code in isolated sandboxes. For nearly everything use execute_code_isolated: it makes a sandbox, runs Python, JavaScript, Bash or Go in it and returns the output.

For work in several steps call create_sandbox, then give its direct_url as vm_url and its auth_token to execute_code, file_write, file_read, run_command and the others; Python keeps its variables between calls. delete_sandbox ends it, and timeout_seconds does so by itself. For code of 5 to 30 minutes use execute_code_background and look at execute_list_processes; for longer code execute_code_async, which calls a URL at the end. Give env with a call rather than env_set. Bound list_templates by limit. A tool that failed returns an object with error.`

const instructionsV2 = `Run code in isolated sandboxes with execute_code. Its mode isolated, the default, does for nearly everything: it makes a sandbox, runs Python, JavaScript, Bash or Go in it and removes it. Do not give sandbox_id with it.

For work in several steps call create_sandbox, then execute_code with mode persistent and the id as sandbox_id; Python keeps its variables between calls. mode rich returns plots and tables, mode background is for long code: look at execute_list_processes. delete_sandbox ends a sandbox, and timeout_seconds does so by itself. Give env with a call rather than env_set. Bound list_templates by limit. A tool that failed returns an object with error.`

const guideHead = `Code runs in a sandbox: an isolated machine with access to the internet, unless this server keeps it from that.

Good for: analysing data with pandas and numpy, plots, trying code before it is used, installing and testing packages, calculations, shell scripts.
Languages: python, javascript, bash, go.
`

const guideV1 = guideHead + `
Use execute_code_isolated. Each call gets a clean sandbox that destroys itself after 10 minutes; many may run at once.

    execute_code_isolated(code="print(sum(range(10)))")
    execute_code_isolated(code="console.log([1, 2, 3].map(x => x * x))", language="javascript")

timeout is in seconds, 300 at most; env adds environment variables; what is printed comes back in stdout, errors in stderr with an exit_code that is not 0. Where one step needs what another left, use create_sandbox and execute_code.`

const guideV2 = guideHead + `
Use execute_code. Without a mode each call gets a clean sandbox that is gone afterwards; many may run at once.

    execute_code(code="print(sum(range(10)))")
    execute_code(code="df.describe()", mode="persistent", sandbox_id="...")

Modes: isolated for one step, persistent for steps that build on each other, rich for plots and tables, background for what takes long. timeout is in seconds, 300 at most; env adds environment variables; what is printed comes back in stdout, errors in stderr with an exit_code that is not 0.`
