package dialect

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// Text returns a result of one block of text with its structured twin, which
// may be nil.
func Text(text string, structured any) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: text}},
		StructuredContent: structured,
	}
}

// ErrorBody is the structured form of an error.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail is a stable code and a sentence that says what to do next.
type ErrorDetail struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
	// RetryAfterSeconds, if set, says when a retry may succeed.
	RetryAfterSeconds int64 `json:"retry_after_seconds,omitempty"`
}

// Detail returns what a caller is told about an error.
func Detail(err error) ErrorDetail {
	d := ErrorDetail{Code: sandbox.CodeOf(err), Message: sandbox.MessageOf(err)}
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.RetryAfter > 0 {
		d.RetryAfterSeconds = min(max(1, int64(math.Ceil(e.RetryAfter.Seconds()))), 86400)
	}
	return d
}

// Failure returns the result for an error, unless a dialect has its own way: a sentence
// with the code, and the same as structured content.
func Failure(err error) *mcp.CallToolResult {
	d := Detail(err)
	res := Text(d.Message+" ("+string(d.Code)+")", ErrorBody{d})
	res.IsError = true
	return res
}

// Invoke runs a tool of a dialect: errors become results, a panic becomes an
// internal error, and what only logs may see is logged.
func Invoke(ctx context.Context, d Dialect, t Tool, c *Call) (res *mcp.CallToolResult, err error) {
	fail := Failure
	if f, ok := d.(Failer); ok {
		fail = f.Failure
	}
	defer func() {
		if p := recover(); p != nil {
			c.Log.ErrorContext(ctx, "tool panicked", "tool", t.Def.Name, "panic", p, "stack", string(debug.Stack()))
			res, err = fail(sandbox.Errorf(sandbox.CodeInternal, "internal error; see the server's log for details")), nil
		}
	}()
	watched := &missing{Service: c.Service}
	c.Service = watched
	res, err = t.Run(ctx, c)
	if q, ok := errors.AsType[*InputNeeded](err); ok {
		return &mcp.CallToolResult{InputRequests: q.Requests}, nil
	}
	if err != nil {
		logFailure(ctx, c.Log, t.Def.Name, err)
		return fail(err), nil
	}
	watched.tell(ctx, res)
	if c.MaxResult > 0 && !fits(res, c.MaxResult) {
		err := tooLarge(c.MaxResult)
		logFailure(ctx, c.Log, t.Def.Name, err)
		return fail(err), nil
	}
	return res, nil
}

// InputNeeded is the error of a call that must be repeated with answers.
type InputNeeded struct {
	Requests mcp.InputRequestMap
}

// Error implements error.
func (*InputNeeded) Error() string { return "the client's user is to be asked first" }

func logFailure(ctx context.Context, log *slog.Logger, tool string, err error) {
	level, detail := slog.LevelDebug, err.Error()
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		level = slog.LevelError
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		detail = e.Detail()
	}
	log.Log(ctx, level, "tool failed", "tool", tool, "code", string(sandbox.CodeOf(err)), "error", detail)
}
