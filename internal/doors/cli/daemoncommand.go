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

// daemonStopTime bounds how long a daemon may take to end, since it finishes the calls
// under way.
const daemonStopTime = 40 * time.Second

func (a *app) daemonCommand() *cobra.Command {
	return group("daemon", "Show, restart or stop the local daemon",
		a.make(command{
			Use: "status", Short: "Show whether the local daemon is running",
			Long:    "Show whether the local daemon is running, without starting it. The exit code is 1 if it is not.",
			Example: "  cove daemon status --json",
			Do:      action{here: true, json: true, run: runDaemonStatus},
		}),
		a.make(command{
			Use: "restart", Short: "Restart the local daemon; sandboxes keep running",
			Long: "Restart the local daemon with this program, for example after an upgrade. Sandboxes keep running. A\n" +
				"daemon that cove serve started must be restarted where it was started, for example with\n" +
				"systemctl restart cove.",
			Example: "  cove daemon restart",
			Do:      action{here: true, run: func(ctx context.Context, c *call) error { return c.restartDaemon(ctx) }},
		}),
		a.make(command{
			Use: "stop", Short: "Stop the local daemon; sandboxes keep running",
			Long: "Stop the local daemon after it has finished its current calls. Sandboxes keep running, and the next\n" +
				"daemon, which the next command starts, takes them over. A daemon that a service manager runs is\n" +
				"started again by it.",
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
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "this command works on the local daemon; run it without --url and COVE_URL")
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
		a.say("no daemon is running on %s", dir)
	default:
		a.say("stopped the daemon (process %d); sandboxes keep running", stopped.PID)
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
	a.say("the daemon is running, version %s", version)
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
