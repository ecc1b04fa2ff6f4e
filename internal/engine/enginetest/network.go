package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// gatewayOf makes an instance, which must have a gateway, and returns the gateway.
func (s *suite) gatewayOf(t *testing.T, id string) engine.Gateway {
	t.Helper()
	gateway, ok := s.create(t, id).(engine.Gateway)
	if !ok {
		t.Skip("the engine's instances have no gateway")
	}
	return gateway
}

// freePort returns a port on which nothing listens on this machine, where an engine may run
// programs.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func testDialPort(t *testing.T, s *suite) {
	needs.Command(t, "python3")
	s.start(t)
	i := s.gatewayOf(t, "sbx-one")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	port := freePort(t)
	if _, err := i.DialPort(ctx, port, true); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a port on which nothing listens: %v, want unavailable", err)
	}
	serve := `import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", ` + strconv.Itoa(port) + `)); s.listen()
open("listens", "w")
while True:
    c, _ = s.accept()
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.sendall(b"bye"); c.close()`
	output(t, client(t, i), "cd $(mktemp -d) && { python3 -c '"+serve+"' >/dev/null 2>&1 & } && while ! test -e listens; do sleep 0.02; done; disown")
	for range 3 { // one after another, each half-closed
		conn, err := i.DialPort(ctx, port, true)
		must(t, err)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = io.WriteString(conn, "hello")
		must(t, err)
		half, ok := conn.(interface{ CloseWrite() error })
		if !ok {
			t.Fatal("a connection to a port cannot be half-closed")
		}
		must(t, half.CloseWrite())
		got, err := io.ReadAll(conn)
		if string(got) != "hellobye" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		must(t, conn.Close())
	}
	for _, port := range []int{0, -1, 65536} {
		if _, err := i.DialPort(ctx, port, true); err == nil {
			t.Errorf("port %d was connected to", port)
		}
	}
}

func testSetNetwork(t *testing.T, s *suite) {
	s.start(t)
	i := s.gatewayOf(t, "sbx-one")
	network := func(placeholders ...string) engine.Network {
		n := engine.Network{SandboxID: "sbx-one", Policy: sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}}
		for _, p := range placeholders {
			n.Bindings = append(n.Bindings, engine.Binding{
				Placeholder: p, SecretID: "sec-1", Secret: "TOKEN", Hosts: []string{"example.com"}, Auth: sandbox.SecretAuth{Type: "header"},
			})
		}
		return n
	}
	const first, second = "cove-placeholder-0123456789abcdef-1", "cove-placeholder-0123456789abcdef-2"
	must(t, i.SetNetwork(t.Context(), network()))
	// Each value is yielded, and wiped at once.
	var told []string
	buffer := []byte("value of the secret")
	with := network(first, second)
	with.Values = func(yield func(string, []byte) error) error {
		for _, b := range with.Bindings {
			told = append(told, b.Placeholder)
			if err := yield(b.Placeholder, buffer); err != nil {
				return err
			}
			clear(buffer)
			copy(buffer, "value of the second")
		}
		return nil
	}
	must(t, i.SetNetwork(t.Context(), with))
	if got := fmt.Sprint(told); got != fmt.Sprint([]string{first, second}) {
		t.Errorf("values of %s were told", got)
	}
	// An error of Values is returned.
	broken := errors.New("the vault is locked")
	failing := network(first)
	failing.Values = func(func(string, []byte) error) error { return broken }
	if err := i.SetNetwork(t.Context(), failing); !errors.Is(err, broken) {
		t.Errorf("SetNetwork: %v, want %v", err, broken)
	}
	must(t, i.SetNetwork(t.Context(), network(second))) // the value is known
	must(t, i.SetNetwork(t.Context(), network()))
	// A later engine can change it too.
	e := s.start(t)
	again, err := e.Open(t.Context(), "sbx-one")
	must(t, err)
	must(t, again.(engine.Gateway).SetNetwork(t.Context(), network()))
	other := network()
	other.SandboxID = "sbx-other"
	must(t, again.(engine.Gateway).SetNetwork(t.Context(), other))
	// Create handles values as SetNetwork does.
	spec := s.Spec(t)
	spec.ID, spec.Network = "sbx-two", &failing
	if _, err := e.Create(t.Context(), spec); !errors.Is(err, broken) {
		t.Errorf("Create: %v, want %v", err, broken)
	}
	s.wantGone(t, "sbx-two")
	spec.Network = &with
	told = nil
	if _, err := e.Create(t.Context(), spec); err != nil || len(told) != 2 {
		t.Errorf("Create: %v; values of %v were told", err, told)
	}
}

func testNetworkLog(t *testing.T, s *suite) {
	logger, ok := s.start(t).(engine.NetworkLogger)
	if !ok {
		t.Skip("the engine keeps no network logs")
	}
	ctx := t.Context()
	events, next, err := logger.NetworkLog(ctx, "sbx-none", sandbox.NetworkLogRequest{})
	if len(events) > 0 || next != "" || err != nil {
		t.Errorf("the log of an unknown sandbox: %v, %q, %v", events, next, err)
	}
	must(t, logger.RemoveNetworkLog(ctx, "sbx-none"))
	if ids, err := logger.NetworkLogs(ctx); len(ids) > 0 || err != nil {
		t.Errorf("logs: %v, %v; want none", ids, err)
	}
	// Following a log that does not exist yet ends without an error when its context does.
	following, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	must(t, logger.FollowNetworkLog(following, "sbx-none", sandbox.NetworkLogRequest{}, func(sandbox.NetworkEvent) error { return nil }))
}
