package client

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

	"golang.org/x/sys/unix"
)

// A call does not wait for a server whose machine has died: the kernel ends its connection.
func TestSilence(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	c, err := New(Config{URL: server.URL, Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		raw, err := i.Conn.(*net.TCPConn).SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { got, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
		}
		if err != nil {
			t.Error(err)
		}
	}})
	if _, err := c.Get(ctx, "sbx"); err == nil {
		t.Error("the server has a sandbox")
	}
	if want := int(silentFor.Milliseconds()); got != want {
		t.Errorf("the kernel ends a silent connection after %d ms, want %d", got, want)
	}
}
