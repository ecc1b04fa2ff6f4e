package miosa

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// alias is another name under which clients send an argument.
type alias struct{ name, other string }

// call is one call of a tool.
type call struct {
	*dialect.Call
	session *session
}

// tool makes a tool from its handler and its definition. The call ends when the request
// timeout of the client's environment expires.
func tool[In any](run func(ctx context.Context, c *call, in In) (*mcp.CallToolResult, error), aliases ...alias) func(*definition) dialect.Tool {
	return waiting(func(ctx context.Context, c *call, in In) (*mcp.CallToolResult, error) {
		ctx, cancel := c.bound(ctx)
		defer cancel()
		res, err := run(ctx, c, in)
		if err != nil && errors.Is(context.Cause(ctx), errTooSlow) {
			err = sandbox.Wrap(sandbox.CodeTimeout, err, fmt.Sprintf("the request took longer than MIOSA_TIMEOUT_MS, %d ms; raise it, or try again", c.timeout().Milliseconds()))
		}
		return res, err
	}, aliases...)
}

// waiting makes a tool that bounds its waiting itself, instead of by the client's
// environment.
func waiting[In any](run func(ctx context.Context, c *call, in In) (*mcp.CallToolResult, error), aliases ...alias) func(*definition) dialect.Tool {
	return func(def *definition) dialect.Tool {
		args := argumentsOf(def, aliases)
		checked := dialect.New("", &mcp.Tool{Name: def.Name, InputSchema: args.schema}, func(ctx context.Context, dc *dialect.Call, in In) (*mcp.CallToolResult, error) {
			s, err := sessionOf(dc)
			if err != nil {
				return nil, err
			}
			return run(ctx, &call{Call: dc, session: s}, in)
		})
		return dialect.Tool{Def: def.Tool, Run: func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
			res, err := (*mcp.CallToolResult)(nil), error(nil)
			plain := *c
			if plain.Args, err = args.plain(c.Args); err == nil {
				res, err = checked.Run(ctx, &plain)
			}
			if err != nil {
				return nil, numbered(ctx, c, def.Name, err)
			}
			return res, nil
		}}
	}
}

// arguments are the arguments that a tool takes.
type arguments struct {
	// schema validates the plain arguments.
	schema  *jsonschema.Schema
	needed  []string
	aliases []alias
}

func argumentsOf(def *definition, aliases []alias) *arguments {
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(def.InputSchema.(json.RawMessage), s); err != nil {
		panic(fmt.Sprintf("tools.json: %v", err))
	}
	for name, raw := range def.Hidden {
		hidden := new(jsonschema.Schema)
		if err := json.Unmarshal(raw, hidden); err != nil {
			panic(fmt.Sprintf("tools.json: %v", err))
		}
		s.Properties[name] = hidden
	}
	// The default applies only if neither is given: an idle time alone may be longer.
	if p := s.Properties["timeout_sec"]; p != nil && s.Properties["idle_timeout_sec"] != nil {
		p.Default = nil
	}
	a := &arguments{schema: s, needed: s.Required, aliases: slices.Clone(aliases)}
	s.Required = nil
	for _, name := range []string{"sandbox_id", "computer_id"} {
		if s.Properties[name] != nil {
			a.aliases = append(a.aliases, alias{name, "id"})
		}
	}
	if s.Properties["template"] != nil {
		a.aliases = append(a.aliases, alias{"template", "template_id"})
	}
	return a
}

// plain renames arguments to the schema's names, drops unknown ones, and refuses a call
// without the required ones. Another name stands for only one argument: the "id" of a
// preview is not also its sandbox's. What is not an object is left for the check against
// the schema.
func (a *arguments) plain(raw json.RawMessage) (json.RawMessage, error) {
	var given map[string]json.RawMessage
	if json.Unmarshal(raw, &given) != nil {
		return raw, nil
	}
	args := make(map[string]json.RawMessage)
	take := func(name string, v json.RawMessage) {
		if a.schema.Properties[name] != nil && args[name] == nil && string(v) != "null" {
			args[name] = v
		}
	}
	for name, v := range given {
		take(name, v)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		v := given[name]
		if name = snake(name); given[name] == nil {
			given[name] = v
			take(name, v)
		}
	}
	used := make(map[string]bool)
	for _, al := range a.aliases {
		v, ok := given[al.other]
		if ok && !used[al.other] && args[al.name] == nil && a.schema.Properties[al.other] == nil {
			used[al.other] = true
			take(al.name, v)
		}
	}
	for _, name := range a.needed {
		if v := string(args[name]); (v == "" || v == `""`) && !(name == "content" && v != "") && !(name == "preview_id" && args["port"] != nil) {
			return nil, &missing{name + " is required"}
		}
	}
	return json.Marshal(args)
}

// snake converts a name in camelCase to the product's own style.
func snake(name string) string {
	if len(name) > 64 {
		return name
	}
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// missing is the error for a missing argument.
type missing struct{ text string }

func (e *missing) Error() string { return e.text }
func (e *missing) Unwrap() error { return dialect.Invalid("%s", e.text) }

// errTooSlow is the cancellation cause of a request that took too long.
var errTooSlow = errors.New("the time of the request is over")

// timeout returns the request timeout of the client's environment; 0 means none.
func (c *call) timeout() time.Duration {
	ms, err := strconv.ParseInt(c.Env("MIOSA_TIMEOUT_MS"), 10, 32)
	if err != nil || ms <= 0 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func (c *call) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if d := c.timeout(); d > 0 {
		return context.WithTimeoutCause(ctx, d, errTooSlow)
	}
	return ctx, func() {}
}

// result returns an object as text and as structured content.
func result(v any) (*mcp.CallToolResult, error) {
	return dialect.Text(dialect.JSON(v, ""), v), nil
}

// failure is an error in the form of the product's REST interface.
type failure struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	Status     int    `json:"status"`
	RequestID  string `json:"request_id"`
	RetryAfter int64  `json:"retry_after,omitempty"`
	err        error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// numbered gives an error the id under which it is logged.
func numbered(ctx context.Context, c *dialect.Call, tool string, err error) error {
	f := failureOf(err)
	f.RequestID = newRequestID()
	c.Log.Log(ctx, slog.LevelDebug, "request failed", "request", f.RequestID, "tool", tool, "status", f.Status)
	return f
}

func failureOf(err error) *failure {
	d := dialect.Detail(err)
	f := &failure{Message: d.Message, RetryAfter: d.RetryAfterSeconds, err: err}
	_, without := errors.AsType[*missing](err)
	switch {
	case without:
		f.Status, f.Code = 400, "MISSING_PARAM"
	default:
		f.Status, f.Code = statusOf(d.Code)
	}
	switch d.Code {
	case sandbox.CodeForbidden:
		f.Message = "403 Unauthorized: " + f.Message
	case sandbox.CodeUnauthenticated:
		f.Message = "MIOSA_API_KEY is not set to a key of this server: " + f.Message
	}
	return f
}

// statusOf maps an error code to an HTTP status and the product's code.
func statusOf(code sandbox.Code) (status int, theirs string) {
	switch code {
	case sandbox.CodeInvalid, sandbox.CodeUnsupported:
		return 422, "VALIDATION_ERROR"
	case sandbox.CodeUnauthenticated:
		return 401, "invalid_token"
	case sandbox.CodeForbidden:
		return 403, "insufficient_scope"
	case sandbox.CodeNotFound:
		return 404, "NOT_FOUND"
	case sandbox.CodeConflict:
		return 409, "CONFLICT"
	case sandbox.CodeNotRunning:
		return 409, "SANDBOX_NOT_RUNNING"
	case sandbox.CodeTooLarge:
		return 413, "PAYLOAD_TOO_LARGE"
	case sandbox.CodeQuotaExceeded:
		return 429, "rate_limit_exceeded"
	case sandbox.CodeCancelled:
		return 499, "CANCELLED"
	case sandbox.CodeUnavailable:
		return 503, "SERVICE_UNAVAILABLE"
	case sandbox.CodeTimeout:
		return 504, "TIMEOUT"
	}
	return 500, "INTERNAL_ERROR"
}

// Failure shows an error as the product does: a line of text, and the error of its REST
// interface as structured content.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	f, ok := errors.AsType[*failure](err)
	if !ok { // from a panic
		f = failureOf(err)
		f.RequestID = newRequestID()
	}
	return dialect.ErrorText(fmt.Sprintf("Error: %s (%d %s, request_id %s)", f.Message, f.Status, f.Code, f.RequestID), map[string]any{"error": f})
}

// quoted returns the start of an agent's input, on one line.
func quoted(s string) string { return dialect.OneLine(clip.Text(s, 64)) }

// errGone marks errors about things that do not exist, or no longer do.
var errGone = errors.New("gone")

// about explains the error of a call on a sandbox. A sandbox that has ended is not found,
// however it was named.
func (c *call) about(ctx context.Context, id string, err error) error {
	s, gone := dialect.Gone(ctx, c.Service, id, err)
	if !gone {
		return err
	}
	c.session.gone(cmp.Or(idOf(s), id))
	return sandbox.Wrap(sandbox.CodeNotFound, errors.Join(errGone, err), fmt.Sprintf("there is no sandbox or computer %s (any more); see sandbox_list, or create another", quoted(id)))
}

func idOf(s *sandbox.Sandbox) string {
	if s == nil {
		return ""
	}
	return s.ID
}
