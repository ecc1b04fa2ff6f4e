package service

import (
	"errors"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// upTo is the capacity of one machine.
func upTo(r sandbox.Resources) validate.Capacity {
	return validate.Capacity{Largest: func() sandbox.Resources { return r }}
}

// No sandbox or template can be larger than the machine: a request for one is refused
// with the machine's size, and the resources of another machine's template are reduced.
func TestLargerThanTheMachine(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Capacity = upTo(sandbox.Resources{VCPUs: 2, MemoryMiB: 250, DiskMiB: 9000}) })
	s := w.create(sandbox.CreateRequest{}) // of a template with more
	if s.Resources.VCPUs > 2 || s.Resources.MemoryMiB != 250 {
		t.Errorf("a sandbox of the template has %+v", s.Resources)
	}
	for _, tt := range []struct {
		r    sandbox.Resources
		want string
	}{
		{sandbox.Resources{VCPUs: 3}, "vcpus is 3, but the server's machine has only 2 processors"},
		{sandbox.Resources{MemoryMiB: 251}, "memory_mib is 251, but the server's machine has only 250 MiB of memory"},
		{sandbox.Resources{DiskMiB: 9001}, "disk_mib is 9001, but the server's machine has only 9000 MiB of disk"},
	} {
		refused := func(what string, err error, want string) {
			t.Helper()
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s with %+v says %v, want %q", what, tt.r, err, want)
			}
		}
		_, err := w.Create(asRed(t), sandbox.CreateRequest{Resources: tt.r})
		refused("a create", err, "resources."+tt.want)
		_, err = w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "big", Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Host: true}, Resources: tt.r}})
		refused("a build", err, "resources."+tt.want)
		if tt.r.DiskMiB == 0 {
			var req sandbox.UpdateRequest
			if tt.r.VCPUs > 0 {
				req.VCPUs = &tt.r.VCPUs
			} else {
				req.MemoryMiB = &tt.r.MemoryMiB
			}
			_, err = w.Update(asRed(t), s.ID, req)
			refused("an update", err, tt.want)
		}
	}
	if _, err := w.Create(asRed(t), sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 250, DiskMiB: 9000}}); err != nil {
		t.Errorf("all that there is: %v", err)
	}
	less, err := w.Create(asRed(t), sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 64, MemoryMiB: 200, DiskMiB: 1 << 20}, FitResources: true})
	must(t, err)
	if r := less.Resources; r.VCPUs != 2 || r.MemoryMiB != 200 || r.DiskMiB != 9000 {
		t.Errorf("who takes less gets %+v", r)
	}
	w.agree()
}

// With nodes, requests are not refused here, and get no less than they ask for, unless they
// say so. What they leave out is not more than the largest node has.
func TestLargerThanTheNode(t *testing.T) {
	w := newHarness(t, func(c *Config) {
		c.Capacity = upTo(sandbox.Resources{VCPUs: 2, MemoryMiB: 250, DiskMiB: 1000})
		c.Capacity.Placed = true
	})
	for _, tt := range []struct {
		req  sandbox.CreateRequest
		want sandbox.Resources
	}{
		{sandbox.CreateRequest{}, sandbox.Resources{VCPUs: 1, MemoryMiB: 250}},
		{sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 3}}, sandbox.Resources{VCPUs: 3, MemoryMiB: 250}},
		{sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 300}}, sandbox.Resources{VCPUs: 1, MemoryMiB: 300}},
		{sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 3, MemoryMiB: 300}, FitResources: true}, sandbox.Resources{VCPUs: 2, MemoryMiB: 250}},
	} {
		if got := w.create(tt.req).Resources; got.VCPUs != tt.want.VCPUs || got.MemoryMiB != tt.want.MemoryMiB {
			t.Errorf("a request for %+v gets %+v, want %+v", tt.req.Resources, got, tt.want)
		}
	}
	_, err := w.Create(asRed(t), sandbox.CreateRequest{Resources: sandbox.Resources{DiskMiB: 1001}})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "the largest node has only 1000 MiB of disk") {
		t.Errorf("more disk than any node has: %v", err)
	}
	w.agree()
}

// A request for which there is no room is refused before any work, and leaves nothing.
func TestNoRoom(t *testing.T) {
	w := newHarness(t)
	none := sandbox.Wrap(sandbox.CodeQuotaExceeded, engine.ErrNoRoom, "the machine has 5 MiB of memory available; kill or pause sandboxes")
	s := w.create(sandbox.CreateRequest{Name: "parent"})
	noRoom := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, engine.ErrNoRoom) || sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded || !strings.Contains(err.Error(), "5 MiB") {
			t.Errorf("%s says %v", what, err)
		}
	}
	w.state.Fail(memory.StepAdmit, memory.Before, none)
	_, err := w.Fork(asRed(t), s.ID, sandbox.ForkRequest{Count: 3})
	noRoom("a fork", err)
	if n := w.state.Calls(memory.StepCheckpoint); n != 0 {
		t.Errorf("%d checkpoints are written in vain", n)
	}
	w.state.Fail(memory.StepCreate, memory.Before, none)
	_, err = w.Create(asRed(t), sandbox.CreateRequest{Name: "next"})
	noRoom("a create", err)
	all, err := w.List(asRed(t), sandbox.ListRequest{States: states})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("left are %+v, %v", all, err)
	}
	w.agree()
}
