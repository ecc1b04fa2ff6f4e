package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// builds measures the cost of a build step, run and cached, and that a template's size does
// not affect the creation of its sandboxes.
func (b *bench) builds(ctx context.Context) error {
	n := max(3, b.n/6)
	i := 0
	build := func(spec *sandbox.TemplateSpec) (string, time.Duration, error) {
		i++
		name := fmt.Sprintf("bench-step-%d-%d", time.Now().UnixNano(), i)
		began := time.Now()
		req := sandbox.BuildTemplateRequest{Name: name, Spec: spec}
		_, err := b.d.Client.BuildTemplate(ctx, req, func(sandbox.BuildEvent) error { return nil })
		return name, time.Since(began), err
	}
	steps := func(run ...string) *sandbox.TemplateSpec {
		s := &sandbox.TemplateSpec{From: sandbox.TemplateSource{Host: true}}
		for _, r := range run {
			s.Run = append(s.Run, sandbox.TemplateStep{Run: r})
		}
		return s
	}
	remove := func(name string, err error) error {
		if err != nil {
			return err
		}
		return b.d.Client.DeleteTemplate(ctx, name)
	}
	if err := b.time(ctx, "build: one step", "", n, func(context.Context) (time.Duration, error) {
		name, took, err := build(steps(fmt.Sprintf("echo %d-%d > /opt/step", time.Now().UnixNano(), i)))
		return took, remove(name, err)
	}); err != nil {
		return err
	}
	kept := steps("echo 1 > /opt/one", "echo 2 > /opt/two", "echo 3 > /opt/three")
	if err := b.time(ctx, "build: three steps that an earlier build has kept", "", n, func(context.Context) (time.Duration, error) {
		name, took, err := build(kept)
		return took, remove(name, err)
	}); err != nil {
		return err
	}
	for _, mb := range []int{1, 100, 1000} {
		name, _, err := build(steps(fmt.Sprintf("head -c %dM /dev/urandom > /opt/blob", mb)))
		if err != nil {
			return err
		}
		err = b.time(ctx, fmt.Sprintf("create: of a template of %d MB", mb), "", n, func(ctx context.Context) (time.Duration, error) {
			if err := figures.Rest(ctx); err != nil {
				return 0, err
			}
			began := time.Now()
			s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Template: name})
			took := time.Since(began)
			if err != nil {
				return 0, err
			}
			_, err = b.d.Client.Kill(ctx, s.ID)
			return took, err
		})
		if err := remove(name, err); err != nil {
			return err
		}
	}
	return nil
}
