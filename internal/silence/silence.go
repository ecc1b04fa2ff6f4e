// Package silence makes connections that end when the other machine is silent. The kernel would
// otherwise wait for a quarter of an hour for a machine that has died.
package silence

import (
	"net"
	"time"
)

// Keepalives of a connection: the first comes after half of the silence that ends it.
const (
	probes   = 3
	idlePart = 2
)

// KeepAlive returns the keepalives by which a connection ends on which nothing was sent, when
// the other machine has been silent for so long.
func KeepAlive(after time.Duration) net.KeepAliveConfig {
	idle := after / idlePart
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: (after - idle) / probes, Count: probes}
}

// Dialer returns a dialer of connections that end when the other machine has been silent for so
// long. On systems other than Linux, the system decides how long what was sent may stay
// unacknowledged. The caller may change the dialer.
func Dialer(after time.Duration) *net.Dialer {
	return &net.Dialer{KeepAliveConfig: KeepAlive(after), Control: unacknowledged(after)}
}
