// Package egress is the gateway of a sandbox: it decides what the sandbox may connect to,
// answers its DNS queries, carries its connections and records each attempt. It runs in
// the sandbox's cell.
//
// # How names are judged
//
// A policy may name domains, but packets carry addresses. The gateway binds the two as
// follows:
//
//   - The sandbox's only resolver is the gateway. It resolves what the policy could
//     allow, and remembers which addresses it gave out for which name: the address is
//     pinned.
//   - Where the verdict depends on the name, a TCP connection is accepted and its first
//     bytes are read: the name is the server name of a TLS ClientHello or the host of an
//     HTTP request. If it is allowed, the gateway dials an address that it resolved
//     itself for that name, never the one the sandbox chose, so a connection under a
//     false name goes to the name's true owner.
//   - Plain HTTP is parsed and rewritten, request by request, and each request is judged
//     by its own host; nothing can be smuggled past.
//   - Traffic that shows no name (SSH, TLS without a server name, UDP) is judged by the
//     names that its address is pinned to.
//   - What would hide names is refused where names are needed: QUIC, DNS to other
//     resolvers, over TLS or over HTTPS, and encrypted ClientHellos.
//
// Names have limits. A policy that allows by default and denies a name stops honest
// programs, but not code that already knows the server's address; only a policy that
// denies by default stops that. And many sites may share one server: that a request
// inside TLS is for the name in its ClientHello is known only where an [Interceptor] ends
// TLS.
//
// Where the verdict does not depend on the name, the gateway dials a connection before it
// accepts it, so that the sandbox sees a refused connection as refused, and copies the
// bytes unchanged.
//
// Everything that comes from the sandbox is hostile: parsers are bounded and fuzzed.
package egress
