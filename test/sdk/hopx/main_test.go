// Package hopx runs HOPX's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; a table of docs/compat.md is made of
// what they show.
package hopx

import (
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
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
	sdktest.Client
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
	s := &server{Client: sdktest.Client{Node: 20, Without: []string{"HOPX_"}}}
	if w == byName {
		names.Lock()
		t.Cleanup(names.Unlock)
		address := "127.0.0.1"
		if uid != 0 {
			address = "127.0.0.2"
		}
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: append(n.Args(),
			"--listen", address+":443", "--preview-domain", domain, "--allowed-hosts", apiHost, "--config", sdktest.Certificate(t, uid, apiHost, "*."+domain))})
		n.SetName(apiHost, netip.MustParseAddr(address))
		n.SetName("*."+domain, netip.MustParseAddr(address))
		s.UseNames(t)
	} else {
		host, image := dialecttest.PushShell(t, password)
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: append(n.Args(), "--insecure-registries", host, "--webhooks-allow-private")})
		dialecttest.BuildScreen(t, s.d, "screen")
		s.Env = append(s.Env, "HOPX_BASE_URL="+s.d.URL+"/hopx", "COVE_IMAGE="+image, "COVE_IMAGE_PASSWORD="+password, "COVE_SCREEN=screen", "COVE_CALLBACKS=1")
	}
	for name, team := range map[string]string{"HOPX_API_KEY": sandbox.LocalCaller().Team, "COVE_OTHER_KEY": "other"} {
		key, err := s.d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: name + " " + t.Name(), Team: team, Scopes: []sandbox.Scope{
			sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite, sandbox.ScopeComputersWrite,
		}})
		if err != nil {
			t.Fatal(err)
		}
		s.Env = append(s.Env, name+"="+key.Secret)
	}
	return s
}

// TestSDK runs all checks by URL, and those that stand for them by name, as an ordinary
// user; "make soak" all of them, as root too. What they show is a table of
// docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []sdktest.Row
	t.Run("ways", func(t *testing.T) {
		covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
			for _, w := range []way{byURL, byName} {
				t.Run("by "+string(w), func(t *testing.T) {
					smoke := "COVE_SMOKE=0"
					if w == byName && !needs.Soak() {
						smoke = "COVE_SMOKE=1"
					}
					got := serve(t, uid, w).Suite(t, smoke)
					mu.Lock()
					defer mu.Unlock()
					rows = append(rows, got...)
				})
			}
		})
	})
	if os.Getenv("COVE_GROUPS") == "" {
		table.Compare(t, rows)
	}
}

// TestVersions runs the checks that stand for all with the oldest version that is tested.
func TestVersions(t *testing.T) {
	sdktest.Versions(t, []string{"hopx-0.3"}, func(t *testing.T, uid uint32, env ...string) { serve(t, uid, byURL).Suite(t, env...) })
}
