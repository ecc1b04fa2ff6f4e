package egress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// socks is a SOCKS5 proxy that asks for a password, sends the targets of connections to
// asked, and answers every connection with an echo.
func socks(t *testing.T, asked chan<- string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serveSOCKS(c, asked) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func serveSOCKS(c net.Conn, asked chan<- string) {
	read := func(n int) []byte {
		b := make([]byte, n)
		_, _ = io.ReadFull(c, b)
		return b
	}
	read(int(read(2)[1]))
	_, _ = c.Write([]byte{5, 2})
	user := string(read(int(read(2)[1])))
	password := string(read(int(read(1)[0])))
	_, _ = c.Write([]byte{1, 0})
	var host string
	switch head := read(4); head[3] {
	case 1:
		host = net.IP(read(4)).String()
	case 3:
		host = string(read(int(read(1)[0])))
	}
	port := read(2)
	asked <- fmt.Sprintf("%s:%s@%s:%d", user, password, host, int(port[0])<<8|int(port[1]))
	_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	echoServer(c)
}

func TestSOCKSProxy(t *testing.T) {
	asked := make(chan string, 4)
	addr := socks(t, asked)
	in := newInternet(t, sandbox.NetworkPolicy{}, func(c *Config, _ *Network) { c.Proxy = Proxy{AllProxy: "socks5h://me:pw@" + addr} })
	in.at("tcp", addr, tcpAddr(t, addr))
	c := in.mustConnect(publicAddr + ":22")
	_, _ = c.Write([]byte("hello"))
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	if got := <-asked; got != "me:pw@"+publicAddr+":22" {
		t.Errorf("the proxy was asked for %s", got)
	}
	in.set(strict("only-proxy.example"))
	to := in.lookup("only-proxy.example")
	if len(to) != 1 {
		t.Fatalf("resolves to %v", to)
	}
	c = in.mustConnect(to[0] + ":22")
	_, _ = c.Write([]byte("SSH-2.0-x\r\n"))
	if _, err := io.ReadFull(c, make([]byte, 11)); err != nil {
		t.Error(err)
	}
	if got := <-asked; got != "me:pw@only-proxy.example:22" {
		t.Errorf("the proxy was asked for %s", got)
	}
}

func tcpAddr(t *testing.T, s string) net.Addr {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Attack: a proxy, or a machine on the path to it, answers endlessly, or with a page
// instead of a tunnel.
func TestMisbehavingProxy(t *testing.T) {
	for name, answer := range map[string]string{
		"no tunnel":   "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
		"not HTTP":    "220 welcome\r\n",
		"without end": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 200<<10) + "\r\n\r\n",
		"nothing":     "",
	} {
		t.Run(name, func(t *testing.T) {
			in := newInternet(t, sandbox.NetworkPolicy{})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			in.at("tcp", l.Addr().String(), l.Addr())
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, answer)
			}()
			defer l.Close()
			o, err := newHostDialer(in, Proxy{HTTPSProxy: "http://" + l.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			c, err := o.dial(ctx, "a.example", netip.MustParseAddr(publicAddr), 443)
			if err == nil {
				c.Close()
				t.Error("a tunnel was made")
			}
		})
	}
}

// TestEarlyBytesOfTunnel checks that bytes after the proxy's answer belong to the
// tunnel.
func TestEarlyBytesOfTunnel(t *testing.T) {
	a, b := net.Pipe()
	go func() {
		_, _ = b.Read(make([]byte, 4096))
		_, _ = io.WriteString(b, "HTTP/1.1 200 OK\r\n\r\nearly")
		b.Close()
	}()
	c, err := connect(a, mustURL("http://proxy.example"), "a.example:25")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(c); string(got) != "early" {
		t.Errorf("got %q", got)
	}
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}
