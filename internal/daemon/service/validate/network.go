package validate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// Network refuses an invalid policy and fills in defaults.
func Network(p *sandbox.NetworkPolicy) error {
	p.Preset = cmp.Or(p.Preset, sandbox.NetworkOpen)
	return egress.Check(*p)
}

// ClonePolicy copies a policy, so that a record does not share it with a request.
func ClonePolicy(p *sandbox.NetworkPolicy) *sandbox.NetworkPolicy {
	c := *p
	c.Rules = slices.Clone(p.Rules)
	for i := range c.Rules {
		c.Rules[i].Ports = slices.Clone(c.Rules[i].Ports)
	}
	c.AllowOut, c.DenyOut = slices.Clone(p.AllowOut), slices.Clone(p.DenyOut)
	c.Headers = slices.Clone(p.Headers)
	for i := range c.Headers {
		c.Headers[i].Set = maps.Clone(c.Headers[i].Set)
	}
	return &c
}

// AgentPort is the port on which the agent listens inside, for the service only.
const AgentPort = 7007

// Port refuses a number that cannot be a port of a sandbox's own programs.
func Port(field string, port int) error {
	if err := Range(field, int64(port), 1, 65535); err != nil {
		return err
	}
	if port == AgentPort {
		return Errorf("%s %d is used by Cove in every sandbox; let the program listen on another port", field, port)
	}
	return nil
}
