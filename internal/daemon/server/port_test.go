package server_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
)

// A daemon that takes any port takes the one of the daemon before it, so that
// addresses of previews stay, or another if that is taken.
func TestAnyPortIsKept(t *testing.T) {
	dir := t.TempDir()
	in := func(c *config.Config) { c.StateDir = dir }
	port := func() int {
		r := mustStart(t, in)
		defer r.end(t)
		return r.tcp.(*net.TCPAddr).Port
	}
	// Another process of the machine may take a port in between, once in a while.
	kept := func() (first int) {
		var again int
		for range 5 {
			if first, again = port(), port(); again == first {
				return first
			}
		}
		t.Errorf("port %d, then %d", first, again)
		return first
	}
	first := kept()
	taken, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", portText(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	second := port()
	if err := taken.Close(); err != nil {
		t.Error(err)
	}
	if second == first {
		t.Errorf("port %d is taken", first)
	}
	kept()
	for _, damaged := range []string{"", "x", "70000", "22", "-1"} {
		if err := os.WriteFile(filepath.Join(dir, "listen-port"), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := port(); got < 1024 {
			t.Errorf("after %q the port is %d", damaged, got)
		}
	}
}

func portText(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "listen-port"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data[:len(data)-1])
}
