package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/internal/testing/servertest"
	"github.com/cove-sh/cove/sandbox"
)

// sendable are templates that nodes could fetch.
type sendable struct{ service.TemplateProvider }

func (sendable) IsHost(context.Context, string) (bool, error)      { return true, nil }
func (sendable) PackRoot(context.Context, string, io.Writer) error { return os.ErrNotExist }

// turn is one of several servers with one database.
type turn struct {
	address string
	dir     string
	stop    context.CancelFunc
	done    chan error
	active  chan struct{} // has one for each time that it has become active
}

// freeAddress returns an address on which nobody listens, with a port that is not given to
// those who take any.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.N(20_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
}

func takeTurns(t *testing.T, store sandbox.SecretValue, change ...func(*config.Config)) *turn {
	t.Helper()
	cfg := config.Default(func(string) string { return "" })
	cfg.StateDir, cfg.Listen, cfg.Standby = t.TempDir(), freeAddress(t), true
	cfg.Store = config.Secret{SecretValue: store}
	cfg.Nodes.Listen, cfg.Nodes.Only, cfg.DrainTimeout = "127.0.0.1:0", true, time.Second
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &turn{address: cfg.Listen, dir: cfg.StateDir, stop: cancel, done: make(chan error, 1), active: make(chan struct{}, 16)}
	deps := server.Deps{Assembly: withRoots(servertest.Assembly()), Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Ready: func(net.Addr) { r.active <- struct{}{} }}
	go func() {
		defer close(r.done)
		r.done <- server.New(cfg, deps).Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-r.done; err != nil {
			t.Errorf("a server ended with %v", err)
		}
	})
	return r
}

// begins waits until a server becomes active.
func (r *turn) begins(t *testing.T) {
	t.Helper()
	select {
	case <-r.active:
	case err := <-r.done:
		t.Fatalf("the server ended with %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the server does not become active")
	}
}

func (r *turn) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := tr.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return &http.Response{}, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return &http.Response{}, err.Error()
	}
	return resp, string(data)
}

// says waits until a server answers that it is ready, or in which words it is not.
func (r *turn) says(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for {
		_, got := r.get(t, "/readyz")
		if strings.Contains(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("it says %q, want %q", got, want)
		}
	}
}

// Of two servers one is active, and the other says which. What both need is in the database.
func TestStandby(t *testing.T) {
	t.Setenv("COVE_SECRETS_KEY", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	postgres := postgrestest.Start(t)
	address, schema := postgres.NewSchema(t)
	first := takeTurns(t, address)
	first.begins(t)
	second := takeTurns(t, address)
	second.says(t, "on standby; ")
	_, port, _ := net.SplitHostPort(first.address)
	second.says(t, ":"+port+" is active")
	if resp, body := second.get(t, "/healthz"); resp.StatusCode != http.StatusOK || !strings.Contains(body, "standby") {
		t.Errorf("one on standby is not alive: %d %s", resp.StatusCode, body)
	}
	for _, path := range []string{"/v1/sandboxes", "/mcp", "/console/"} {
		resp, body := second.get(t, path)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "2" || !strings.Contains(body, "is active; call the active one") {
			t.Errorf("%s on standby: %d %v %s", path, resp.StatusCode, resp.Header, body)
		}
	}
	c, err := client.New(client.Config{UnixSocket: filepath.Join(second.dir, "cove.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateJoinToken(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("its socket: %v", err)
	}
	if resp, _ := first.get(t, "/readyz"); resp.StatusCode != http.StatusOK {
		t.Errorf("the active one is not ready: %d", resp.StatusCode)
	}
	token := joinToken(t, first)

	first.stop()
	second.begins(t)
	if got := joinToken(t, second); got.authority != token.authority {
		t.Error("nodes do not know the second server")
	}
	for _, name := range []string{"nodes", "preview-links.key"} {
		if _, err := os.Lstat(filepath.Join(first.dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is on one machine: %v", name, err)
		}
	}

	// The second loses the database, and gets it again.
	postgres.Exec(t, fmt.Sprintf("UPDATE %s.holder SET token = 'another', released = true", schema))
	second.begins(t)
	if got := joinToken(t, second); got.authority != token.authority {
		t.Error("nodes do not know the second server after it was on standby")
	}
}

type joining struct{ authority string }

// joinToken makes a token, by which a node would know the server.
func joinToken(t *testing.T, r *turn) joining {
	t.Helper()
	c, err := client.New(client.Config{UnixSocket: filepath.Join(r.dir, "cove.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	token, err := c.CreateJoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, sum, _ := strings.Cut(token.Token, ".")
	return joining{sum}
}

// A server that is cut off from its database is on standby, and active again when it is back.
// In "make test", TestStandby, and TestServerAwayWithStandby of package store/postgres, stand
// for it.
func TestMoreStandbyDuringAnOutage(t *testing.T) {
	t.Setenv("COVE_SECRETS_KEY", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	postgres := postgrestest.Start(t)
	r := takeTurns(t, postgres.Schema(t))
	r.begins(t)
	token := joinToken(t, r)
	postgres.Crash(t)
	r.says(t, "the database cannot be reached")
	postgres.Run(t)
	r.begins(t)
	if got := joinToken(t, r); got != token {
		t.Error("nodes do not know the server any more")
	}
}

// A server whose key is another than that of the others does not become one of them.
func TestStandbyNeedsTheKey(t *testing.T) {
	postgres := postgrestest.Start(t)
	address := postgres.Schema(t)
	cfg := config.Default(func(string) string { return "" })
	cfg.StateDir, cfg.Listen, cfg.Standby = t.TempDir(), "127.0.0.1:0", true
	cfg.Store, cfg.Nodes.Listen, cfg.Nodes.Only = config.Secret{SecretValue: address}, "127.0.0.1:0", true
	run := func() error {
		return server.New(cfg, server.Deps{Assembly: withRoots(servertest.Assembly()), Version: "1", Log: slog.New(slog.DiscardHandler)}).Run(t.Context())
	}
	t.Setenv("COVE_SECRETS_KEY", "")
	if err := run(); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "needs the key of secrets") {
		t.Errorf("without a key: %v", err)
	}
	t.Run("other", func(t *testing.T) {
		t.Setenv("COVE_SECRETS_KEY", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
		r := takeTurns(t, address)
		r.begins(t)
	})
	t.Setenv("COVE_SECRETS_KEY", "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=")
	if err := run(); err == nil || !strings.Contains(err.Error(), "cannot be opened; give this server") {
		t.Errorf("with another key: %v", err)
	}
}

// A server that would have something of its own is refused.
func TestStandbyIsRefused(t *testing.T) {
	t.Setenv("COVE_SECRETS_KEY", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	for want, change := range map[string]func(*config.Config){
		"needs a database":             func(c *config.Config) { c.Store = config.Secret{} },
		"needs nodes":                  func(c *config.Config) { c.Nodes.Only = false },
		"cannot be used with tls.acme": func(c *config.Config) { c.TLS.ACME.Hosts = []string{"cove.example.com"} },
		"has records of its own": func(c *config.Config) {
			if err := os.WriteFile(filepath.Join(c.StateDir, "cove.db"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		cfg := config.Default(func(string) string { return "" })
		cfg.StateDir, cfg.Listen, cfg.Standby = t.TempDir(), "127.0.0.1:0", true
		cfg.Store = config.Secret{SecretValue: sandbox.NewSecretValue("postgres://cove@127.0.0.1:1/cove")}
		cfg.Nodes.Listen, cfg.Nodes.Only = "127.0.0.1:0", true
		change(&cfg)
		err := server.New(cfg, server.Deps{Assembly: servertest.Assembly(), Version: "1", Log: slog.New(slog.DiscardHandler)}).Run(t.Context())
		if code := sandbox.CodeOf(err); code != sandbox.CodeInvalid && code != sandbox.CodeConflict || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// What a server knew of nodes in its state directory is in the database afterwards.
func TestFilesAreAdopted(t *testing.T) {
	before := mustStart(t, func(c *config.Config) { c.Nodes.Listen = "127.0.0.1:0" }, func(s *setup) { s.Assembly = withRoots(s.Assembly) })
	c := before.client(t)
	token, err := c.CreateJoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before.end(t)
	dir := before.cfg.StateDir
	if err := os.Remove(filepath.Join(dir, "cove.db")); err != nil {
		t.Fatal(err)
	}
	link, err := os.ReadFile(filepath.Join(dir, "preview-links.key"))
	if err != nil {
		t.Fatal(err)
	}
	postgres := postgrestest.Start(t)
	address := postgres.Schema(t)
	after := mustStart(t, func(c *config.Config) {
		c.StateDir, c.Nodes.Listen = t.TempDir(), "127.0.0.1:0"
		c.Store = config.Secret{SecretValue: address}
		if err := os.CopyFS(filepath.Join(c.StateDir, "nodes"), os.DirFS(filepath.Join(dir, "nodes"))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.StateDir, "preview-links.key"), link, 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(s *setup) { s.Assembly = withRoots(s.Assembly) })
	again, err := after.client(t).CreateJoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, was, _ := strings.Cut(token.Token, ".")
	if _, is, _ := strings.Cut(again.Token, "."); is != was {
		t.Error("nodes do not know the server any more")
	}
	dump := string(postgres.Program(t, nil, "pg_dump", "--dbname="+address.Reveal(), "--data-only", "--inserts"))
	if !strings.Contains(dump, "nodes/tokens/") || strings.Contains(dump, "PRIVATE KEY") || strings.Contains(dump, fmt.Sprintf("%x", "PRIVATE KEY")) || strings.Contains(dump, fmt.Sprintf("%x", link)) {
		t.Error("the database lacks the tokens, or has a key as it is")
	}
	after.end(t)
	if _, err := server.RotateSecretsKey(t.Context(), after.cfg.StateDir, address, ""); err != nil {
		t.Fatal(err)
	}
	rotated := mustStart(t, func(c *config.Config) {
		c.StateDir, c.Nodes.Listen, c.Store = after.cfg.StateDir, "127.0.0.1:0", config.Secret{SecretValue: address}
	}, func(s *setup) { s.Assembly = withRoots(s.Assembly) })
	if again, err = rotated.client(t).CreateJoinToken(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, is, _ := strings.Cut(again.Token, "."); is != was {
		t.Error("nodes do not know the server any more after its key of secrets was rotated")
	}
}

func withRoots(a server.Assembly) server.Assembly {
	templates := a.Templates
	a.Templates = func(ctx context.Context, dir string, cfg *config.Config, log *slog.Logger) (service.TemplateProvider, error) {
		p, err := templates(ctx, dir, cfg, log)
		return sendable{p}, err
	}
	return a
}
