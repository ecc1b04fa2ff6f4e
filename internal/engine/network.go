package engine

import (
	"context"
	"net"

	"github.com/cove-sh/cove/sandbox"
)

// Network is what the gateway of an instance does.
type Network struct {
	// SandboxID is the sandbox whose log is written; an instance may become
	// another sandbox's.
	SandboxID string
	Policy    sandbox.NetworkPolicy
	Bindings  []Binding
	// Values tells the values of the bindings, if there are any. It is kept
	// out of every encoding.
	Values Values `json:"-"`
}

// Binding is a secret attached to an instance, without its value.
type Binding struct {
	// Placeholder is what the sandbox sees. It identifies the binding.
	Placeholder string
	// SecretID and Secret are the secret's id and name.
	SecretID string
	Secret   string
	Hosts    []string
	Auth     sandbox.SecretAuth
	// Revoked says that the secret is gone: requests with the placeholder are
	// refused.
	Revoked bool
}

// Values calls yield with the value of each binding. A value is wiped as soon
// as yield returns, which therefore must neither keep nor copy it but into what
// it wipes too.
type Values func(yield func(placeholder string, value []byte) error) error

// Gateway is an [Instance] whose gateway can be told what to do and which
// carries connections to ports inside.
type Gateway interface {
	Instance
	// SetNetwork replaces what the gateway does, at once: when it returns,
	// existing connections have been judged again.
	SetNetwork(ctx context.Context, n Network) error
	// DialPort opens a TCP connection to a port of the sandbox; with loopback
	// also to a server that listens on the sandbox's loopback device only,
	// which is for its owner and not for its neighbours. An error that is a
	// [sandbox.Error] is meant for the caller: a port on which nothing listens
	// is unavailable.
	DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error)
}

// Switch is an [Engine] whose gateways connect sandboxes with each other. They
// ask dial, which decides whether a sandbox may reach the sandbox of a name,
// and opens a connection to its port. An error that is a [sandbox.Error] is
// meant for the sandbox's owner.
type Switch interface {
	// SetPeers is called before the first Create or Open, once.
	SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error))
}

// NetworkLogger is an [Engine] that keeps the network logs of sandboxes, which
// outlive their instances.
type NetworkLogger interface {
	// NetworkLog returns one page of the events of a sandbox, newest first, and
	// the cursor of the next. A sandbox without events is not an error.
	NetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error)
	// FollowNetworkLog passes events that come from now on to sink, until ctx
	// is cancelled or sink fails.
	FollowNetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error
	// RemoveNetworkLog removes the log of a sandbox, if there is one.
	RemoveNetworkLog(ctx context.Context, sandboxID string) error
	// NetworkLogs lists the sandboxes that have a log.
	NetworkLogs(ctx context.Context) ([]string, error)
}
