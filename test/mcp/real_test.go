package mcp

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/servertest"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/mcp/conformance"
)

// daemon starts the real program with real sandboxes.
func daemon(t *testing.T, opts covetest.Options) *covetest.Daemon {
	t.Helper()
	needs.GVisor(t)
	return covetest.Start(t, opts)
}

// asUser is the options of a daemon of an ordinary user, where this one can
// become another.
func asUser(opts covetest.Options) covetest.Options {
	if os.Geteuid() == 0 {
		opts.UID = covetest.OrdinaryUID
	}
	return opts
}

// key makes an API key.
func key(t *testing.T, d *covetest.Daemon, team string, scopes ...sandbox.Scope) string {
	t.Helper()
	k, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "test", Team: team, Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return k.Secret
}

// mcpCommand returns arguments that make the programs start "cove mcp" on a daemon, as
// its user.
func mcpCommand(t *testing.T, d *covetest.Daemon, opts covetest.Options, args ...string) string {
	t.Helper()
	var line []string
	if opts.UID != 0 {
		id := strconv.Itoa(int(opts.UID))
		line = append(line, "setpriv", "--reuid="+id, "--regid="+id, "--clear-groups")
	}
	line = append(line, "env", "COVE_STATE_DIR="+d.StateDir, "HOME="+d.StateDir, d.Binary, "mcp")
	data, err := json.Marshal(append(line, args...))
	if err != nil {
		t.Fatal(err)
	}
	return "COVE_MCP_COMMAND=" + string(data)
}

// The programs talk to the real daemon: without keys, with "cove mcp" on its
// socket, and as an ordinary user with a key, with "cove mcp" on its URL. All
// have every toolset on. In "make test-all", MCP Inspector judges the schemas of them;
// nothing does in "make test".
func TestRealClients(t *testing.T) {
	node(t)
	t.Run("without keys", func(t *testing.T) {
		opts := covetest.Options{Dev: true}
		d := daemon(t, opts)
		env := []string{"COVE_MCP_URL=" + d.URL + "/mcp" + everything, mcpCommand(t, d, opts, "--toolsets", "all")}
		t.Run("conversation", func(t *testing.T) { run(t, "conversation.test.mjs", env...) })
		if needs.More() {
			t.Run("inspector", func(t *testing.T) {
				run(t, "inspector.test.mjs", append(env, ofEachToolset)...)
			})
		}
	})
}

// TestSoakRealClientsWithKey has them with a key. In "make test", TestKeys stands for it.
func TestSoakRealClientsWithKey(t *testing.T) {
	node(t)
	opts := asUser(covetest.Options{})
	d := daemon(t, opts)
	secret := key(t, d, "a-team", sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite)
	env := []string{
		"COVE_MCP_URL=" + d.URL + "/mcp" + everything, "COVE_API_KEY=" + secret, mcpCommand(t, d, opts, "--url", d.URL, "--key", secret, "--toolsets", "all"),
	}
	t.Run("conversation", func(t *testing.T) { run(t, "conversation.test.mjs", env...) })
	t.Run("inspector", func(t *testing.T) { run(t, "inspector.test.mjs", env...) })
}

// The suite runs against a whole daemon, with the listener and the handlers
// that serve sandboxes.
func TestDaemonConformance(t *testing.T) {
	node(t)
	cfg := config.Default(func(string) string { return "" })
	cfg.StateDir, cfg.Listen, cfg.Dev = t.TempDir(), "127.0.0.1:0", true
	ready, ended := make(chan net.Addr, 1), make(chan error, 1)
	d := server.New(cfg, server.Deps{
		Assembly: servertest.Assembly(), Version: "0.0.1", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Ready: func(tcp net.Addr) { ready <- tcp }, MCP: conformance.Serve,
	})
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case tcp := <-ready:
		run(t, "conformance.test.mjs", "COVE_CONFORMANCE_URL=http://"+tcp.String()+"/mcp")
	case err := <-ended:
		t.Error("the daemon has ended at its start")
		ended <- err
	}
}
