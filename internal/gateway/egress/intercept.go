package egress

import (
	"context"
	"net"
	"net/netip"

	"github.com/cove-sh/cove/sandbox"
)

// Interceptor takes over connections of the sandbox that begin with a TLS
// ClientHello or a plain HTTP request, to put secrets into requests.
// Implementations are safe for concurrent use.
type Interceptor interface {
	// Intercept serves one connection until it ends; the gateway closes it
	// after. The connection's name has been judged already, and is allowed.
	//
	// Inside of TLS, a request whose host is not the connection's Name must be
	// refused (421 Misdirected Request): only the Name was judged. In plain
	// HTTP, each request's host is judged by Dial.
	//
	// The error is for the log's reason; nil is a normal end.
	Intercept(ctx context.Context, c *Intercepted) error
}

// Intercepted is a connection that an [Interceptor] takes over.
type Intercepted struct {
	// Conn is the sandbox's end. Reading begins with the connection's first
	// byte. Bytes are counted and rates limited in it.
	Conn net.Conn
	// TLS says that the first bytes are a ClientHello. Otherwise they are an
	// HTTP request, of version 1 or the preface of HTTP/2.
	TLS bool
	// Name is the server name of the ClientHello or the host of the first
	// request without its port, in lower case and ASCII. It is empty for TLS
	// without a server name and for a host that is an address: then the
	// connection is to Destination.
	Name string
	// Destination is where the sandbox's connection went. Its port is the port
	// of all dialled connections.
	Destination netip.AddrPort
	// Dial opens a way out to host, which may be empty or an address for
	// Destination's own. It judges host, and resolves and dials it as the
	// policy says. An error that is a [*RefusedError] tells that the policy
	// refuses it, any other that it could not be reached. The connection is
	// closed by the gateway when the policy changes and refuses it.
	Dial func(ctx context.Context, host string) (net.Conn, error)
	// Record takes an event of kind request. The gateway fills in the sandbox,
	// the time if it is zero, the connection, and address and port if they are
	// empty. It never blocks.
	Record func(sandbox.NetworkEvent)
}

// RefusedError tells that the policy refuses an attempt, and why.
type RefusedError struct{ Decision Decision }

// Error says why, in words for the sandbox's owner.
func (e *RefusedError) Error() string { return e.Decision.Reason }

// Peers reaches other sandboxes of the team, for rules "sandbox:NAME". Whether
// the peer is of the same team and takes connections is for the
// implementation to decide. Implementations are safe for concurrent use.
type Peers interface {
	// Dial connects to a TCP port of the sandbox with that name.
	Dial(ctx context.Context, name string, port uint16) (net.Conn, error)
}
