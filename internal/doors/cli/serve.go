package cli

import (
	"context"
	"math"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// onDemandIdle is when a daemon that was started on demand ends.
	onDemandIdle = "5m"
	// onDemandWait is how long a new daemon waits for one that is just ending.
	onDemandWait = 20 * time.Second
)

type serveOptions struct {
	Config   string
	OnDemand bool
	// given are the settings that flags have set, by the flag's name.
	given map[string]string
}

func (o *serveOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Config, "config", "", "YAML file with settings (COVE_CONFIG)")
	f.BoolVar(&o.OnDemand, "on-demand", false, "Run for local clients: use a free TCP port unless one is set, and stop after "+onDemandIdle+" of idleness")
	o.given = map[string]string{}
	for _, s := range config.Settings() {
		if s.Flag == "state-dir" {
			// It is a flag of every command.
			continue
		}
		value := flagValue{"value", func(text string) error {
			if before, again := o.given[s.Flag]; again && config.Repeats(s.Flag) {
				text = before + "," + text
			}
			o.given[s.Flag] = text
			return nil
		}}
		flag := f.VarPF(&value, s.Flag, "", s.Usage+" ("+s.Env+")")
		if s.Bool {
			value.kind, flag.NoOptDefVal = "bool", "true"
		}
	}
}

func (a *app) serveCommand() *cobra.Command {
	var opts serveOptions
	return a.make(command{
		Use: "serve [flags]", Short: "Run the daemon",
		Long: "Run the daemon. It serves MCP on /mcp, REST on /v1 and the console on /console/: on a Unix socket for\n" +
			"the user who runs it, and on TCP for clients with an API key. Sandboxes keep running when the daemon\n" +
			"stops, and the next daemon takes them over. Commands start a daemon if none is running. With --standby, the\n" +
			"daemon waits for as long as another has the database, and then takes over.\n\n" +
			"Settings come from a file, the environment and flags. Flags override the environment, which overrides\n" +
			"the file.",
		Example: "  cove serve\n  cove serve --dev\n  cove serve --dev --dialect-port microsandbox=5555\n  cove serve --config /etc/cove.yaml --listen 0.0.0.0:7777",
		Flags:   opts.AddFlags,
		Do:      action{here: true, run: func(ctx context.Context, c *call) error { return c.runServe(ctx, opts) }},
	})
}

func (a *app) runServe(ctx context.Context, opts serveOptions) error {
	// Files that the starter left open are not for the daemon's children.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	keepMemory()
	cfg, err := a.serveConfig(opts)
	if err != nil {
		return err
	}
	log := server.NewLog(cfg.Log, a.Stderr)
	check := func(ctx context.Context, dir string) sandbox.MachineReport {
		return checkMachine(ctx, dir, cfg.Store.SecretValue, server.CheckObjects(ctx, cfg.Objects, os.Getenv))
	}
	deps := server.Deps{Assembly: a.Assembly, Version: a.Version, Log: log, CheckMachine: check}
	if opts.OnDemand {
		deps.LockWait, deps.OnDemand = onDemandWait, true
	} else {
		deps.Ready = func(tcp net.Addr) { a.sayReady(&cfg, tcp) }
		deps.DialectReady = func(name string, addr net.Addr) { a.say("listening on http://%s (%s)", addr, name) }
	}
	return server.New(cfg, deps).Run(ctx)
}

// keepMemory keeps this process's memory out of core files, since it contains values of
// secrets and the key that seals them.
func keepMemory() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	// This also keeps out the user's other programs, and programs that get cores
	// through a pipe, for which the limit does not count. An ordinary user's daemon
	// cannot do this: it could then not write the maps of the user namespaces of its
	// cells.
	if os.Geteuid() == 0 {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
}

func (a *app) serveConfig(opts serveOptions) (config.Config, error) {
	if opts.Config == "" {
		opts.Config = a.Env("COVE_CONFIG")
	}
	given := opts.given
	if a.globals.StateDir != "" {
		dir, err := a.stateDir()
		if err != nil {
			return config.Config{}, err
		}
		given["state-dir"] = dir
	}
	if a.globals.URL != "" && !opts.OnDemand {
		return config.Config{}, sandbox.Errorf(sandbox.CodeInvalid, "serve runs a daemon on this machine; run it without --url and COVE_URL")
	}
	env := a.Env
	if opts.OnDemand {
		// The environment and flags override these, and they override the defaults.
		// There can be many daemons, so each takes a free port. Previews need the port;
		// everything else on it requires a key.
		env = withFallback(env, map[string]string{"COVE_LISTEN": "127.0.0.1:0", "COVE_IDLE_EXIT": onDemandIdle})
	}
	return config.Load(config.Source{File: opts.Config, Env: env, Flags: given})
}

// objects returns the object store that a server of this machine has, according to the
// environment.
func (a *app) objects() (config.Objects, error) {
	cfg, err := config.Load(config.Source{File: a.Env("COVE_CONFIG"), Env: a.Env})
	return cfg.Objects, err
}

// store returns the address of the database in which a server of this machine has its
// records, according to the environment, or none if they are in its state directory.
func (a *app) store() (sandbox.SecretValue, error) {
	cfg, err := config.Load(config.Source{File: a.Env("COVE_CONFIG"), Env: a.Env})
	return cfg.Store.SecretValue, err
}

func withFallback(env func(string) string, fallback map[string]string) func(string) string {
	return func(name string) string {
		if value := env(name); value != "" {
			return value
		}
		return fallback[name]
	}
}

// sayReady prints how to reach the daemon.
func (a *app) sayReady(cfg *config.Config, tcp net.Addr) {
	a.say("listening on %s", cfg.SocketPath())
	if tcp == nil {
		return
	}
	scheme := "http"
	if cfg.TLS.On() {
		scheme = "https"
	}
	a.say("listening on %s://%s (MCP: %s://%s/mcp)", scheme, tcp, scheme, tcp)
	a.say("console: %s://%s%s (to sign in: cove console)", scheme, tcp, console.Path)
	if cfg.Dev {
		a.say("development mode: everyone on this machine has full access")
	}
}
