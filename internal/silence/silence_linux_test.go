package silence

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel is told when to end a connection, of TCP and of no other network.
func TestDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dialer(time.Minute).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) {
		for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 60_000, unix.TCP_KEEPIDLE: 30, unix.TCP_KEEPINTVL: 10, unix.TCP_KEEPCNT: 3} {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("option %d of the connection is %d, %v; want %d", option, got, err, want)
			}
		}
	})
	if failed != nil {
		t.Error(failed)
	}

	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	local, err := Dialer(time.Minute).DialContext(t.Context(), "unix", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	local.Close()
}
