package agent

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
)

func TestOnly(t *testing.T) {
	allow := only(netip.MustParseAddr("169.254.77.1"))
	for _, tt := range []struct {
		peer string
		want bool
	}{
		{"169.254.77.1:1000", true},
		{"169.254.77.2:1000", false},
		{"127.0.0.1:1000", false},
		{"[::ffff:169.254.77.1]:1000", true},
		{"[::1]:1000", false},
	} {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.peer))
		if got := allow(addr); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.peer, got, tt.want)
		}
	}
	if allow(&net.UnixAddr{Name: "/x"}) {
		t.Error("a peer that is no IP address is allowed")
	}
}

func TestMainRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"-no-such-flag"},
		{"-allow", "example.com"},
		{"-listen", "nowhere"},
	} {
		var out bytes.Buffer
		if err := Main(args, "test", &out); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
