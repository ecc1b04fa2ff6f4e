package store

import "github.com/cove-sh/cove/sandbox"

// Admit says whether a team that uses now may use more.
func (q Quota) Admit(now, more Usage) error {
	for _, c := range []struct {
		what, free     string
		now, want, max int64
	}{
		{"sandboxes", "kill", int64(now.Sandboxes), int64(more.Sandboxes), int64(q.Sandboxes)},
		{"vCPUs", "kill or pause", int64(now.VCPUs), int64(more.VCPUs), int64(q.VCPUs)},
		{"MiB of memory", "kill or pause", now.MemoryMiB, more.MemoryMiB, q.MemoryMiB},
	} {
		if c.max > 0 && c.want > 0 && c.now+c.want > c.max {
			return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team's living sandboxes have %d %s and this asks for %d more, over the quota of %d; %s sandboxes that are no longer needed, or retry later", c.now, c.what, c.want, c.max, c.free)
		}
	}
	return nil
}

// AdmitSnapshot says whether a team that has n snapshots may have one more; a
// max of 0 is no bound.
func AdmitSnapshot(n, max int) error {
	if max > 0 && n >= max {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team has %d snapshots, and its quota is %d; delete snapshots that are no longer needed", n, max)
	}
	return nil
}
