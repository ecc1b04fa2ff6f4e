package cli

import (
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

// connect returns a client of the server that the options name, or of the
// local daemon, which each connection starts if it does not run.
func (a *app) connect() (*client.Client, error) {
	cfg := client.Config{UserAgent: a.userAgent(), Key: client.Secret(a.globals.Key), Namespace: a.globals.Namespace, OnVersion: a.compareVersion}
	if a.globals.URL != "" {
		cfg.URL = a.globals.URL
		return client.New(cfg)
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	// The local user is trusted; a key for another server is not sent.
	cfg.Key = ""
	d := a.localDaemon(dir)
	cfg.UnixSocket = d.socket
	cfg.Dial = d.dial
	return client.New(cfg)
}

func (a *app) userAgent() string { return "cove/" + a.Version }

// compareVersion warns if the local daemon has another version, since the user can
// restart it. It says nothing about a remote server, which the user cannot change.
func (a *app) compareVersion(server string) {
	if server != a.Version && a.globals.URL == "" {
		a.say("the daemon is version %s but this program is version %s; if this program is the newer one, have it take over with: cove daemon restart", clean(server), a.Version)
	}
}

func (a *app) localDaemon(stateDir string) *daemon {
	d := &daemon{stateDir: stateDir, socket: filepath.Join(stateDir, "cove.sock"), env: a.Env}
	if socket := a.Env("COVE_SOCKET"); socket != "" {
		d.socket = socket
	}
	return d
}

func (a *app) stateDir() (string, error) {
	dir := a.globals.StateDir
	if dir == "" {
		dir = config.DefaultStateDir(a.Env)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", sandbox.Wrap(sandbox.CodeInvalid, err, "cannot determine the state directory; set its absolute path with --state-dir")
	}
	return abs, nil
}

// cleanupTime bounds the clean-up after an interruption.
const cleanupTime = 30 * time.Second

// detached returns a context for cleaning up after ctx has ended.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}

// closeQuietly closes something that was only read.
func closeQuietly(c io.Closer) { _ = c.Close() }
