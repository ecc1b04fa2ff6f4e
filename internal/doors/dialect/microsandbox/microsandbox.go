// Package microsandbox serves clients of microsandbox's server of 2025: its five MCP tools,
// and the JSON-RPC of its SDKs. README.md lists the differences.
package microsandbox

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Name is the name of the dialect.
const Name = "microsandbox"

// maxShown bounds what an answer quotes of a client's input, in bytes.
const maxShown = 128

// Dialect is the product's surface.
type Dialect struct{ dialect.Product }

var (
	_ dialect.Failer      = (*Dialect)(nil)
	_ dialect.Sessionless = (*Dialect)(nil)
	_ dialect.Namespaced  = (*Dialect)(nil)
	_ dialect.Configured  = (*Dialect)(nil)
	_ dialect.Prompter    = (*Dialect)(nil)
	_ dialect.PlainJSON   = (*Dialect)(nil)
	_ dialect.Refuser     = (*Dialect)(nil)
	_ dialect.Fronted     = (*Dialect)(nil)
)

// method is a function of the product: an MCP tool, and a method of JSON-RPC.
type method struct {
	rpc, tool string
	// fails is the prefix of the text of an MCP error result.
	fails string
	// portal is set for what the product does inside the sandbox.
	portal bool
	// run returns a value to be encoded as JSON.
	run func(ctx context.Context, c *call, params json.RawMessage) (any, error)
}

// methods are all methods, in the product's order.
var methods = []method{
	{"sandbox.start", "sandbox_start", "Error: Sandbox start failed: ", false, start},
	{"sandbox.stop", "sandbox_stop", "Error: Sandbox stop failed: ", false, stop},
	{"sandbox.repl.run", "sandbox_run_code", "Internal error: ", true, runCode},
	{"sandbox.command.run", "sandbox_run_command", "Internal error: ", true, runCommand},
	{"sandbox.metrics.get", "sandbox_get_metrics", "Error: Get metrics failed: ", false, getMetrics},
}

// New returns the dialect.
func New() *Dialect {
	defs := make(map[string]*mcp.Tool)
	for _, def := range dialect.Definitions(toolsJSON) {
		defs[def.Name] = def
	}
	d := &Dialect{dialect.Product{
		ID: Name, ServerName: "microsandbox-server", ServerVars: []string{"MSB_SERVER_URL"}, KeyVars: []string{"MSB_API_KEY"},
	}}
	for _, m := range methods {
		d.Table = append(d.Table, dialect.Tool{Def: defs[m.tool], Run: m.call})
	}
	return d
}

//go:embed tools.json
var toolsJSON []byte

// Namespaced reports that each call names its namespace.
func (d *Dialect) Namespaced() bool { return true }

// Sessionless reports that a call needs no session.
func (d *Dialect) Sessionless() bool { return true }

// PlainJSON reports that clients accept JSON but no streams.
func (d *Dialect) PlainJSON() bool { return true }

// Unknown returns the product's answer to an unknown tool or prompt.
func (d *Dialect) Unknown(kind, name string) error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: fmt.Sprintf("MCP method error: Resource not found: %s '%s' not found", strings.ToUpper(kind[:1])+kind[1:], clip.Text(name, maxShown)),
	}
}

// call is one call of a method.
type call struct {
	*dialect.Call
	// lenient treats a missing namespace as the default one, since later SDKs leave it out.
	lenient bool
}

// call runs a method as an MCP tool.
func (m *method) call(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
	v, err := m.run(ctx, &call{Call: c}, c.Args)
	if err != nil {
		return nil, &failure{m.fails, err}
	}
	// The values are maps, lists, texts and numbers, so keys are in alphabetical order, as
	// in the product.
	return dialect.Text(dialect.JSON(v, "  "), nil), nil
}

// failure is the error of a method. The result describes it in the method's own words.
type failure struct {
	begins string
	err    error
}

func (f *failure) Error() string { return f.begins + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Failure shows an error as the product does: a text that begins with what has failed, and
// says why.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	begins := "Internal error: "
	if f, ok := err.(*failure); ok { //nolint:errorlint // call returns this type
		begins = f.begins
	}
	return dialect.ErrorText(begins+kindOf(err)+sandbox.MessageOf(err), nil)
}

// kindOf returns the product's name for the kind of an error.
func kindOf(err error) string {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid, sandbox.CodeTooLarge, sandbox.CodeForbidden:
		return "Validation error: "
	}
	return "Internal server error: "
}
