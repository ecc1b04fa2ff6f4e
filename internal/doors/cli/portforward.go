package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// forwarding is a port of this machine that is forwarded to one of a sandbox.
type forwarding struct{ local, remote int }

func parseForwarding(s string) (forwarding, error) {
	local, remote, both := strings.Cut(s, ":")
	if !both {
		local, remote = s, s
	}
	if local == "" {
		local = "0"
	}
	to, remoteErr := parsePort(remote, 1)
	from, localErr := parsePort(local, 0)
	if remoteErr != nil || localErr != nil {
		return forwarding{}, fmt.Errorf("port-forward: %q is not of the form [LOCAL:]REMOTE, such as 8080:80", s)
	}
	return forwarding{local: from, remote: to}, nil
}

func (a *app) portForwardCommand() *cobra.Command {
	return a.make(command{
		Use: "port-forward SANDBOX [LOCAL:]REMOTE...", Short: "Forward local ports to a sandbox",
		Long: "Forward TCP ports of this machine to ports of a sandbox, until interrupted. cove listens on 127.0.0.1\n" +
			"only. LOCAL defaults to REMOTE; 0 means any free port.",
		Example: "  cove port-forward work 8080:80\n  cove port-forward work 5432 0:6379",
		Do: action{run: func(ctx context.Context, c *call) error {
			var forwardings []forwarding
			for _, arg := range c.args[1:] {
				f, err := parseForwarding(arg)
				if err != nil {
					return c.misuse("%w", err)
				}
				forwardings = append(forwardings, f)
			}
			return c.portForward(ctx, c.client, c.args[0], forwardings)
		}},
	})
}

func (a *app) portForward(ctx context.Context, c *client.Client, name string, forwardings []forwarding) error {
	sb, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	if sb.State.Final() {
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s has ended; create another", name)
	}
	var listeners []net.Listener
	closeAll := func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}
	defer closeAll()
	for _, f := range forwardings {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", f.local))
		if errors.Is(err, syscall.EADDRINUSE) {
			return sandbox.Errorf(sandbox.CodeConflict, "port %d of this machine is in use; choose another, or use 0:%d for any free port", f.local, f.remote)
		}
		if err != nil {
			return fmt.Errorf("listen on port %d: %w", f.local, err)
		}
		listeners = append(listeners, l)
	}
	stop := context.AfterFunc(ctx, closeAll)
	defer stop()
	var wg sync.WaitGroup
	for i, l := range listeners {
		if err := a.print(fmt.Sprintf("Forwarding %s to port %d of %s\n", l.Addr(), forwardings[i].remote, clean(name))); err != nil {
			return err
		}
		wg.Go(func() { a.acceptForwarded(ctx, c, l, name, forwardings[i].remote) })
	}
	wg.Wait()
	return nil
}

func (a *app) acceptForwarded(ctx context.Context, c *client.Client, l net.Listener, name string, port int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				a.say("port %d: %v", port, err)
			}
			return
		}
		wg.Go(func() {
			defer closeQuietly(conn)
			if err := forward(ctx, c, conn, name, port); err != nil && ctx.Err() == nil {
				a.say("port %d: %s", port, clean(err.Error()))
			}
		})
	}
}

// forward connects one connection with a port of the sandbox, until both
// directions have ended or ctx has.
func forward(ctx context.Context, c *client.Client, near net.Conn, name string, port int) error {
	far, err := c.DialPort(ctx, name, port)
	if err != nil {
		return err
	}
	defer closeQuietly(far)
	stop := context.AfterFunc(ctx, func() {
		_ = far.Close()
		_ = near.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { passOn(far, near) })
	passOn(near, far)
	wg.Wait()
	return nil
}

// passOn copies until the end and then closes that direction. If that is not possible,
// or the copy fails, it closes the connection.
func passOn(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		if half.CloseWrite() == nil {
			return
		}
	}
	_ = to.Close()
	if err != nil {
		_ = from.Close()
	}
}
