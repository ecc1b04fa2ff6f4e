// Package remote carries the contract of package engine over a connection between two
// machines: [Server] offers a node's engine, and [Engine] is such an engine for the daemon
// that drives it.
//
// Each call is one HTTP/2 stream over the connection, which gives it flow control and
// cancellation of its own. Both directions of a stream consist of frames: JSON messages,
// bytes, the values of secrets, and the end of one direction, which HTTP/2 alone lacks for
// the side that answers.
//
// The node may be hostile. Messages from it are bounded, paths that it names are never
// used, and texts are cleaned; whose instances it may speak of is decided by package fleet.
// The node trusts the daemon.
//
// The package authenticates nobody: both take a connection on which that has been done.
package remote

// Protocol is the version of what the two ends say to each other. Ends with different
// versions refuse each other.
const Protocol = 3
