package egress

import (
	"context"
	"net"
	"net/netip"

	"github.com/cove-sh/cove/sandbox"
)

// Interceptor takes over connections of the sandbox that start with a TLS ClientHello or
// a plain HTTP request, to put secrets into requests. Implementations are safe for
// concurrent use.
type Interceptor interface {
	// Intercept serves one connection until it ends; the gateway closes the connection
	// afterwards. The connection's name has been judged and is allowed.
	//
	// Inside TLS, a request whose host is not the connection's Name must be refused (421
	// Misdirected Request): only the Name was judged. In plain HTTP, Dial judges each
	// request's host.
	//
	// The error is the reason in the log; nil is a normal end.
	Intercept(ctx context.Context, c *Intercepted) error
}

// Intercepted is a connection that an [Interceptor] takes over.
type Intercepted struct {
	// Conn is the sandbox's end. Reading starts with the connection's first byte. Conn
	// counts bytes and applies the rate limits.
	Conn net.Conn
	// TLS reports whether the first bytes are a ClientHello. Otherwise they are an HTTP
	// request, of version 1 or the preface of HTTP/2.
	TLS bool
	// Name is the server name of the ClientHello, or the host of the first request without
	// its port, in lower case and ASCII. It is empty for TLS without a server name and for a
	// host that is an address: then the connection is to Destination.
	Name string
	// Destination is the address that the sandbox connected to. All dialled connections use
	// its port.
	Destination netip.AddrPort
	// Dial connects to host; an empty host or an address means Destination. It judges host,
	// and resolves and dials it as the policy says. A [*RefusedError] means that the policy
	// refuses the host, any other error that the host could not be reached. The gateway
	// closes the connection if a changed policy refuses it.
	Dial func(ctx context.Context, host string) (net.Conn, error)
	// MayUse returns when a request to host, a name or an address, may carry a secret, given
	// by its name: at once, unless the policy says to ask. A [*RefusedError] means that it
	// may not, or that ctx ended first. waited reports whether it waited for an answer.
	MayUse func(ctx context.Context, secret, host string) (waited bool, err error)
	// Record records an event of kind request. The gateway fills in the sandbox, the time if
	// it is zero, the connection, and the address and port if they are empty. Record never
	// blocks.
	Record func(sandbox.NetworkEvent)
}

// RefusedError is the policy's refusal of an attempt, with its reason.
type RefusedError struct{ Decision Decision }

// Error returns the reason, for the sandbox's owner.
func (e *RefusedError) Error() string { return e.Decision.Reason }

// Peers connects to other sandboxes of the team, for rules "sandbox:NAME". The
// implementation decides whether the peer belongs to the same team and accepts
// connections. Implementations are safe for concurrent use.
type Peers interface {
	// Dial connects to a TCP port of the sandbox with that name.
	Dial(ctx context.Context, name string, port uint16) (net.Conn, error)
}
