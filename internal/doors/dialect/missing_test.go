package dialect

import (
	"context"
	"log/slog"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/sandbox"
)

// lacking is a service whose programs lack a module.
type lacking struct {
	sandbox.Service
	template, name, message string
	exit                    int
}

func (l *lacking) Get(context.Context, string) (*sandbox.Sandbox, error) {
	return &sandbox.Sandbox{Template: l.template}, nil
}

func (l *lacking) result() *sandbox.CodeResult {
	return &sandbox.CodeResult{Error: &sandbox.CodeError{Name: l.name, Message: l.message}, ExitCode: 1}
}

func (l *lacking) RunCode(context.Context, string, sandbox.RunCodeRequest, sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return l.result(), nil
}

func (l *lacking) RunIsolated(context.Context, sandbox.RunIsolatedRequest, sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return l.result(), nil
}

func (l *lacking) Exec(_ context.Context, _ string, _ sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	for _, piece := range []string{"Traceback:\n  File 1\n" + l.name, ": " + l.message + "\n"} {
		if err := sink(sandbox.JobEvent{Stream: sandbox.Stderr, Data: []byte(piece)}); err != nil {
			return nil, err
		}
	}
	return &sandbox.Job{State: sandbox.JobExited, ExitCode: l.exit}, nil
}

// If code lacks a library, the result says where the library is, in addition to the
// output.
func TestMissingLibrary(t *testing.T) {
	const notFound, noPandas = "ModuleNotFoundError", "No module named 'pandas'"
	const want = "hint: this sandbox's template has no pandas; sandboxes of the template code-interpreter have it, or install it here with: pip install pandas"
	for name, tt := range map[string]struct {
		lacking
		want string
	}{
		"host":        {lacking{template: "host", name: notFound, message: noPandas, exit: 1}, want},
		"a submodule": {lacking{template: "host", name: notFound, message: "No module named 'pandas.core'", exit: 1}, want},
		"has it":      {lacking{template: "code-interpreter@3", name: notFound, message: noPandas, exit: 1}, ""},
		"another":     {lacking{template: "host", name: notFound, message: "No module named 'pandas_of_mine'; 'x'", exit: 1}, ""},
		"in a text":   {lacking{template: "host", name: "ValueError", message: "see: " + noPandas, exit: 1}, ""},
	} {
		for door, run := range map[string]func(context.Context, *Call) error{
			"code": func(ctx context.Context, c *Call) error {
				_, err := c.Service.RunCode(ctx, "s", sandbox.RunCodeRequest{}, nil)
				return err
			},
			"isolated": func(ctx context.Context, c *Call) error {
				_, err := c.Service.RunIsolated(ctx, sandbox.RunIsolatedRequest{Template: tt.template}, nil)
				return err
			},
			"command": func(ctx context.Context, c *Call) error {
				_, err := c.Service.Exec(ctx, "s", sandbox.ExecRequest{}, func(sandbox.JobEvent) error { return nil })
				return err
			},
		} {
			t.Run(name+" "+door, func(t *testing.T) {
				tool := Tool{Def: &mcp.Tool{Name: "t"}, Run: func(ctx context.Context, c *Call) (*mcp.CallToolResult, error) {
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "own"}}}, run(ctx, c)
				}}
				res, err := Invoke(t.Context(), nil, tool, &Call{Service: &tt.lacking, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				if len(res.Content) > 1 {
					got = res.Content[1].(*mcp.TextContent).Text
				}
				if own := res.Content[0].(*mcp.TextContent).Text; own != "own" || got != tt.want {
					t.Errorf("%q is followed by %q, want %q", own, got, tt.want)
				}
			})
		}
	}
}
