// Package machine finds out what Cove can do on this machine, and how to fix what is
// missing. Where it can do so without side effects, it tries things; otherwise it reads
// settings.
package machine

import (
	"context"
	"os"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures [Probe].
type Config struct {
	// StateDir is where Cove keeps its state; it need not exist yet.
	StateDir string
	// ForeignProc is whether this program's cells work with the /proc of a container.
	ForeignProc bool
}

// Probe checks the machine. It takes some milliseconds and leaves nothing behind.
func Probe(ctx context.Context, cfg Config) sandbox.MachineReport {
	p := probe{
		root: os.Geteuid() == 0, stateDir: cfg.StateDir, cgroups: cgroup.Available(), proc: "/proc",
		bounds: MemoryBounds(), capacity: Capacity(cfg.StateDir), foreignProc: cfg.ForeignProc,
	}
	var r sandbox.MachineReport
	for _, check := range []func() sandbox.MachineCheck{
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
		r.OK = r.OK && c.Status != sandbox.CheckFail
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

	foreignProc bool
}

// limits returns how each limit is enforced.
func limits(s cgroup.Support) []sandbox.MachineLimit {
	either := func(name string, enforced bool, how, otherwise string) sandbox.MachineLimit {
		if !enforced {
			how = otherwise
		}
		return sandbox.MachineLimit{Name: name, Enforced: enforced, How: how}
	}
	return []sandbox.MachineLimit{
		either("memory", s.Memory,
			"the agent in the sandbox ends processes when they use more, and the host's kernel (cgroup) enforces the limit as well",
			"only the agent in the sandbox enforces this, and root in the sandbox can get around it: the host's kernel has no limit for it here"),
		either("cpu", s.CPU,
			"the host's kernel (cgroup) limits processor time",
			"a sandbox is bound to as many processors as it has, and shares them with everything else that runs on them"),
		either("pids", s.PIDs,
			"the sandbox's kernel and the host's (cgroup) refuse more processes and threads",
			"only the sandbox's own kernel enforces this: the host's has no limit for it here"),
		{Name: "disk", Enforced: true, How: "gVisor refuses to write more on top of the template"},
	}
}
