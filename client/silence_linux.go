package client

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// noticeSilence ends a connection on which what was sent is not acknowledged.
func noticeSilence(network, _ string, c syscall.RawConn) (err error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	return errors.Join(failed, err)
}
