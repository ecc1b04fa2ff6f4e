// Package hopx runs HOPX's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; a table of docs/compat.md is generated
// from their results.
package hopx

import (
	"net/netip"
	"os"
	"slices"
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

// server is a daemon as a client sees it.
type server struct {
	d *covetest.Daemon
	sdktest.Client
}

// names are the product's, which lead to one daemon at a time.
var names sync.Mutex

// password is that of the registry with the image that templates are built of.
const password = "of-the-registry"

// serve borrows a daemon of a user, which is reached in a way: by a URL that programs give,
// or by the product's names, where programs give nothing.
func serve(t *testing.T, uid uint32, w sdktest.Way) *server {
	t.Helper()
	needs.GVisor(t)
	n := internet.Here(t)
	host, image := dialecttest.PushShell(t, password)
	s := &server{Client: sdktest.Client{Node: 20, Without: []string{"HOPX_"}, Env: []string{"COVE_IMAGE=" + image, "COVE_IMAGE_PASSWORD=" + password}}}
	args := append(n.Args(), "--insecure-registries", host, "--webhooks-allow-private")
	if w == sdktest.ByName {
		names.Lock()
		t.Cleanup(names.Unlock)
		address := "127.0.0.1"
		if uid != 0 {
			address = "127.0.0.2"
		}
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: append(args,
			"--listen", address+":443", "--preview-domain", domain, "--allowed-hosts", apiHost, "--config", sdktest.Certificate(t, uid, apiHost, "*."+domain))})
		n.SetName(apiHost, netip.MustParseAddr(address))
		n.SetName("*."+domain, netip.MustParseAddr(address))
		s.UseNames(t)
	} else {
		s.d = covetest.Borrow(t, covetest.Options{UID: uid, Args: args})
		s.Env = append(s.Env, "HOPX_BASE_URL="+s.d.URL+"/hopx")
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

// TestSDK runs the checks. What they show is a table of docs/compat.md.
func TestSDK(t *testing.T) { table.Test(t, suite, sdktest.UserByURL) }

// TestSoakVersions runs the checks with the oldest version that is tested. In "make test",
// TestSDK stands for it.
func TestSoakVersions(t *testing.T) { sdktest.Versions(t, []string{"hopx-0.3"}, suite) }

func suite(t *testing.T, uid uint32, w sdktest.Way, env ...string) []sdktest.Row {
	t.Helper()
	s := serve(t, uid, w)
	if slices.Contains(env, sdktest.All) {
		dialecttest.BuildScreen(t, s.d, "screen")
		s.Env = append(s.Env, "COVE_SCREEN=screen")
	}
	return s.Suite(t, env...)
}
