package dialect

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// CallError is an error of a tool that [Lenient] has made.
type CallError struct {
	Tool string
	// Arguments marks an error of the tool's arguments, before any work was done.
	Arguments bool
	Err       error
}

// Error returns the message of Err.
func (e *CallError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *CallError) Unwrap() error { return e.Err }

// Rewriter brings arguments, by name as the client sent them, to the form of a
// tool's schema, which they are checked against next.
type Rewriter func(args map[string]json.RawMessage) map[string]json.RawMessage

// Lenient is [New] for a product that accepts more than its schemas say: rewrite
// changes what clients send before it is checked. Errors of a call are
// [*CallError].
func Lenient[In any](def *mcp.Tool, rewrite Rewriter, run func(ctx context.Context, c *Call, in In) (*mcp.CallToolResult, error)) Tool {
	t := New("", def, func(ctx context.Context, c *Call, in In) (*mcp.CallToolResult, error) {
		res, err := run(ctx, c, in)
		if err != nil {
			return nil, &CallError{Tool: def.Name, Err: err}
		}
		return res, nil
	}).Rewriting(rewrite)
	checked := t.Run
	t.Run = func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		res, err := checked(ctx, c)
		if _, ran := errors.AsType[*CallError](err); err != nil && !ran {
			err = &CallError{Tool: def.Name, Arguments: true, Err: err}
		}
		return res, err
	}
	return t
}

// Rewriting returns the tool with its arguments rewritten before they are checked.
// Arguments that are not an object stay as they are, for the check to refuse.
func (t Tool) Rewriting(rewrite Rewriter) Tool {
	next := t.Run
	t.Run = func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		call := *c
		var args map[string]json.RawMessage
		if json.Unmarshal(c.Args, &args) == nil && args != nil {
			if data, err := json.Marshal(rewrite(args)); err == nil {
				call.Args = data
			}
		}
		return next(ctx, &call)
	}
	return t
}

// Properties returns the properties of a tool's input schema, by name. It panics
// if the schema is malformed.
func Properties(def *mcp.Tool) map[string]*jsonschema.Schema {
	return mustSchema(def).Properties
}
