package rest

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

func (h *handlers) registerCode(a huma.API) {
	registerRun(h, a, operation.RunCode, func(ctx context.Context, in *operation.SandboxBody[sandbox.RunCodeRequest], sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
		return h.svc.RunCode(ctx, in.Sandbox, in.Body, sink)
	})
	registerRun(h, a, operation.RunIsolated, func(ctx context.Context, in *operation.Body[sandbox.RunIsolatedRequest], sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
		return h.svc.RunIsolated(ctx, in.Body, sink)
	})
}

func registerRun[In any](h *handlers, a huma.API, op operation.Op[In, sandbox.CodeResult], run func(context.Context, *In, sandbox.CodeSink) (*sandbox.CodeResult, error)) {
	o := answers[sandbox.CodeResult](a, describeRoute(op.Info), contentJSON)
	huma.Register(a, answers[operation.CodeLine](a, o, contentLines), func(_ context.Context, in *In) (*huma.StreamResponse, error) {
		return h.code(func(ctx context.Context, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
			return run(ctx, in, sink)
		}), nil
	})
}

// code answers with the result of run, or with a stream of its events.
func (h *handlers) code(run func(context.Context, sandbox.CodeSink) (*sandbox.CodeResult, error)) *huma.StreamResponse {
	return stream[operation.CodeLine](h, func(ctx context.Context, out *lines) error {
		if !out.wanted {
			result, err := run(ctx, nil)
			if err != nil {
				return err
			}
			out.answer(result)
			return nil
		}
		result, err := run(ctx, func(e sandbox.CodeEvent) error {
			if e.Result != nil {
				return nil // the last line has the result
			}
			return out.send(operation.CodeLine{Stream: e.Stream, Data: e.Data, Output: e.Output})
		})
		if err != nil {
			return err
		}
		return out.send(operation.CodeLine{Result: result, End: operation.Final})
	})
}
