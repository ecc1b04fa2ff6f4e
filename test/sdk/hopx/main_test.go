// Package hopx runs HOPX's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; a table of docs/compat.md is made of
// what they show.
package hopx

import (
	"bufio"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// privileged names the first port that every user may listen on, in the network that
// the tests have for themselves: the SDK's own address has the usual one of HTTPS.
const privileged = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

func TestMain(m *testing.M) {
	os.Exit(internet.Main(m, func(m *testing.M) int {
		_ = os.WriteFile(privileged, []byte("443"), 0) // a daemon that cannot listen says so
		return covetest.Main(m)
	}))
}

// The names that a program asks for which knows nothing of Cove.
const (
	apiHost = "api.hopx.dev"
	domain  = "local.vms.hopx.dev"
)

// A way is how a client finds the server.
type way string

// The ways.
const (
	// byURL has one address for all, over plain HTTP, which programs give.
	byURL way = "URL"
	// byName has the product's names, over TLS: programs give nothing.
	byName way = "name"
)

// server is a daemon as a client sees it.
type server struct {
	d *covetest.Daemon
	// env are the client's variables.
	env []string
	// resolver is a file for /etc/resolv.conf, if the client needs names.
	resolver string
}

// names are the product's, which lead to one daemon at a time.
var names sync.Mutex

// password is that of the registry with the image that templates are built of.
const password = "of-the-registry"

// serve borrows a daemon of a user, which is reached in a way.
func serve(t *testing.T, uid uint32, w way) *server {
	t.Helper()
	needs.GVisor(t)
	n := internet.Here(t)
	s := &server{}
	if w == byName {
		names.Lock()
		t.Cleanup(names.Unlock)
		address := "127.0.0.1"
		if uid != 0 {
			address = "127.0.0.2"
		}
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: append(n.Args(),
			"--listen", address+":443", "--preview-domain", domain, "--allowed-hosts", apiHost, "--config", certificate(t, uid))})
		n.SetName(apiHost, netip.MustParseAddr(address))
		n.SetName("*."+domain, netip.MustParseAddr(address))
		s.env = append(s.env, "NODE_EXTRA_CA_CERTS="+n.CA)
		s.resolver = filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(s.resolver, []byte("nameserver "+internet.Resolver.String()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	} else {
		host, image := dialecttest.PushShell(t, password)
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: append(n.Args(), "--insecure-registries", host, "--webhooks-allow-private")})
		dialecttest.BuildScreen(t, s.d, "screen")
		s.env = append(s.env, "HOPX_BASE_URL="+s.d.URL+"/hopx", "COVE_IMAGE="+image, "COVE_IMAGE_PASSWORD="+password, "COVE_SCREEN=screen", "COVE_CALLBACKS=1")
	}
	for name, team := range map[string]string{"HOPX_API_KEY": sandbox.LocalCaller().Team, "COVE_OTHER_KEY": "other"} {
		key, err := s.d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: name + " " + t.Name(), Team: team, Scopes: []sandbox.Scope{
			sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite, sandbox.ScopeComputersWrite,
		}})
		if err != nil {
			t.Fatal(err)
		}
		s.env = append(s.env, name+"="+key.Secret)
	}
	return s
}

// certificate writes a configuration with a certificate for the product's names, which
// a user can read.
func certificate(t *testing.T, uid uint32) (config string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-hopx-cert-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cert, key := internet.Here(t).Certificate(t, dir, apiHost, "*."+domain)
	config = filepath.Join(dir, "cove.yaml")
	if err := os.WriteFile(config, []byte("tls:\n  cert: "+cert+"\n  key: "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if uid != 0 {
		for _, path := range []string{dir, cert, key, config} {
			if err := os.Chown(path, int(uid), int(uid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return config
}

// A row is what came of one check.
type row struct {
	Group   string   `json:"group"`
	Check   string   `json:"check"`
	Methods []string `json:"methods"`
	Error   string   `json:"error"`
	MS      int64    `json:"ms"`
}

// suite runs checks as a client, and reports those that fail.
func (s *server) suite(t *testing.T, env ...string) []row {
	t.Helper()
	needs.Command(t, "node")
	needs.File(t, "node_modules/.package-lock.json") // npm ci --prefix test/sdk/hopx
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	results := filepath.Join(t.TempDir(), "results.jsonl")
	args := []string{"node", "suite.mjs"}
	if s.resolver != "" {
		needs.Command(t, "unshare", "mount")
		args = append([]string{"unshare", "--mount", "sh", "-ec", `mount --bind "$1" /etc/resolv.conf; shift; exec "$@"`, "sh", s.resolver}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HOPX_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, s.env...), append(env, "COVE_RESULTS="+results)...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the suite: %v\n%s", err, out)
	}
	f, err := os.Open(results)
	if err != nil {
		t.Fatalf("no check has ended: %v\n%s", err, out)
	}
	defer f.Close()
	var rows []row
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
		if r.Error != "" {
			t.Errorf("%s: %s: %s", r.Group, r.Check, r.Error)
		} else if testing.Verbose() {
			t.Logf("%s: %s (%d ms)", r.Group, r.Check, r.MS)
		}
	}
	return rows
}

// TestSDK runs all checks by URL, and those that stand for them by name, as an ordinary
// user; "make soak" all of them, as root too. What they show is a table of
// docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []row
	t.Run("ways", func(t *testing.T) {
		covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
			for _, w := range []way{byURL, byName} {
				t.Run("by "+string(w), func(t *testing.T) {
					smoke := "COVE_SMOKE=0"
					if w == byName && !needs.Soak() {
						smoke = "COVE_SMOKE=1"
					}
					got := serve(t, uid, w).suite(t, smoke, "COVE_GROUPS="+os.Getenv("COVE_GROUPS"))
					mu.Lock()
					defer mu.Unlock()
					rows = append(rows, got...)
				})
			}
		})
	})
	if os.Getenv("COVE_GROUPS") == "" {
		table(t, rows)
	}
}
