package dialect

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ArgumentError is an error of a tool's arguments, and not of its work; see
// [Lenient].
type ArgumentError struct {
	Tool string
	Err  error
}

// Error implements error.
func (e *ArgumentError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ArgumentError) Unwrap() error { return e.Err }

// RunError is an error of a tool's work; see [Lenient].
type RunError struct {
	Tool string
	Err  error
}

// Error implements error.
func (e *RunError) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *RunError) Unwrap() error { return e.Err }

// Rewriter brings arguments to the form that a tool's schema has. They are as
// the client sent them by name; it returns those that are checked.
type Rewriter func(args map[string]json.RawMessage) map[string]json.RawMessage

// Lenient is [New] for a product that takes more than its schemas say: rewrite
// changes what clients send before it is checked. Errors of a call are an
// [*ArgumentError] or a [*RunError].
func Lenient[In any](def *mcp.Tool, rewrite Rewriter, run func(ctx context.Context, c *Call, in In) (*mcp.CallToolResult, error)) Tool {
	t := New("", def, func(ctx context.Context, c *Call, in In) (*mcp.CallToolResult, error) {
		res, err := run(ctx, c, in)
		if err != nil {
			return nil, &RunError{def.Name, err}
		}
		return res, nil
	})
	checked := t.Run
	t.Run = func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
		call := *c
		call.Args = Rewritten(c.Args, rewrite)
		res, err := checked(ctx, &call)
		if _, ran := errors.AsType[*RunError](err); err != nil && !ran {
			err = &ArgumentError{def.Name, err}
		}
		return res, err
	}
	return t
}

// Rewritten rewrites arguments. What is no object stays as it is, for the check
// of the arguments.
func Rewritten(raw json.RawMessage, rewrite Rewriter) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil || args == nil {
		return raw
	}
	data, err := json.Marshal(rewrite(args))
	if err != nil {
		return raw
	}
	return data
}

// Properties returns those of a tool's input schema, by name. It panics if that
// is none.
func Properties(def *mcp.Tool) map[string]*jsonschema.Schema {
	s, err := schemaOf(def.InputSchema)
	if err != nil {
		panic("tool " + def.Name + ": " + err.Error())
	}
	return s.Properties
}
