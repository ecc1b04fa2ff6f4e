package service

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// localUser is a context of the user who runs the server, in the red team.
func localUser(t *testing.T) context.Context {
	c := sandbox.LocalCaller()
	c.Team = "red"
	return sandbox.WithCaller(t.Context(), c)
}

// knock connects to a port of the host.
func knock(t *testing.T, address string, port int) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err == nil && c.LocalAddr().String() == c.RemoteAddr().String() {
		// The connection met itself, which TCP allows if nobody listens.
		return nil, errors.Join(syscall.ECONNREFUSED, c.Close())
	}
	return c, err
}

// closed checks that nothing listens on a port of the host.
func closed(t *testing.T, what string, port int) {
	t.Helper()
	if c, err := knock(t, "127.0.0.1", port); err == nil {
		_ = c.Close()
		t.Errorf("%s: port %d is still open", what, port)
	}
}

// published makes a sandbox with one published port, and returns the host's port.
func (w *harness) published(name string, guest int) int {
	w.t.Helper()
	x := w.create(sandbox.CreateRequest{Name: name, Ports: []sandbox.PublishedPort{{Guest: guest}}})
	if len(x.Ports) != 1 || x.Ports[0].Host == 0 || x.Ports[0].Address != "127.0.0.1" || x.Ports[0].Guest != guest {
		w.t.Fatalf("published: %+v", x.Ports)
	}
	return x.Ports[0].Host
}

func TestPublish(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	guest := echo(t)
	host := w.published("x", guest)
	try := func(what string) {
		t.Helper()
		c, err := knock(t, "127.0.0.1", host)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		says(t, c)
	}
	try("create")
	if idle, _, err := w.Idle(t.Context()); err != nil || idle {
		t.Errorf("idle: %v, %v", idle, err)
	}
	w.pause("x")
	if idle, _, err := w.Idle(t.Context()); err != nil || idle {
		t.Errorf("a daemon whose ports are published is idle: %v, %v", idle, err)
	}
	try("paused")
	// The port is taken now: a second sandbox with this port is not made.
	_, err := w.Create(ctx, sandbox.CreateRequest{Name: "y", Ports: []sandbox.PublishedPort{{Guest: 80}, {Host: host, Guest: guest}}})
	wantCode(t, err, sandbox.CodeConflict)
	_, err = w.Get(ctx, "y")
	wantCode(t, err, sandbox.CodeNotFound)
	forks, err := w.Fork(ctx, "x", sandbox.ForkRequest{Name: "f"})
	must(t, err)
	if len(forks.Items[0].Ports) != 0 {
		t.Errorf("a fork has the ports %v", forks.Items[0].Ports)
	}
	w.restart()
	try("restart")
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	try("merge")
	// Open connections end with the sandbox, and the port is free again.
	c, err := knock(t, "127.0.0.1", host)
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "x")
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	must(t, err)
	_, err = w.Kill(ctx, "x")
	must(t, err)
	_, _ = io.ReadAll(c) // returns
	closed(t, "kill", host)
	w.restart()
	closed(t, "restart after a kill", host)
	again := w.create(sandbox.CreateRequest{Ports: []sandbox.PublishedPort{{Host: host, Guest: guest}}})
	try("again")
	must(t, w.state.Kill(again.ID, "it died"))
	w.waitState(again.ID, sandbox.StateFailed)
	wait(t, func() bool {
		c, err := knock(t, "127.0.0.1", host)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, func() string { return "the port of a failed sandbox is open" })
	w.agree()
}

// TestPublishFails makes a creation fail after its ports are open.
func TestPublishFails(t *testing.T) {
	w := newHarness(t)
	host := closedPort(t)
	w.state.Fail(memory.StepCreate, memory.Before, errors.New("boom"))
	_, err := w.Create(asRed(t), sandbox.CreateRequest{Ports: []sandbox.PublishedPort{{Host: host, Guest: 80}}})
	if err == nil {
		t.Fatal("it was made")
	}
	closed(t, "failed creation", host)
	// Nothing listens inside: the connection ends, the next one works.
	guest := closedPort(t)
	port := w.published("x", guest)
	c, err := knock(t, "127.0.0.1", port)
	if errors.Is(err, syscall.ECONNRESET) {
		return // it was over before it had begun
	}
	must(t, err)
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("read %q", got)
	}
	_ = c.Close()
}

// TestPublishTakenAtStart has a port that is taken when the daemon restarts, and that
// it gets once the port is free.
func TestPublishTakenAtStart(t *testing.T) {
	w := newHarness(t)
	guest := echo(t)
	host := w.published("x", guest)
	w.stop()
	thief, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(host)))
	must(t, err)
	w.start()
	if err := w.Repair(t.Context()); err == nil {
		t.Error("nobody complains of the taken port")
	}
	must(t, thief.Close())
	must(t, w.Repair(t.Context()))
	c, err := knock(t, "127.0.0.1", host)
	must(t, err)
	says(t, c)
}

// TestPublishRights requests addresses and ports as a remote caller and as the user of
// the server.
func TestPublishRights(t *testing.T) {
	w := newHarness(t)
	for _, c := range []struct {
		port        sandbox.PublishedPort
		afar, local sandbox.Code
	}{
		{sandbox.PublishedPort{Guest: 80, Address: "::1"}, "", ""},
		{sandbox.PublishedPort{Guest: 80, Address: "127.9.9.9"}, "", ""},
		{sandbox.PublishedPort{Guest: 80, Address: "0.0.0.0"}, sandbox.CodeForbidden, ""},
		{sandbox.PublishedPort{Guest: 80, Address: "::"}, sandbox.CodeForbidden, ""},
		{sandbox.PublishedPort{Guest: 80, Address: "::ffff:0.0.0.0"}, sandbox.CodeForbidden, ""},
		{sandbox.PublishedPort{Guest: 80, Address: "203.0.113.9"}, sandbox.CodeForbidden, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 80, Host: 23, Address: "203.0.113.9"}, sandbox.CodeForbidden, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 80, Host: 23, Address: "127.0.0.1"}, sandbox.CodeForbidden, "any"},
		{sandbox.PublishedPort{Guest: 80, Address: "localhost"}, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 80, Address: "::1%lo"}, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 0}, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: validate.AgentPort}, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 80, Host: -1}, sandbox.CodeInvalid, sandbox.CodeInvalid},
		{sandbox.PublishedPort{Guest: 80, Host: 65536}, sandbox.CodeInvalid, sandbox.CodeInvalid},
	} {
		for ctx, want := range map[context.Context]sandbox.Code{asRed(t): c.afar, localUser(t): c.local} {
			x, err := w.Create(ctx, sandbox.CreateRequest{Ports: []sandbox.PublishedPort{c.port}})
			if want != "any" && sandbox.CodeOf(err) != want {
				t.Errorf("%+v: %v, want %q", c.port, err, want)
			}
			if err == nil {
				_, err = w.Kill(ctx, x.ID)
				must(t, err)
			}
		}
	}
	_, err := w.Create(asRed(t), sandbox.CreateRequest{Ports: make([]sandbox.PublishedPort, sandbox.MaxPublishedPorts+1)})
	wantCode(t, err, sandbox.CodeInvalid)
	w.agree()
}
