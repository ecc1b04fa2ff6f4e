package service

import (
	"cmp"

	"github.com/cove-sh/cove/internal/egress"
	"github.com/cove-sh/cove/sandbox"
)

// checkNetwork refuses a policy that is wrong and fills in what was left out.
func checkNetwork(p *sandbox.NetworkPolicy) error {
	p.Preset = cmp.Or(p.Preset, sandbox.NetworkOpen)
	return egress.Check(*p)
}
