// Package egress is the gateway of a sandbox: it decides what the sandbox may reach,
// answers its DNS queries, carries its connections and records each attempt. It runs in
// the sandbox's cell.
//
// # How names are judged
//
// A policy may name domains, but packets carry addresses. The two are bound
// like this:
//
//   - The sandbox's only resolver is the gateway. It resolves what the policy
//     could allow, and remembers which addresses it gave out for which name:
//     the address is pinned.
//   - Where the verdict depends on the name, a TCP connection is accepted and
//     its first bytes are read: the server name of a TLS ClientHello or the
//     host of an HTTP request is the name. If it is allowed, the gateway dials
//     an address that it resolved itself for that name, never the one the
//     sandbox chose, so a false name reaches its true owner.
//   - Plain HTTP is parsed and written anew, request by request, each judged
//     by its own host; nothing can be smuggled past.
//   - What shows no name (SSH, TLS without a server name, UDP) is judged by the
//     names that its address is pinned to.
//   - What would hide names is refused where names are needed: QUIC, DNS to
//     other resolvers, over TLS or over HTTPS, and encrypted ClientHellos.
//
// What names cannot do: a policy that allows by default and denies a name keeps
// honest programs away from it, but not code that brings the server's address
// along; only a policy that denies by default does. And many sites may share one
// server: that a request inside of TLS is for the name in its ClientHello is
// known only where an [Interceptor] ends TLS.
//
// Where the verdict does not depend on the name, connections are dialled
// before they are accepted, so that the sandbox meets a refused connection as
// one, and their bytes are copied as they are.
//
// Whatever comes from the sandbox is hostile: parsers are bounded and fuzzed.
package egress
