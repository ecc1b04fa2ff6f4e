package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func (b *builder) resourceHandler(t dialect.ResourceTemplate) mcp.ResourceHandler {
	return func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		res, err := t.Read(ctx, b.cfg.Service, req.Params.URI)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, mcp.ResourceNotFoundError(req.Params.URI)
		}
		return res, b.rpcError(ctx, err)
	}
}

// listResources is a middleware that lists a dialect's resources, which differ for each
// request and caller: the library has only one list for each server.
func (b *builder) listResources(next mcp.MethodHandler) mcp.MethodHandler {
	lister, ok := b.dialect.(dialect.Lister)
	if !ok || b.cfg.Content != nil {
		return next
	}
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		p, ok := req.GetParams().(*mcp.ListResourcesParams)
		if !ok {
			return next(ctx, method, req)
		}
		cursor := ""
		if p != nil {
			cursor, p.Cursor = p.Cursor, "" // not the library's
		}
		res, err := next(ctx, method, req)
		list, ok := res.(*mcp.ListResourcesResult)
		if err != nil || !ok {
			return res, err
		}
		page, more, err := lister.ListResources(ctx, b.cfg.Service, cursor)
		if err != nil {
			return nil, b.rpcError(ctx, err)
		}
		list.Resources = append(list.Resources, page...)
		list.NextCursor = more
		return list, nil
	}
}

// completion returns the handler that completes arguments, or nil.
func (b *builder) completion() func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	completer, ok := b.dialect.(dialect.Completer)
	if !ok {
		return nil
	}
	return func(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		values, more, err := completer.Complete(ctx, b.cfg.Service, req.Params)
		if err != nil {
			return nil, b.rpcError(ctx, err)
		}
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: append([]string{}, values...), HasMore: more}}, nil
	}
}

// rpcError converts an error of the service for a request whose result cannot carry
// it. It returns nil and errors of the protocol unchanged.
func (b *builder) rpcError(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*jsonrpc.Error](err); ok || err == nil {
		return err
	}
	d := dialect.Detail(err)
	if d.Code == sandbox.CodeInternal {
		b.cfg.Log.ErrorContext(ctx, "request failed", "error", err)
	}
	data, merr := json.Marshal(dialect.ErrorBody{Error: d})
	if merr != nil {
		return fmt.Errorf("encode an error: %w", merr)
	}
	code := int64(jsonrpc.CodeInternalError)
	if d.Code == sandbox.CodeInvalid || d.Code == sandbox.CodeTooLarge {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: fmt.Sprintf("%s (%s)", d.Message, d.Code), Data: data}
}
