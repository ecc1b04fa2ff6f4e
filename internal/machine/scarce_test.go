package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

func TestScarce(t *testing.T) {
	for _, err := range []error{
		&os.PathError{Op: "open", Path: "x", Err: unix.EMFILE},
		connect.NewError(connect.CodeUnavailable, &url.Error{Op: "Post", URL: "http://cell", Err: &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("socket", unix.ENFILE)}}),
		fmt.Errorf("flock: %w", unix.ENOLCK),
	} {
		if !Scarce(err) {
			t.Errorf("%v is not", err)
		}
	}
	for _, err := range []error{nil, os.ErrNotExist, unix.ECONNREFUSED, context.DeadlineExceeded, net.ErrClosed} {
		if Scarce(err) {
			t.Errorf("%v is", err)
		}
	}
}

// poorListener lacks descriptors for a while, and is closed then.
type poorListener struct {
	net.Listener
	left int
}

func (l *poorListener) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return nil, net.ErrClosed
}

func TestAcceptWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &poorListener{left: 3}
		if _, err := Accept(l); !errors.Is(err, net.ErrClosed) || l.left != -1 {
			t.Errorf("%v after %d", err, 3-l.left)
		}
	})
}
