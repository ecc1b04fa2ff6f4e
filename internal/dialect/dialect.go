// Package dialect defines what one MCP surface is: a name, a server's
// description and a table of tools over [sandbox.Service]. Our own tools are a
// dialect (package native), and so is each product whose clients can be
// switched to Cove. A dialect holds no engine, no store and no state; what a
// product's session model demands is kept in a [Session].
//
// Package mcpserver carries dialects over stdio and HTTP.
package dialect

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// Dialect is one MCP surface. Its methods are cheap, return the same on every
// call and are safe for concurrent use. What not every dialect has are
// interfaces of their own: [Toolsetter], [Resourcer], [Prompter], [Failer].
type Dialect interface {
	// Name is how the dialect is chosen: [a-z0-9_@.-], such as "native".
	Name() string
	// Server describes the server to clients of this dialect.
	Server(version string) Server
	// Tools is the table of tools, in the order of tools/list.
	Tools() []Tool
}

// Server is what a dialect's server says of itself.
type Server struct {
	Implementation *mcp.Implementation
	// Instructions tell a model how to use the tools.
	Instructions string
}

// Toolsetter is implemented by a dialect whose tools are chosen by toolset.
type Toolsetter interface {
	// Toolsets lists all toolsets in order, and those that are on by default.
	Toolsets() (known, defaults []string)
}

// Resourcer is implemented by a dialect that serves resources.
type Resourcer interface {
	Resources() []ResourceTemplate
}

// Prompter is implemented by a dialect that has prompts.
type Prompter interface {
	Prompts() []Prompt
}

// Failer is implemented by a dialect that tells errors in its own way; others
// use [Failure]. err is never nil.
type Failer interface {
	Failure(err error) *mcp.CallToolResult
}

// Tool is one row of a dialect's table.
type Tool struct {
	// Def is sent to clients as it is; its schemas may be raw JSON.
	Def *mcp.Tool
	// Toolset is empty in a dialect without toolsets.
	Toolset string
	// Run does the work. It may return a result with IsError set, or an error
	// that the dialect turns into one.
	Run func(ctx context.Context, c *Call) (*mcp.CallToolResult, error)
}

// ReadOnly reports whether the tool says that it changes nothing.
func (t Tool) ReadOnly() bool {
	return t.Def.Annotations != nil && t.Def.Annotations.ReadOnlyHint
}

// ResourceTemplate is a family of resources that a dialect serves.
type ResourceTemplate struct {
	Def  *mcp.ResourceTemplate
	Read func(ctx context.Context, svc sandbox.Service, uri string) (*mcp.ReadResourceResult, error)
}

// Prompt is a prompt that a dialect has.
type Prompt struct {
	Def *mcp.Prompt
	Get func(ctx context.Context, args map[string]string) (*mcp.GetPromptResult, error)
}

// Call is one call of a tool. The context beside it carries the caller and
// ends when the client cancels or goes away.
type Call struct {
	Service sandbox.Service
	// Args is the arguments object as the client sent it; hostile.
	Args json.RawMessage
	// Session returns the state of the MCP session that the call belongs to,
	// or nil where there are no sessions (HTTP since revision 2026-07-28).
	Session func() *Session
	// Status says, for progress notifications, what is going on. It may be
	// called often and from any goroutine.
	Status func(message string)
	// Protocol is the revision of MCP spoken.
	Protocol string
	// Handover is how long a call may wait for a command before it hands it
	// over as a job; 0 is the dialect's own.
	Handover time.Duration
	// Header is that of the HTTP request, nil on stdio.
	Header http.Header
	Log    *slog.Logger
}
