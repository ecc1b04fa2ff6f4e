// Package machine finds out what Cove can do on this machine, and how to mend what is
// missing. It tries things out where that leaves nothing behind, and reads settings
// otherwise.
package machine

import (
	"context"
	"os"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Status is the outcome of a check.
type Status string

// The outcomes of a check.
const (
	OK   Status = "ok"
	Warn Status = "warn" // something is less than it could be
	Fail Status = "fail" // sandboxes cannot run
)

// Check is one property of the machine that was checked.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail says what was found.
	Detail string `json:"detail"`
	// Fix says what to do about it; empty if nothing need be done.
	Fix string `json:"fix,omitempty"`
}

// Limit is a limit of sandboxes, and how this machine enforces it.
type Limit struct {
	Name string `json:"name"`
	// Enforced is set if the host's kernel, or gVisor's, enforces the limit whatever
	// the sandbox does.
	Enforced bool   `json:"enforced"`
	How      string `json:"how"`
}

// Report is the result of [Probe].
type Report struct {
	// OK is false if sandboxes cannot run here at all.
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
	Limits []Limit `json:"limits"`
}

// Config configures [Probe].
type Config struct {
	// StateDir is where Cove keeps its state; it need not exist yet.
	StateDir string
}

// Probe checks the machine. It takes some milliseconds and leaves nothing behind.
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

// probe is the state that checks share.
type probe struct {
	root     bool
	stateDir string
	cgroups  cgroup.Support
	bounds   []Memory
	capacity sandbox.Resources
	proc     string // "/proc" outside tests
}

// limits returns how each limit is enforced.
func limits(s cgroup.Support) []Limit {
	either := func(name string, enforced bool, how, otherwise string) Limit {
		if !enforced {
			how = otherwise
		}
		return Limit{name, enforced, how}
	}
	return []Limit{
		either("memory", s.Memory,
			"the sandbox's processes are ended when they use more, watched by the agent inside; the host's kernel (cgroup) is behind it",
			"only by the agent inside, which root in the sandbox could get round: the host's kernel has no limit for it here"),
		either("cpu", s.CPU,
			"the host's kernel (cgroup) gives no more processor time",
			"sandboxes are bound to as many processors as they have, which they share with everything else on them"),
		either("pids", s.PIDs,
			"the sandbox's kernel and the host's (cgroup) refuse more processes and threads",
			"only by the sandbox's own kernel: the host's has no limit for it here"),
		{"disk", true, "gVisor refuses to write more above the template"},
	}
}
