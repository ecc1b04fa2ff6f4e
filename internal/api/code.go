package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// maxCodeBody bounds the JSON of a piece of code with its standard input.
const maxCodeBody = 2*sandbox.MaxCodeBytes + 2*sandbox.MaxStdinBytes

// CodeLine is one line of the stream of a run of code: output, a rich output,
// the result, which has all of them, or an error.
type CodeLine struct {
	Stream sandbox.Stream      `json:"stream,omitempty"`
	Data   []byte              `json:"data,omitempty"`
	Output *sandbox.CodeOutput `json:"output,omitempty"`
	Result *sandbox.CodeResult `json:"result,omitempty" doc:"In the final line."`
	Final  bool                `json:"final,omitempty"`
	Error  *LineError          `json:"error,omitempty"`
}

func failedCode(e *LineError) any { return CodeLine{Error: e} }

// ContextPath is the part of a path that names an interpreter of a sandbox.
type ContextPath struct {
	SandboxPath
	Language string `path:"language" doc:"python, javascript, typescript or bash."`
	Context  string `path:"context" doc:"The name of the context, such as default."`
}

func (p *ContextPath) ref() sandbox.ContextRef {
	return sandbox.ContextRef{Language: sandbox.Language(p.Language), Name: p.Context}
}

type runCodeInput struct {
	SandboxPath
	Accept string `header:"Accept" hidden:"true"`
	Body   sandbox.RunCodeRequest
}

type runIsolatedInput struct {
	Accept string `header:"Accept" hidden:"true"`
	Body   sandbox.RunIsolatedRequest
}

func (h *handlers) registerCode(a huma.API) {
	const streamed = "With `Accept: application/x-ndjson` or `text/event-stream` the answer is a stream of output as it comes, that in base64, " +
		"which ends with a line marked `final` that has the whole result, or with an `error`. A client that disconnects interrupts the code."
	run := op(http.MethodPost, "/v1/sandboxes/{sandbox}/code", "run-code", "code", "Run code in an interpreter that keeps its state")
	run.Description = "Code that fails is no error: the answer has its `error`. " + streamed
	run.MaxBodyBytes = maxCodeBody
	huma.Register(a, streams[CodeLine](a, answers[sandbox.CodeResult](a, run, contentJSON)),
		func(_ context.Context, in *runCodeInput) (*huma.StreamResponse, error) {
			return h.code(in.Accept, func(ctx context.Context, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
				return h.svc.RunCode(ctx, in.Sandbox, in.Body, sink)
			}), nil
		})
	isolated := op(http.MethodPost, "/v1/code", "run-isolated", "code", "Run code in a sandbox made for it alone, which is gone afterwards")
	isolated.Description = streamed
	isolated.MaxBodyBytes = maxCodeBody
	huma.Register(a, streams[CodeLine](a, answers[sandbox.CodeResult](a, isolated, contentJSON)),
		func(_ context.Context, in *runIsolatedInput) (*huma.StreamResponse, error) {
			return h.code(in.Accept, func(ctx context.Context, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
				return h.svc.RunIsolated(ctx, in.Body, sink)
			}), nil
		})
	const contexts = "/v1/sandboxes/{sandbox}/contexts"
	huma.Register(a, says(op(http.MethodGet, contexts, "list-contexts", "code", "List interpreters, oldest first"),
		"A sandbox has at most %d of them, all in one answer.", sandbox.MaxContexts),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.List[sandbox.CodeContext]], error) {
			v, err := h.svc.ListContexts(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, contexts+"/{language}/{context}/interrupt", "interrupt-context", "code", "Interrupt what runs in an interpreter; its state stays"),
		func(ctx context.Context, in *ContextPath) (*Reply[sandbox.CodeContext], error) {
			v, err := h.svc.InterruptContext(ctx, in.Sandbox, in.ref())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, contexts+"/{language}/{context}/restart", "restart-context", "code", "Put a new interpreter in the place of one; its state is lost"),
		func(ctx context.Context, in *ContextPath) (*Reply[sandbox.CodeContext], error) {
			v, err := h.svc.RestartContext(ctx, in.Sandbox, in.ref())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, contexts+"/{language}/{context}", "delete-context", "code", "End an interpreter"),
		func(ctx context.Context, in *ContextPath) (*struct{}, error) {
			return done(ctx, h, h.svc.DeleteContext(ctx, in.Sandbox, in.ref()))
		})
}

// code answers with what run returns, or with all that it tells as it happens.
func (h *handlers) code(accept string, run func(context.Context, sandbox.CodeSink) (*sandbox.CodeResult, error)) *huma.StreamResponse {
	return h.stream(func(ctx context.Context, out *lines) error {
		if !wantsLines(accept) {
			result, err := run(ctx, nil)
			if err != nil {
				return err
			}
			out.w.Header().Set("Content-Type", contentJSON)
			if err := encodeJSON(out.w, result); err != nil {
				panic(http.ErrAbortHandler)
			}
			return nil
		}
		result, err := run(ctx, func(e sandbox.CodeEvent) error {
			if e.Result != nil {
				return nil // the last line has it
			}
			return out.send(CodeLine{Stream: e.Stream, Data: e.Data, Output: e.Output})
		})
		if err != nil {
			return err
		}
		return out.send(CodeLine{Result: result, Final: true})
	}, failedCode)
}
