package operation

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// The functions below adapt a verb, by its signature, to what an operation performs.

// plain is for verbs that take nothing.
func plain[Out any](verb func(sandbox.Service, context.Context) (*Out, error)) func(context.Context, sandbox.Service, *struct{}) (*Out, error) {
	return func(ctx context.Context, s sandbox.Service, _ *struct{}) (*Out, error) { return verb(s, ctx) }
}

// query is for verbs that take one request, whose fields are the query.
func query[In, Out any](verb func(sandbox.Service, context.Context, In) (*Out, error)) func(context.Context, sandbox.Service, *In) (*Out, error) {
	return func(ctx context.Context, s sandbox.Service, in *In) (*Out, error) { return verb(s, ctx, *in) }
}

// body is for verbs that take one request, which is the body.
func body[B, Out any](verb func(sandbox.Service, context.Context, B) (*Out, error)) func(context.Context, sandbox.Service, *Body[B]) (*Out, error) {
	return func(ctx context.Context, s sandbox.Service, in *Body[B]) (*Out, error) { return verb(s, ctx, in.Body) }
}

// named is the part of a path that names something.
type named[In any] interface {
	*In
	name() string
}

// one is for verbs on one thing, by its name.
func one[In any, P named[In], Out any](verb func(sandbox.Service, context.Context, string) (*Out, error)) func(context.Context, sandbox.Service, *In) (*Out, error) {
	return func(ctx context.Context, s sandbox.Service, in *In) (*Out, error) { return verb(s, ctx, P(in).name()) }
}

// remove is for verbs that remove one thing, by its name.
func remove[In any, P named[In]](verb func(sandbox.Service, context.Context, string) error) func(context.Context, sandbox.Service, *In) (*Empty, error) {
	return func(ctx context.Context, s sandbox.Service, in *In) (*Empty, error) {
		return nil, verb(s, ctx, P(in).name())
	}
}

// inSandbox is for verbs on a sandbox with a request, which is the body.
func inSandbox[B, Out any](verb func(sandbox.Service, context.Context, string, B) (*Out, error)) func(context.Context, sandbox.Service, *SandboxBody[B]) (*Out, error) {
	return func(ctx context.Context, s sandbox.Service, in *SandboxBody[B]) (*Out, error) {
		return verb(s, ctx, in.Sandbox, in.Body)
	}
}

// pageOf is for verbs that list what a sandbox has.
func pageOf[T any](verb func(sandbox.Service, context.Context, string, sandbox.Page) (*sandbox.List[T], error)) func(context.Context, sandbox.Service, *SandboxPage) (*sandbox.List[T], error) {
	return func(ctx context.Context, s sandbox.Service, in *SandboxPage) (*sandbox.List[T], error) {
		return verb(s, ctx, in.Sandbox, in.Page)
	}
}

// inContext is for verbs on an interpreter.
func inContext(verb func(sandbox.Service, context.Context, string, sandbox.ContextRef) (*sandbox.CodeContext, error)) func(context.Context, sandbox.Service, *ContextPath) (*sandbox.CodeContext, error) {
	return func(ctx context.Context, s sandbox.Service, in *ContextPath) (*sandbox.CodeContext, error) {
		return verb(s, ctx, in.Sandbox, in.ref())
	}
}
