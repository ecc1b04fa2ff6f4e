package client

import (
	"net"
	"time"
)

// silence is after how long without an answer from the server's machine a connection ends.
// Without it, a call would wait for many minutes after the machine has died.
const silence = time.Minute

// dialer makes connections to a server.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout: 10 * time.Second, Control: noticeSilence,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 6, Count: 3},
	}
}
