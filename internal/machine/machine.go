// Package machine finds out what this machine lets Cove do, and what to do
// about the rest. It tries things where trying leaves nothing behind, and reads
// settings where it does not.
package machine

import (
	"context"
	"os"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Status says how a check went.
type Status string

// The outcomes of a check.
const (
	OK   Status = "ok"
	Warn Status = "warn" // something is less than it could be
	Fail Status = "fail" // sandboxes cannot run
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail says what was found.
	Detail string `json:"detail"`
	// Fix says what to do about it; empty if nothing need be done.
	Fix string `json:"fix,omitempty"`
}

// Limit is a limit of sandboxes and how this machine holds them to it.
type Limit struct {
	Name string `json:"name"`
	// Enforced is set if the host's kernel, or gVisor's, enforces it whatever
	// the sandbox does.
	Enforced bool   `json:"enforced"`
	How      string `json:"how"`
}

// Report is what was found.
type Report struct {
	// OK is false if sandboxes cannot run here at all.
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
	Limits []Limit `json:"limits"`
}

// Config says what to look at.
type Config struct {
	// StateDir is where Cove keeps its state; it need not exist yet.
	StateDir string
}

// Probe looks at the machine. It takes some milliseconds and leaves nothing
// behind.
func Probe(ctx context.Context, cfg Config) Report {
	p := probe{
		root: os.Geteuid() == 0, stateDir: cfg.StateDir, cgroups: cgroup.Available(), proc: "/proc",
		bounds: MemoryBounds(), capacity: Capacity(cfg.StateDir),
	}
	var r Report
	for _, check := range []func() Check{
		p.kernel, p.user, p.namespaces, p.sandboxUsers, p.procMount, p.platform, p.seccomp, p.ptrace, p.network,
		p.cgroup, p.processors, p.memory, p.quotas, p.swap, p.disk, p.reflink, p.files, p.subordinateIDs, p.debian,
	} {
		if ctx.Err() != nil {
			break
		}
		r.Checks = append(r.Checks, check())
	}
	r.OK = ctx.Err() == nil
	for _, c := range r.Checks {
		r.OK = r.OK && c.Status != Fail
	}
	r.Limits = limits(p.cgroups)
	return r
}

// probe holds what several checks need.
type probe struct {
	root     bool
	stateDir string
	cgroups  cgroup.Support
	bounds   []Memory
	capacity sandbox.Resources
	proc     string // "/proc" outside tests
}

// limits says how each limit is held.
func limits(s cgroup.Support) []Limit {
	out := []Limit{
		{"memory", true, "the sandbox's processes are ended when they use more, watched by the agent inside; the host's kernel (cgroup) is behind it"},
		{"cpu", true, "the host's kernel (cgroup) gives no more processor time"},
		{"pids", true, "the sandbox's kernel and the host's (cgroup) refuse more processes and threads"},
		{"disk", true, "gVisor refuses to write more above the template"},
	}
	if !s.Memory {
		out[0].Enforced = false
		out[0].How = "only by the agent inside, which root in the sandbox could get round: the host's kernel has no limit for it here"
	}
	if !s.CPU {
		out[1].Enforced = false
		out[1].How = "sandboxes are bound to as many processors as they have, which they share with everything else on them"
	}
	if !s.PIDs {
		out[2].Enforced = false
		out[2].How = "only by the sandbox's own kernel: the host's has no limit for it here"
	}
	return out
}
