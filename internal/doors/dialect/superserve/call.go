package superserve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown bounds what an answer quotes of a client's argument, in bytes.
const maxShown = 128

// targeted are arguments that name a sandbox.
type targeted interface{ sandbox() string }

// inSandbox is embedded in arguments that name a sandbox.
type inSandbox struct {
	Sandbox string `json:"sandbox_id"`
}

func (a inSandbox) sandbox() string { return a.Sandbox }

type handler[In any] func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error)

// on makes a tool that works on a sandbox.
func on[In targeted](run handler[In]) func(*mcp.Tool) dialect.Tool {
	return tool(func(ctx context.Context, c *dialect.Call, in In) (*mcp.CallToolResult, error) {
		res, err := run(ctx, c, in)
		return res, explain(ctx, c, in.sandbox(), err)
	})
}

// tool makes a tool from its handler and its definition. Unknown arguments are dropped, as
// by the product.
func tool[In any](run handler[In]) func(*mcp.Tool) dialect.Tool {
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

// noTarget is an error of a tool that does not work on a sandbox.
type noTarget struct{ error }

func (e *noTarget) Unwrap() error { return e.error }

// errNoSandbox returns the error for a sandbox that is unknown or was deleted.
func errNoSandbox(id string) error {
	return &noSandbox{sandbox.Errorf(sandbox.CodeNotFound, "Sandbox %s not found", clip.Text(id, maxShown))}
}

// noSandbox is an error whose text names the tools that help, as the product's text does.
type noSandbox struct{ error }

func (e *noSandbox) Unwrap() error { return e.error }

// explain translates the error of a call on a sandbox: if the sandbox is unknown or was
// deleted, the product says only that.
func explain(ctx context.Context, c *dialect.Call, id string, err error) error {
	s, gone := dialect.Gone(ctx, c.Service, id, err)
	if gone && (s == nil || s.State == sandbox.StateKilled) {
		return errNoSandbox(id)
	}
	return err // about something in the sandbox
}

// Failure shows an error as the product does: as one block of text.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	return dialect.ErrorText(failureText(err), nil)
}

func failureText(err error) string {
	if e, ok := errors.AsType[*dialect.CallError](err); ok && e.Arguments {
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

// refuse returns an error with the product's own text.
func refuse(format string, args ...any) (*mcp.CallToolResult, error) {
	return dialect.ErrorText(fmt.Sprintf(format, args...), nil), nil
}

// listing returns rows under a key, and as text with a line for each.
func listing[T any](key string, rows []T, line func(T) string, none string) *mcp.CallToolResult {
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		lines = append(lines, line(row))
	}
	return dialect.Text(cmp.Or(strings.Join(lines, "\n"), none), map[string]any{key: rows})
}

// toText returns p as text, with U+FFFD for each byte that is not UTF-8.
func toText(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return string([]rune(string(p)))
}
