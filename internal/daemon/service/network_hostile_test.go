package service

import (
	"context"
	"errors"
	"testing"

	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// TestNetworkWithoutTheAgent changes the policy and secrets of a sandbox while its
// agent, which code inside may have stopped, does not answer. Taking something away
// works without the agent.
func TestNetworkWithoutTheAgent(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.secret("one", "first")
	w.secret("two", "second")
	x := w.create(sandbox.CreateRequest{Name: "x", Secrets: map[string]string{"ONE": "one"}})
	w.stop()
	silent := errors.New("the agent does not answer")
	for range 100 {
		w.state.Fail(memory.StepDial, memory.Before, silent)
	}
	w.start() // no connection to the agent is open, and none can be opened
	_, err := w.SetNetwork(ctx, "x", *strict())
	must(t, err)
	w.gated("set", x.ID, strict())

	_, err = w.AttachSecret(ctx, "x", "two", "TWO")
	wantCode(t, err, sandbox.CodeUnavailable)
	if _, values := w.gate(x.ID); len(values) != 1 {
		t.Errorf("after an attachment that failed, the gateway has %v", values)
	}
	_, err = w.DetachSecret(ctx, "x", "ONE")
	must(t, err)
	n, values := w.state.Network(w.record(x.ID).Instance)
	if len(n.Bindings) > 0 || len(values) > 0 {
		t.Errorf("after it was detached, the gateway has %v with %v", n.Bindings, values)
	}
	if !w.record(x.ID).Applying {
		t.Error("the record says that the environment is changed")
	}
	for range 100 { // until all of them have failed
		if err = w.Repair(t.Context()); err == nil {
			break
		}
	}
	must(t, err)
	if got := w.output(x.ID, sandbox.ExecRequest{Shell: "printf %s \"$ONE\""}); got != "" {
		t.Errorf("in the end, ONE is %q inside", got)
	}
	w.gated("in the end", x.ID, strict())
	w.agree()
}

// TestMergedMachineHasThePolicyAtOnce checks the gateway of a merged instance while the
// parent's old instance is still being removed.
func TestMergedMachineHasThePolicyAtOnce(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.fork("x", sandbox.ForkRequest{Name: "f"})
	_, err := w.SetNetwork(ctx, "x", *strict())
	must(t, err)
	looked := false
	w.state.Trap(memory.StepDestroy, memory.Before, func(context.Context) error {
		looked = true
		w.gated("while the other is removed", x.ID, strict())
		return nil
	})
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	if !looked {
		t.Error("nothing was removed")
	}
}

// TestPreviewDeletedWhileDialled deletes a preview while a visitor's connection is
// being opened: no connection stays open.
func TestPreviewDeletedWhileDialled(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	port := echo(t)
	for what, change := range map[string]func() error{
		"deleted": func() error { return w.DeletePreview(asRed(t), "x", port) },
		"has another key": func() error {
			_, err := w.CreatePreview(asRed(t), "x", sandbox.CreatePreviewRequest{Port: port, NewKey: true})
			return err
		},
	} {
		made := w.preview("x", sandbox.CreatePreviewRequest{Port: port})
		w.state.Trap(memory.StepDialPort, memory.After, func(context.Context) error { return change() })
		c, err := w.DialPreview(t.Context(), &made.Preview)
		if err == nil {
			c.Close()
		}
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLostPolicyIsNotForgotten changes other fields of a sandbox whose gateway may have
// another policy than the record: Repair still sends the policy again.
func TestLostPolicyIsNotForgotten(t *testing.T) {
	name := "y"
	for what, other := range map[string]func(w *harness, id string) error{
		"name": func(w *harness, id string) error {
			_, err := w.Update(asRed(w.t), id, sandbox.UpdateRequest{Name: &name})
			return err
		},
		"env": func(w *harness, id string) error {
			_, err := w.SetEnv(asRed(w.t), id, sandbox.SetEnvRequest{Set: map[string]string{"A": "b"}})
			return err
		},
	} {
		w := newHarness(t)
		x := w.create(sandbox.CreateRequest{Network: strict()})
		w.state.Fail(memory.StepSetNetwork, memory.After, errors.New("the reply is lost"))
		w.state.Trap(memory.StepSetNetwork, memory.Before, func(context.Context) error {
			w.state.Fail(memory.StepSetNetwork, memory.Before, errors.New("and then it does not answer"))
			return nil
		})
		_, err := w.SetNetwork(asRed(t), x.ID, sandbox.NetworkPolicy{})
		wantCode(t, err, sandbox.CodeUnavailable)
		if got, _ := w.gate(x.ID); len(got.DenyOut) > 0 {
			t.Fatalf("%s: the gateway has %+v", what, got)
		}
		must(t, other(w, x.ID))
		must(t, w.Repair(t.Context()))
		w.gated(what, x.ID, strict())
	}
}
