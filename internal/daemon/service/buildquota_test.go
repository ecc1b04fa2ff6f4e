package service

import (
	"context"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Sandboxes of builds count for the quota as others do, with the resources that
// they really have.
func TestBuildsAndQuota(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{Sandboxes: 2, MemoryMiB: 4096} })
	big := steps("echo big > x")
	big.Resources.MemoryMiB = 3000
	if b, log, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "big", Spec: big}).ID); b.State != sandbox.BuildReady {
		t.Fatalf("%+v\n%s", b, log)
	}
	sbx := w.create(sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 2048}})
	from := steps("echo more > y")
	from.From = sandbox.TemplateSource{Template: "big"}
	if b, _, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "bigger", Spec: from}).ID); b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "quota") {
		t.Errorf("a step with the memory of what it begins with: %+v", b)
	}

	leave := make(chan struct{})
	w.templates.OnBase = func(ctx context.Context, _ *sandbox.TemplateSpec, _ func(string, float64, string)) error {
		select {
		case <-leave:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	waiting := w.beginBuild(sandbox.BuildTemplateRequest{Name: "waiting", Spec: steps("echo z > z")})
	_, err := w.Create(asRed(t), sandbox.CreateRequest{})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	_, err = w.Fork(asRed(t), sbx.ID, sandbox.ForkRequest{Count: 1})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if _, err := w.Create(as(t.Context(), "blue"), sandbox.CreateRequest{}); err != nil {
		t.Errorf("another team's: %v", err)
	}
	close(leave)
	if b, _, _ := w.follow(waiting.ID); b.State != sandbox.BuildReady {
		t.Errorf("%+v", b)
	}
	w.create(sandbox.CreateRequest{})
}
