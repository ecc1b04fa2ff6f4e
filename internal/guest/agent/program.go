package agent

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// programPath is the agent's path in a sandbox, by which the cell starts it.
const programPath = "/.cove/agent"

// IsRole reports whether a program with these [os.Args] was started as a sandbox's
// agent: a cove that embeds no agent is one itself.
func IsRole(args []string) bool { return len(args) > 0 && args[0] == programPath }

// Main is the agent as a program. It serves one sandbox and returns if it cannot, or,
// unless it is the sandbox's first process, on a signal. args come after the program's
// name.
func Main(args []string, version string, stderr io.Writer) error {
	flags := flag.NewFlagSet("cove-agent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:7007", "`address` to serve on")
	allow := flags.String("allow", "", "the only IP `address` that may connect (default any)")
	diskTmp := flags.Bool("disk-tmp", false, "put /tmp on the sandbox's disk, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *diskTmp {
		return useDiskForTemp()
	}
	cfg := Config{
		Version: version,
		Log:     slog.New(slog.NewTextHandler(stderr, nil)),
		Init:    os.Getpid() == 1,
	}
	if *allow != "" {
		ip, err := netip.ParseAddr(*allow)
		if err != nil {
			return fmt.Errorf("parse -allow: %w", err)
		}
		cfg.AllowFrom = only(ip.Unmap())
	}
	ctx := context.Background()
	if cfg.Init {
		// The first process of a sandbox ends with the sandbox. Not Ignore: jobs would
		// inherit an ignored signal.
		signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
		unix.Umask(0o022)
		if err := unix.Chdir("/"); err != nil {
			return fmt.Errorf("enter the root directory: %w", err)
		}
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
		defer stop()
	}
	return serve(ctx, cfg, *listen)
}

func serve(ctx context.Context, cfg Config, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	a, err := New(cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	cfg.Log.Info("serving", "address", l.Addr().String())
	return a.Serve(ctx, l)
}

// only allows peers with this IP address.
func only(ip netip.Addr) func(net.Addr) bool {
	return func(addr net.Addr) bool {
		peer, err := netip.ParseAddrPort(addr.String())
		return err == nil && peer.Addr().Unmap() == ip
	}
}
