package cell

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Listen listens on a Unix socket in dir that only its owner may use. The socket's path
// may be longer than the 107 bytes that a socket's address can hold: the address uses a
// descriptor of the directory.
func Listen(dir, name string) (net.Listener, error) {
	var l net.Listener
	err := throughDir(dir, name, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		// Once the descriptor is closed, its number may be reused.
		ul.SetUnlinkOnClose(false)
		if err := os.Chmod(path, 0o600); err != nil {
			ul.Close()
			return err
		}
		l = ul
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", filepath.Join(dir, name), err)
	}
	return l, nil
}

// Dial connects to a socket made by [Listen].
func Dial(ctx context.Context, dir, name string) (net.Conn, error) {
	var c net.Conn
	err := throughDir(dir, name, func(path string) error {
		var d net.Dialer
		var err error
		c, err = d.DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", filepath.Join(dir, name), err)
	}
	return c, nil
}

func throughDir(dir, name string, do func(path string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
}
