package client

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

	"golang.org/x/sys/unix"
)

// A call does not wait for a server whose machine has died: the kernel ends its connection.
func TestSilence(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer server.Close()
	c, err := New(Config{URL: server.URL, Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	options := map[int]int{}
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		raw, err := i.Conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		_ = raw.Control(func(fd uintptr) {
			for _, option := range []int{unix.TCP_USER_TIMEOUT, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
				if options[option], err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil {
					t.Error(err)
				}
			}
		})
	}})
	if _, err := c.Get(ctx, "sbx"); err == nil {
		t.Error("the server has a sandbox")
	}
	want := map[int]int{unix.TCP_USER_TIMEOUT: 60_000, unix.TCP_KEEPIDLE: 30, unix.TCP_KEEPINTVL: 10, unix.TCP_KEEPCNT: 3}
	for option, seconds := range want {
		if options[option] != seconds {
			t.Errorf("option %d of the connection is %d, want %d", option, options[option], seconds)
		}
	}
}
