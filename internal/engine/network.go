package engine

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Network configures the gateway of an instance.
type Network struct {
	// SandboxID is the sandbox in whose log events are recorded; an instance may become
	// another sandbox's.
	SandboxID string
	Policy    sandbox.NetworkPolicy
	Bindings  []Binding
	// Headers are the header rules of the policy, with placeholders of bindings in place of
	// the names of secrets.
	Headers []sandbox.HeaderRule `json:",omitempty"`
	// Answers are the answers in force to questions that the policy asked. Of two answers
	// about the same subject, the later applies.
	Answers []Answer `json:",omitempty"`
	// Values yields the values of the bindings, if there are any. It is never encoded.
	Values Values `json:"-"`
}

// Intercepts reports whether requests of the instance are changed, so that the gateway
// must terminate its TLS.
func (n *Network) Intercepts() bool { return len(n.Bindings) > 0 || len(n.Headers) > 0 }

// Binding is a secret attached to an instance, without its value.
type Binding struct {
	// Placeholder is what the sandbox sees of the secret, unless the secret is only for
	// headers. It identifies the binding.
	Placeholder string
	// SecretID and Secret are the secret's id and name.
	SecretID string
	Secret   string
	Hosts    []string
	Auth     sandbox.SecretAuth
	// Revoked says that the secret no longer exists: requests with the placeholder are
	// refused.
	Revoked bool
}

// Subject is what a question is about, and all that an answer to it allows.
type Subject struct {
	// Protocol is "tcp" or "udp".
	Protocol string `json:"protocol"`
	// Host is a name in lower case and ASCII; if empty, the subject is Address.
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	Port    int    `json:"port"`
	// Secret is the name of the secret that requests to this destination would carry; if
	// empty, the subject is a connection.
	Secret string `json:"secret,omitempty"`
}

// Question is an open question of a gateway: connections wait until it is answered. It
// comes from the instance and is not trusted.
type Question struct {
	// ID starts with "apr-".
	ID string `json:"id"`
	Subject
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
	// Waiting is how many connections wait for the answer.
	Waiting int `json:"waiting"`
}

// Answer allows or refuses a subject where the policy says to ask.
type Answer struct {
	Subject
	Allow bool `json:"allow"`
	// Until is when the answer ends; the zero time means never.
	Until time.Time `json:"until,omitzero"`
}

// ErrNoQuestion means that a question is not open, or no longer.
var ErrNoQuestion = errors.New("no such question is open")

// Asking is an [Instance] whose gateway asks about connections and waits for answers.
type Asking interface {
	Gateway
	// AnswerQuestion answers an open question for the connections that wait for it now, but
	// not for later ones. It returns [ErrNoQuestion] if the question is not open.
	AnswerQuestion(ctx context.Context, id string, allow bool) error
}

// Inquirer is an [Engine] whose instances are [Asking].
type Inquirer interface {
	// SetAsked sets the function that is called with all open questions of an instance after
	// they have changed, and with none when the instance has ended. Calls for one instance
	// do not overlap. SetAsked is called once, before the first Create or Open.
	SetAsked(asked func(instanceID string, open []Question))
}

// Values calls yield with the value of each binding. The value is wiped as soon as yield
// returns, so yield must not keep it, and may copy it only into memory that is wiped too.
type Values func(yield func(placeholder string, value []byte) error) error

// Gateway is an [Instance] with a gateway, which also carries connections to ports of the
// sandbox.
type Gateway interface {
	Instance
	// SetNetwork replaces the gateway's configuration. Before it returns, existing
	// connections are judged again.
	SetNetwork(ctx context.Context, n Network) error
	// DialPort opens a TCP connection to a port of the sandbox. With loopback, it also
	// connects to servers that listen only on the sandbox's loopback device, which are for
	// the sandbox's owner and not for other sandboxes. A [sandbox.Error] is meant for the
	// caller: a port on which nothing listens is unavailable.
	DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error)
}

// Switch is an [Engine] whose gateways connect sandboxes with each other. They call dial,
// which decides whether a sandbox may connect to another one by its name, and connects to
// a port of it. A [sandbox.Error] is meant for the sandbox's owner.
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
