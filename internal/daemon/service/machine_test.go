package service

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

func init() {
	notOnSandbox["CheckMachine"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CheckMachine(ctx)
		return err
	}
	scopeOf["CheckMachine"] = sandbox.ScopeAdmin
}

func TestCheckMachine(t *testing.T) {
	want := sandbox.MachineReport{OK: true, Checks: []sandbox.MachineCheck{{Name: "kernel", Status: sandbox.CheckOK}}}
	w := newHarness(t, func(c *Config) { c.CheckMachine = func(context.Context) sandbox.MachineReport { return want } })
	got, err := w.CheckMachine(asRed(t))
	must(t, err)
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	_, err = newHarness(t).CheckMachine(asRed(t))
	wantCode(t, err, sandbox.CodeUnsupported)
}
