package machine

import (
	"errors"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// scarce are the errors of system calls for lack of something on this machine.
var scarce = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ENOLCK, unix.EAGAIN}

// Scarce reports whether an error is for lack of something on this machine, such as file
// descriptors. It says nothing of whom or what was to be reached.
func Scarce(err error) bool {
	return slices.ContainsFunc(scarce, func(e error) bool { return errors.Is(err, e) })
}

// acceptAgain is how long Accept waits when there is no descriptor for a connection.
const acceptAgain = 100 * time.Millisecond

// Accept accepts a connection. It waits while this machine lacks something for that: whoever
// listens must not stop for ever because of it.
func Accept(l net.Listener) (net.Conn, error) {
	for {
		conn, err := l.Accept()
		if !Scarce(err) {
			return conn, err
		}
		time.Sleep(acceptAgain)
	}
}
