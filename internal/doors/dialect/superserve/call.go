package superserve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown is how much of what a client has sent an answer repeats, in bytes.
const maxShown = 128

// tool makes a tool of what it does and its definition. Arguments that the
// schema does not know are dropped, as the product does.
func tool[In any](run func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error)) func(*mcp.Tool) dialect.Tool {
	return func(def *mcp.Tool) dialect.Tool {
		known := dialect.Properties(def)
		return dialect.Lenient(def, func(args map[string]json.RawMessage) map[string]json.RawMessage {
			maps.DeleteFunc(args, func(name string, _ json.RawMessage) bool { return known[name] == nil })
			return args
		}, func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
			res, err := run(ctx, c, in)
			if err != nil && known["sandbox_id"] == nil {
				err = &noTarget{err}
			}
			return res, err
		})
	}
}

// noTarget is an error of a tool that works on no sandbox.
type noTarget struct{ err error }

func (e *noTarget) Error() string { return e.err.Error() }
func (e *noTarget) Unwrap() error { return e.err }

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
	s, gone := dialect.Gone(ctx, c.Service, id, err)
	if gone && (s == nil || s.State == sandbox.StateKilled) {
		return errNoSandbox(id)
	}
	return err // of something in it
}

// Failure tells an error as the product does: one block of text.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	return dialect.ErrorText(failureText(err), nil)
}

func failureText(err error) string {
	if e, ok := errors.AsType[*dialect.ArgumentError](err); ok {
		problem := strings.TrimPrefix(sandbox.MessageOf(e.Err), e.Tool+": ")
		return fmt.Sprintf("MCP error -32602: Input validation error: Invalid arguments for tool %s: %s", e.Tool, problem)
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

// told is an error whose text is the product's own, as it is.
func told(format string, args ...any) (*mcp.CallToolResult, error) {
	return dialect.ErrorText(fmt.Sprintf(format, args...), nil), nil
}
