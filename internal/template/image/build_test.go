package image

import (
	"context"
	"sync"

	"github.com/cove-sh/cove/sandbox"
)

// Build builds a template without steps, as the service does, and reports its progress to
// sink. If the build or sink fails, or ctx is cancelled, an earlier build stays in use and
// nothing is left of this one. Only one build of a template runs at a time: a second
// request is a conflict.
func (p *Provider) Build(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	plan, err := p.Plan(ctx, req)
	if err != nil {
		return nil, err
	}
	t := plan.Ready
	if t == nil {
		if t, err = p.run(ctx, plan, sink); err != nil {
			return nil, err
		}
	}
	if sink != nil {
		if err := sink(sandbox.BuildEvent{Step: "ready", Fraction: 1, Template: t}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// run builds a plan without steps. No other build of the name runs meanwhile.
func (p *Provider) run(ctx context.Context, plan *Plan, sink func(sandbox.BuildEvent) error) (t *sandbox.Template, err error) {
	done, err := p.Claim(plan.Name, plan.Spec.Resources)
	if err != nil {
		return nil, err
	}
	defer func() { done(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // reports come from several goroutines
	report := func(step string, fraction float64, log string) {
		mu.Lock()
		defer mu.Unlock()
		if sink == nil || ctx.Err() != nil {
			return
		}
		if err := sink(sandbox.BuildEvent{Step: step, Fraction: fraction, Log: log}); err != nil {
			cancel(err)
		}
	}
	b, err := p.Base(ctx, plan, report)
	if err == nil {
		t, err = p.Publish(plan.Name, &plan.Spec, b)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.log.Warn("template build failed", "template", plan.Name, "error", err)
		return nil, err
	}
	return t, nil
}
