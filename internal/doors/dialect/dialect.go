// Package dialect defines one MCP surface: a name, a server's description and a
// table of tools over [sandbox.Service]. Cove's own tools are a dialect (package
// native), and so are those of each product whose clients can be switched to Cove.
// A dialect has no engine, no store and no state; what a product's session model
// requires is kept in a [Session].
//
// Package mcpserver serves dialects over stdio and HTTP.
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
// interfaces of their own: [Toolsetter], [Dynamic], [Instructor], [Resourcer], [Lister], [Completer], [Prompter], [Sessionless], [SessionBound], [Namespaced], [Configured],
// [Logged], [Streamer], [Tasker], [Failer].
type Dialect interface {
	// Name is how the dialect is chosen: [a-z0-9_@.-], such as "native".
	Name() string
	// Server describes the server to clients of this dialect.
	Server(version string) Server
	// Tools is the table of tools, in the order of tools/list.
	Tools() []Tool
}

// Server is what a dialect's server says about itself.
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

// Instructor is implemented by a dialect whose instructions depend on the tools
// that a server offers.
type Instructor interface {
	// Instructions replace those of [Dialect.Server].
	Instructions(tools []Tool) string
}

// Resourcer is implemented by a dialect that serves resources.
type Resourcer interface {
	Resources() []ResourceTemplate
}

// Prompter is implemented by a dialect that has prompts.
type Prompter interface {
	Prompts() []Prompt
}

// Sessionless is implemented by a dialect that has no sessions over HTTP in any
// revision of the protocol: a client may call a tool with its first request.
type Sessionless interface {
	Sessionless() bool
}

// SessionBound is implemented by a dialect in which the sandboxes that a session
// makes end with the session, also when its client's process is killed.
type SessionBound interface {
	SessionBound() bool
}

// Namespaced is implemented by a dialect whose calls name namespaces themselves:
// it works in all of the team, where others work in the default namespace, unless
// its client is configured otherwise.
type Namespaced interface {
	Namespaced() bool
}

// DefaultNamespace returns the namespace of clients that name none; "" is the whole
// team.
func DefaultNamespace(d Dialect) string {
	if n, ok := d.(Namespaced); ok && n.Namespaced() {
		return ""
	}
	return sandbox.DefaultNamespace
}

// Configured is implemented by a dialect whose product's clients are configured
// by environment variables that mean something here too.
type Configured interface {
	// Environment returns the address and the key of the server that the variables
	// name; empty is none.
	Environment(get func(name string) string) (server, key string)
}

// Logged is implemented by a dialect whose product's clients configure, by environment
// variables, what a server on standard input and output logs to standard error.
type Logged interface {
	LogLevel(get func(name string) string) slog.Level
}

// Streamer is implemented by a dialect whose tools send output as it comes, with
// [Call.Output]: its servers declare that they send log messages.
type Streamer interface {
	StreamsOutput() bool
}

// Tasker is implemented by a dialect whose calls become tasks when they take
// long, for clients that take tasks (the tasks extension of the protocol).
type Tasker interface {
	HasTasks() bool
}

// PlainJSON is implemented by a dialect whose clients understand only one JSON document
// as an answer over HTTP, whatever they claim to accept.
type PlainJSON interface {
	PlainJSON() bool
}

// Refuser is implemented by a dialect that has its own error for a tool or
// prompt that it does not have.
type Refuser interface {
	// Unknown returns the error, best one of package jsonrpc, for a name of a kind:
	// "tool" or "prompt".
	Unknown(kind, name string) error
}

// Fronted is implemented by a dialect whose product serves more than MCP over HTTP, or
// authenticates callers in its own way.
type Fronted interface {
	// Paths are those that the front answers besides that of MCP.
	Paths() []string
	// Front returns the handler of requests to these paths and to the dialect's MCP,
	// which sees them before they are authenticated. Paths of requests may have doubled
	// and trailing slashes.
	Front(cfg FrontConfig) http.Handler
}

// Ported is implemented by a dialect with a front that has more on a port of the
// dialect's own.
type Ported interface {
	Fronted
	// PortPaths are further paths that the front answers there, and nowhere
	// else.
	PortPaths() []string
}

// FrontConfig is what a front needs from the server.
type FrontConfig struct {
	Service sandbox.Service
	// MCP is the server's. Its requests carry a caller.
	MCP http.Handler
	// Trusted reports whether a request comes from the user who runs the server,
	// whatever credentials it has. Authenticate returns the caller of an API key; its
	// error is unauthenticated for an invalid key.
	Trusted      func(r *http.Request) bool
	Authenticate func(ctx context.Context, key string) (sandbox.Caller, error)
	// Refuse is called before a request is answered whose body nobody reads.
	Refuse func(w http.ResponseWriter, r *http.Request)
	// StateDir is the server's own directory.
	StateDir string
	Log      *slog.Logger
}

// Failer is implemented by a dialect that reports errors in its own way; others use
// [Failure]. Err is never nil.
type Failer interface {
	Failure(err error) *mcp.CallToolResult
}

// Tool is one row of a dialect's table.
type Tool struct {
	// Def is sent to clients unchanged; its schemas may be raw JSON.
	Def *mcp.Tool
	// Toolset is empty in a dialect without toolsets.
	Toolset string
	// Also is further toolsets that the tool is in.
	Also []string
	// Writes marks a tool that changes something although its hint, which is
	// the product's, says that it does not.
	Writes bool
	// Asks marks a tool that asks with [Call.Elicit].
	Asks bool
	// Run does the work. It may return a result with IsError set, or an error
	// that the dialect turns into one.
	Run func(ctx context.Context, c *Call) (*mcp.CallToolResult, error)
}

// Progress reports, for progress notifications, what is going on and how much is done;
// see [Call.Status] and [Call.Fraction].
func (c *Call) Progress(fraction float64, message string) {
	c.Status(message)
	if c.Fraction != nil {
		c.Fraction(fraction)
	}
}

// ReadOnly reports whether the tool changes nothing.
func (t Tool) ReadOnly() bool {
	return t.Def.Annotations != nil && t.Def.Annotations.ReadOnlyHint && !t.Writes
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

// Output is a piece of the output of a call's work, sent before the result.
type Output struct {
	Stream sandbox.Stream `json:"stream"`
	Text   string         `json:"text"`
	// Omitted is how many bytes of the stream before the text are not sent.
	Omitted int64 `json:"omitted_bytes,omitempty"`
}

// Answer is the answer of a client's user.
type Answer int

// The answers.
const (
	NoAnswer Answer = iota
	Yes
	No
)

// Call is one call of a tool. The context that is passed with it carries the caller, and
// ends when the client cancels or goes away.
type Call struct {
	Service sandbox.Service
	// Args is the arguments object as the client sent it; hostile.
	Args json.RawMessage
	// Session returns the state of the MCP session that the call belongs to,
	// or nil where there are no sessions (HTTP since revision 2026-07-28).
	Session func() *Session
	// Status sets, for progress notifications, what is going on. It may be
	// called often and from any goroutine.
	Status func(message string)
	// Fraction says how much of the work is done, 0 to 1, for progress notifications
	// with a total; less than 0 is not known. It may be called often and from any
	// goroutine; nil is nobody's.
	Fraction func(fraction float64)
	// Tell sends a progress notification at once, if the client asked for
	// them; the caller bounds how many. It may be called from any goroutine,
	// and does nothing when the call is over.
	Tell func(message string)
	// Output sends what the work has written as a log message at once, if the
	// client asked for those and the dialect is a [Streamer]; the caller bounds
	// how much. It may be called from any goroutine, and does nothing when the
	// call is over.
	Output func(o Output)
	// Ask asks the client's user a question and reports whether the answer is yes. It is
	// nil if the client cannot ask. Clients of the newest revisions send the answer with
	// a second call: the first ends with the error, which Run must return unchanged, so
	// nothing may be done before the question. The key identifies the question in the
	// call.
	Ask func(ctx context.Context, key, question string) (yes bool, err error)
	// Elicit asks like Ask, but accepts only a real answer: if asking fails, or the user
	// dismisses the question, the result is [NoAnswer]. It may be called from any
	// goroutine during the call of a tool that Asks. It is nil if the client cannot ask.
	Elicit func(ctx context.Context, key, question string) (Answer, error)
	// ElicitEnds says that a question of Elicit ends the request that waits for the
	// call, as with clients of the newest revisions. The call continues without a
	// request, until the client repeats it with the answer.
	ElicitEnds bool
	// WaitingSince returns when the request that waits for the call began. After a
	// question of Elicit has ended the request, it blocks until there is another, or
	// returns the error of the context. It is nil if one request waits all the time.
	WaitingSince func(ctx context.Context) (time.Time, error)
	// Env returns a variable of the environment of a client that has started
	// the server for itself alone, and "" over HTTP.
	Env func(name string) string
	// Protocol is the revision of MCP spoken.
	Protocol string
	// DetachAfter is how long a call waits for a command before it detaches the
	// command and answers with its job; 0 is the dialect's own.
	DetachAfter time.Duration
	// Toolsets is what turns on further toolsets of a [Dynamic] dialect, or nil
	// where a list of tools cannot change.
	Toolsets ToolsetSwitch
	// Header is that of the HTTP request, nil on stdio.
	Header http.Header
	// MaxResult bounds the result as JSON, in bytes, if clients accept no more in one
	// message; 0 is no bound. [Invoke] refuses larger results.
	MaxResult int
	Log       *slog.Logger
}
