package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// listenUnix listens on a unix socket that only the user who runs the daemon,
// and root, can use: by its mode, and by asking the kernel who connects.
//
// Preconditions: the lock of the state directory is held, so a socket that is
// there is left over.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return &ownListener{UnixListener: l}, nil
}

// ownListener accepts connections of this process's user and of root only.
type ownListener struct{ *net.UnixListener }

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if isOwn(conn) {
			return conn, nil
		}
		conn.Close()
	}
}

func isOwn(conn *net.UnixConn) bool {
	uid, err := peerUser(conn)
	return err == nil && (uid == 0 || uid == os.Geteuid())
}

// CheckServer refuses a connection to a unix socket that somebody else than this
// user or root has made: they would be sent commands, files and values of
// secrets.
func CheckServer(conn net.Conn, path string) error {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%s is not a Unix socket", path)
	}
	uid, err := peerUser(c)
	switch {
	case err != nil:
		return fmt.Errorf("ask whose the socket %s is: %w", path, err)
	case uid != 0 && uid != os.Geteuid():
		return sandbox.Errorf(sandbox.CodeForbidden, "the socket %s is served by another user (%d), who could see everything that is sent; run this as that user, or choose another state directory with --state-dir", path, uid)
	}
	return nil
}

// peerUser asks the kernel for the user of the other end: of a client as it
// connected, of a server as it began to listen.
func peerUser(conn *net.UnixConn) (uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) {
		peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if perr != nil {
		return 0, perr
	}
	return int(peer.Uid), nil
}
