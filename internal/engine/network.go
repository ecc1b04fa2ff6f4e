package engine

import (
	"context"
	"net"

	"github.com/cove-sh/cove/sandbox"
)

// Network configures the gateway of an instance.
type Network struct {
	// SandboxID is the sandbox in whose log events are recorded; an instance may become
	// another sandbox's.
	SandboxID string
	Policy    sandbox.NetworkPolicy
	Bindings  []Binding
	// Values yields the values of the bindings, if there are any. It is never encoded.
	Values Values `json:"-"`
}

// Binding is a secret attached to an instance, without its value.
type Binding struct {
	// Placeholder is what the sandbox sees of the secret. It identifies the binding.
	Placeholder string
	// SecretID and Secret are the secret's id and name.
	SecretID string
	Secret   string
	Hosts    []string
	Auth     sandbox.SecretAuth
	// Revoked says that the secret is gone: requests with the placeholder are refused.
	Revoked bool
}

// Values calls yield with the value of each binding. A value is wiped as soon as yield
// returns, so yield must not keep it, and may copy it only into memory that is wiped too.
type Values func(yield func(placeholder string, value []byte) error) error

// Gateway is an [Instance] with a gateway, which also carries connections to ports inside.
type Gateway interface {
	Instance
	// SetNetwork replaces the gateway's configuration. When it returns, existing
	// connections have been judged again.
	SetNetwork(ctx context.Context, n Network) error
	// DialPort opens a TCP connection to a port of the sandbox. With loopback, it also
	// reaches servers that listen on the sandbox's loopback device only, which are for the
	// sandbox's owner and not for other sandboxes. A [sandbox.Error] is meant for the
	// caller: a port on which nothing listens is unavailable.
	DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error)
}

// Switch is an [Engine] whose gateways connect sandboxes with each other. They call dial,
// which decides whether a sandbox may reach another one by its name, and connects to a
// port of it. A [sandbox.Error] is meant for the sandbox's owner.
type Switch interface {
	// SetPeers is called once, before the first Create or Open.
	SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error))
}

// NetworkLogger is an [Engine] with network logs of sandboxes, which outlive instances.
type NetworkLogger interface {
	// NetworkLog returns one page of the events of a sandbox, newest first, and the cursor
	// of the next page. A sandbox without events is not an error.
	NetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error)
	// FollowNetworkLog passes new events to sink until ctx is cancelled or sink fails.
	FollowNetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error
	// RemoveNetworkLog removes the log of a sandbox, if there is one.
	RemoveNetworkLog(ctx context.Context, sandboxID string) error
	// NetworkLogs lists the sandboxes that have a log.
	NetworkLogs(ctx context.Context) ([]string, error)
}
