package superserve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown is how much of what a client has sent an answer repeats, in bytes.
const maxShown = 128

// tool makes a tool of what it does and its definition. Arguments that the
// schema does not know are dropped, as the product does.
func tool[In any](run func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error)) func(*mcp.Tool) dialect.Tool {
	return func(def *mcp.Tool) dialect.Tool {
		known := properties(def)
		t := dialect.New("", def, func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
			res, err := run(ctx, c, in)
			if err != nil {
				return nil, &runError{err}
			}
			return res, nil
		})
		checked := t.Run
		t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
			call := *c
			call.Args = only(c.Args, known)
			res, err := checked(ctx, &call)
			if ran, ok := errors.AsType[*runError](err); ok {
				if known["sandbox_id"] == nil {
					return nil, &noTarget{ran.err}
				}
				return nil, ran.err
			}
			if err != nil {
				return nil, &argumentError{tool: def.Name, err: err}
			}
			return res, nil
		}
		return t
	}
}

// runError is an error of a tool's work, noTarget one of a tool that works on no
// sandbox, argumentError one of a tool's arguments.
type (
	runError      struct{ err error }
	noTarget      struct{ err error }
	argumentError struct {
		tool string
		err  error
	}
)

func (e *runError) Error() string      { return e.err.Error() }
func (e *noTarget) Error() string      { return e.err.Error() }
func (e *noTarget) Unwrap() error      { return e.err }
func (e *argumentError) Error() string { return e.err.Error() }
func (e *argumentError) Unwrap() error { return e.err }

func properties(def *mcp.Tool) map[string]*jsonschema.Schema {
	var s jsonschema.Schema
	if err := json.Unmarshal(def.InputSchema.(json.RawMessage), &s); err != nil {
		panic(fmt.Sprintf("tools.json: %v", err))
	}
	return s.Properties
}

// only drops the arguments that are not known. What is no object is left for
// the check of the arguments.
func only(raw json.RawMessage, known map[string]*jsonschema.Schema) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil || args == nil {
		return raw
	}
	dropped := false
	for name := range args {
		if known[name] == nil {
			delete(args, name)
			dropped = true
		}
	}
	if !dropped {
		return raw
	}
	data, err := json.Marshal(args)
	if err != nil {
		return raw
	}
	return data
}

// errNoSandbox is about a sandbox that is unknown or was deleted.
func errNoSandbox(id string) error {
	return &noSandbox{sandbox.Errorf(sandbox.CodeNotFound, "Sandbox %s not found", clip.Text(id, maxShown))}
}

// noSandbox is what the product answers with the names of tools that help.
type noSandbox struct{ err *sandbox.Error }

func (e *noSandbox) Error() string { return e.err.Error() }
func (e *noSandbox) Unwrap() error { return e.err }

// about explains an error of a call on a sandbox: where that is unknown or was
// deleted, the product says so and no more.
func about(ctx context.Context, c *dialect.Call, id string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeNotRunning:
	default:
		return err
	}
	s, getErr := c.Service.Get(ctx, id)
	if sandbox.CodeOf(getErr) == sandbox.CodeNotFound || getErr == nil && s.State == sandbox.StateKilled {
		return errNoSandbox(id)
	}
	return err // of something in it
}

// Failure tells an error as the product does: one block of text.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	res := dialect.Text(failureText(err), nil)
	res.IsError = true
	return res
}

func failureText(err error) string {
	if e, ok := errors.AsType[*argumentError](err); ok {
		problem := strings.TrimPrefix(sandbox.MessageOf(e.err), e.tool+": ")
		return fmt.Sprintf("MCP error -32602: Input validation error: Invalid arguments for tool %s: %s", e.tool, problem)
	}
	if e, ok := errors.AsType[*noSandbox](err); ok {
		return e.Error() + ". Use sandbox_list to see existing sandboxes, or sandbox_create to make one."
	}
	msg := sandbox.MessageOf(err)
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnauthenticated, sandbox.CodeForbidden:
		return "Authentication failed with the key of SUPERSERVE_API_KEY: " + msg
	case sandbox.CodeNotFound:
		return "Not found: " + msg
	case sandbox.CodeInvalid, sandbox.CodeTooLarge:
		return "Invalid request: " + msg
	case sandbox.CodeConflict, sandbox.CodeNotRunning:
		if _, ok := errors.AsType[*noTarget](err); ok {
			return "Conflict: " + msg
		}
		return "Sandbox is in a conflicting state: " + strings.TrimSuffix(msg, ".") + ". Re-check with sandbox_info."
	case sandbox.CodeQuotaExceeded:
		return "Sandbox quota reached. Pause or kill a sandbox (" + msg + "), or retry later."
	case sandbox.CodeTimeout:
		return "Request timed out: " + msg
	case sandbox.CodeInternal, sandbox.CodeUnavailable:
		return "Server error, usually transient and safe to retry: " + msg
	}
	return msg
}

// refusal is a request that is wrong in the product's words.
func refusal(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// told is an error whose text is the product's own, as it is.
func told(format string, args ...any) (*mcp.CallToolResult, error) {
	res := dialect.Text(fmt.Sprintf(format, args...), nil)
	res.IsError = true
	return res, nil
}
