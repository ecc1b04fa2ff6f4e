package expose

import (
	"context"
	"net"
	"net/netip"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// DialPeer opens a connection from one sandbox to a port of another, found by name in
// the same namespace and resumed if it is paused. The requesting gateway has already
// applied its policy, but it is not trusted: the policy in the record is applied again.
func (x *Exposer) DialPeer(ctx context.Context, fromSandboxID, name string, port int) (_ net.Conn, err error) {
	ctx, leave, err := x.cfg.Gate.Anonymous(ctx, "preview.visit")
	defer leave(&err)
	if err != nil {
		return nil, err
	}
	from, err := x.cfg.Store.Sandbox(ctx, fromSandboxID)
	if err != nil {
		return nil, err
	}
	if from.State != sandbox.StateRunning {
		return nil, call.NotRunning(&from)
	}
	if err := validate.Port("port", port); err != nil {
		return nil, err
	}
	policy := call.PolicyOf(&from)
	if validate.SandboxName(name) != nil || !allowsPeer(&policy, name, port) {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "no rule of the sandbox allows sandbox:%s at port %d", name, port)
	}
	to, err := x.cfg.Gate.Resolve(ctx, call.RealmOf(&from), name)
	if err != nil {
		return nil, err
	}
	h, err := x.cfg.Open(ctx, call.RealmOf(&from), to.ID)
	if err != nil {
		return nil, err
	}
	return x.dialPort(ctx, h, port, false)
}

// allowsPeer reports whether a policy allows a connection to another sandbox.
func allowsPeer(p *sandbox.NetworkPolicy, name string, port int) bool {
	// The host's addresses do not matter for rules about sandboxes.
	compiled, err := egress.Compile(*p, func() []netip.Addr { return nil })
	return err == nil && compiled.Judge(egress.Attempt{Protocol: "tcp", Port: uint16(port), Peer: name}).Allow
}
