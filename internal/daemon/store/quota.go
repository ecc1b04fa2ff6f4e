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
	return q.AdmitDisk(now.DiskMiB, more.DiskMiB)
}

// AdmitDisk says whether a team whose sandboxes, volumes and snapshots have so
// much disk may have more.
func (q Quota) AdmitDisk(now, more int64) error {
	if q.DiskMiB > 0 && more > 0 && now+more > q.DiskMiB {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team's living sandboxes, volumes and snapshots have %d MiB of disk and this asks for %d more, over the quota of %d; kill sandboxes or delete volumes and snapshots that are no longer needed, or ask for less disk", now, more, q.DiskMiB)
	}
	return nil
}

// AdmitSnapshot says whether a team that has n snapshots may have one more.
func (q Quota) AdmitSnapshot(n int) error {
	if q.Snapshots > 0 && n >= q.Snapshots {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team has %d snapshots, and its quota is %d; delete snapshots that are no longer needed", n, q.Snapshots)
	}
	return nil
}

// AdmitVolume says whether a team that has n volumes may have one more.
func (q Quota) AdmitVolume(n int) error {
	if q.Volumes > 0 && n >= q.Volumes {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team has %d volumes, the most there may be; delete volumes that are no longer needed", n)
	}
	return nil
}
