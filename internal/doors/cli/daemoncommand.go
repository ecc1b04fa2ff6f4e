package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/sandbox"
)

// daemonStopTime bounds how long a daemon may take to end: it finishes the calls
// that it is in.
const daemonStopTime = 40 * time.Second

func (a *app) daemonCommand() *cobra.Command {
	return group("daemon", "See, restart and stop the local daemon",
		a.make(command{
			Use: "status", Short: "Tell whether the local daemon runs, without starting it",
			Long:    "Tell whether the local daemon runs, without starting it. The exit code is 1 when it does not.",
			Example: "  cove daemon status --json",
			Do:      action{here: true, json: true, run: runDaemonStatus},
		}),
		a.make(command{
			Use: "restart", Short: "Restart the local daemon, with this program; sandboxes go on",
			Long: "Restart the local daemon with this program, as after an upgrade. Sandboxes go on. A daemon that was\n" +
				"started by cove serve is restarted where it was started: systemctl restart cove, for example.",
			Example: "  cove daemon restart",
			Do:      action{here: true, run: func(ctx context.Context, c *call) error { return c.restartDaemon(ctx) }},
		}),
		a.make(command{
			Use: "stop", Short: "Stop the local daemon; sandboxes go on",
			Long: "Stop the local daemon when it has finished the calls that it is in. Sandboxes go on: the next daemon,\n" +
				"which the next command starts, finds them again. A daemon of the machine's service manager comes\n" +
				"back by itself.",
			Example: "  cove daemon stop",
			Do: action{here: true, run: func(ctx context.Context, c *call) error {
				_, err := c.stopDaemon(ctx)
				return err
			}},
		}))
}

// daemonStatus is what cove daemon status prints.
type daemonStatus struct {
	Running  bool   `json:"running"`
	PID      int    `json:"pid,omitempty"`
	Version  string `json:"version,omitempty"`
	OnDemand bool   `json:"on_demand,omitempty"`
	StateDir string `json:"state_dir"`
	Socket   string `json:"socket"`
	Log      string `json:"log,omitempty"`
}

func runDaemonStatus(ctx context.Context, c *call) error {
	dir, err := c.stateDir()
	if err != nil {
		return err
	}
	status := daemonStatus{StateDir: dir, Socket: c.localDaemon(dir).socket}
	running, err := server.FindRunning(dir)
	if err != nil {
		return err
	}
	if running != nil {
		status.Running, status.PID, status.OnDemand = true, running.PID, running.OnDemand
		if running.OnDemand {
			status.Log = filepath.Join(dir, "serve.log")
		}
		if answering, err := c.connectRunning(); err == nil {
			defer closeQuietly(answering)
			status.Version, _ = answering.Version(ctx)
		}
	}
	if err := shown(c, daemonDetails, &status, nil); err != nil || status.Running {
		return err
	}
	return &exit{code: exitError}
}

var daemonDetails = details(func(s *daemonStatus) []any {
	state, started := "not running", ""
	if s.Running {
		state, started = fmt.Sprintf("running, process %d", s.PID), "by cove serve"
		if s.OnDemand {
			started = "on demand"
		}
	}
	return []any{"daemon", state, "version", s.Version, "started", started, "state", s.StateDir, "socket", s.Socket, "log", s.Log}
})

func (a *app) stopDaemon(ctx context.Context) (*server.Running, error) {
	if a.globals.URL != "" {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "this is about the daemon of this machine; leave out --url (COVE_URL)")
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, daemonStopTime)
	defer cancel()
	stopped, err := server.Stop(ctx, dir)
	switch {
	case err != nil:
		return nil, err
	case stopped == nil:
		a.say("no daemon runs on %s", dir)
	default:
		a.say("stopped the daemon (process %d); sandboxes go on", stopped.PID)
	}
	return stopped, nil
}

func (a *app) restartDaemon(ctx context.Context) error {
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	running, err := server.FindRunning(dir)
	if err != nil {
		return err
	}
	if running != nil && !running.OnDemand {
		return sandbox.Errorf(sandbox.CodeConflict, "the daemon (process %d) was started by cove serve; restart it where it was started", running.PID)
	}
	if _, err := a.stopDaemon(ctx); err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	version, err := c.Version(ctx)
	if err != nil {
		return err
	}
	a.say("a daemon of version %s runs", version)
	return nil
}

// connectRunning is [app.connect] without starting a daemon.
func (a *app) connectRunning() (*client.Client, error) {
	if a.globals.URL != "" {
		return a.connect()
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	d := a.localDaemon(dir)
	connect := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.connect(ctx) }
	return client.New(client.Config{UserAgent: a.userAgent(), UnixSocket: d.socket, Dial: connect})
}
