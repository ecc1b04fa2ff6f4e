// Package hopx serves clients of HOPX's MCP server, in both of its generations: v0.1, whose
// calls name a sandbox by its address, and v0.2, whose calls name it by its id. README.md
// lists the differences.
package hopx

import (
	"context"
	_ "embed"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// The names of the dialects.
const (
	Name   = "hopx"
	NameV2 = "hopx@0.2"
)

// Dialect is one of the product's two generations.
type Dialect struct {
	dialect.Product
	guide string
	// failure shows the error of a tool.
	failure func(e *failure) any
}

var (
	_ dialect.Failer     = (*Dialect)(nil)
	_ dialect.Configured = (*Dialect)(nil)
	_ dialect.Prompter   = (*Dialect)(nil)
	_ dialect.Resourcer  = (*Dialect)(nil)
)

// New returns v0.1, with 34 tools. Those that work in a sandbox take its address and token.
func New() *Dialect {
	d := newDialect(Name, toolsV1, "vm_url", func(r *row) runner { return r.v1 })
	d.Instructions, d.guide, d.failure = instructionsV1, guideV1, (*failure).v1
	return d
}

// NewV2 returns v0.2, with 35 tools. Those that work in a sandbox take its id.
func NewV2() *Dialect {
	d := newDialect(NameV2, toolsV2, "sandbox_id", func(r *row) runner { return r.v2 })
	d.Instructions, d.guide, d.failure = instructionsV2, guideV2, (*failure).v2
	return d
}

//go:embed tools.json
var toolsV1 []byte

//go:embed tools-v2.json
var toolsV2 []byte

// newDialect makes a dialect from a table of tools. target is the argument that names a
// sandbox.
func newDialect(name string, table []byte, target string, runner func(*row) runner) *Dialect {
	d := &Dialect{Product: dialect.Product{
		ID: name, ServerName: "hopx", Title: "Cove, speaking HOPX",
		ServerVars: []string{"HOPX_BASE_URL"}, KeyVars: []string{"HOPX_API_KEY", "HOPX_BEARER_TOKEN"}, Domains: []string{"hopx.dev", "hopx.ai"},
	}}
	for _, def := range dialect.Definitions(table) {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == def.Name })
		d.Table = append(d.Table, runner(&rows[i])(def, target))
	}
	return d
}

// Resources returns none; clients may list them nevertheless.
func (d *Dialect) Resources() []dialect.ResourceTemplate { return nil }

// Prompts returns the product's only prompt, a guide.
func (d *Dialect) Prompts() []dialect.Prompt {
	return []dialect.Prompt{{
		Def: &mcp.Prompt{Name: "quick_code_execution", Description: "How to run code in sandboxes: which tool, which language, and two examples."},
		Get: func(context.Context, map[string]string) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: d.guide}}}}, nil
		},
	}}
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
