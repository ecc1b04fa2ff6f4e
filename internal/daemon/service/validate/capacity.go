package validate

import (
	"cmp"

	"github.com/cove-sh/cove/sandbox"
)

// Capacity says how large a sandbox can be. The zero value sets no bound.
type Capacity struct {
	// Largest returns what the machine has, or the node that has most; 0 is no bound. Nil
	// sets none.
	Largest func() sandbox.Resources
	// Placed says that there are nodes. A request for more processors or memory than each of
	// them has is then refused where it would be placed: another node than the largest may
	// have more of something. The disk is the largest of all.
	Placed bool
	// Dedicated is Largest for dedicated sandboxes, which run on other nodes; nil if there can
	// be none.
	Dedicated func() sandbox.Resources
}

// For returns what holds for sandboxes that are dedicated, or not.
func (c Capacity) For(dedicated bool) Capacity {
	if dedicated {
		c.Largest = c.Dedicated
	}
	return c
}

func (c Capacity) largest() sandbox.Resources {
	if c.Largest == nil {
		return sandbox.Resources{}
	}
	return c.Largest()
}

// Check refuses requested resources that exceed what there is; zero means not given. The
// prefix is put before the names of the fields.
func (c Capacity) Check(prefix string, r sandbox.Resources) error {
	largest, where := c.largest(), "the server's machine has"
	if c.Placed {
		r, where = sandbox.Resources{DiskMiB: r.DiskMiB}, "the largest node has"
	}
	for _, of := range []struct {
		field, unit string
		v, has      int64
	}{
		{"vcpus", "processors", int64(r.VCPUs), int64(largest.VCPUs)},
		{"memory_mib", "MiB of memory for sandboxes", r.MemoryMiB, largest.MemoryMiB},
		{"disk_mib", "MiB of disk", r.DiskMiB, largest.DiskMiB},
	} {
		if of.has > 0 && of.v > of.has {
			return Errorf("%s is %d, but %s only %d %s; use at most that", prefix+of.field, of.v, where, of.has, of.unit)
		}
	}
	return nil
}

// Fit reduces a request's resources to what there is.
func (c Capacity) Fit(r sandbox.Resources) sandbox.Resources {
	if n := c.largest().DiskMiB; n > 0 {
		r.DiskMiB = min(r.DiskMiB, n)
	}
	return c.clamp(r)
}

// Complete completes a request's resources with those of a template, and these with the
// defaults. What the request does not say is reduced to what there is, but for the disk, of
// which a sandbox takes only what it writes.
func (c Capacity) Complete(r, template sandbox.Resources) sandbox.Resources {
	rest := c.clamp(sandbox.Resources{
		VCPUs:     cmp.Or(template.VCPUs, sandbox.DefaultVCPUs),
		MemoryMiB: cmp.Or(template.MemoryMiB, sandbox.DefaultMemoryMiB),
	})
	return sandbox.Resources{
		VCPUs:     cmp.Or(r.VCPUs, rest.VCPUs),
		MemoryMiB: cmp.Or(r.MemoryMiB, rest.MemoryMiB),
		DiskMiB:   cmp.Or(r.DiskMiB, template.DiskMiB, sandbox.DefaultDiskMiB),
		MaxPIDs:   cmp.Or(r.MaxPIDs, template.MaxPIDs, sandbox.DefaultMaxPIDs),
	}
}

func (c Capacity) clamp(r sandbox.Resources) sandbox.Resources {
	largest := c.largest()
	if largest.VCPUs > 0 {
		r.VCPUs = min(r.VCPUs, largest.VCPUs)
	}
	if largest.MemoryMiB > 0 {
		r.MemoryMiB = min(r.MemoryMiB, largest.MemoryMiB)
	}
	return r
}
