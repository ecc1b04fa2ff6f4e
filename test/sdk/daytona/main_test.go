// Package daytona runs Daytona's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; the table of docs/compat.md is generated
// from their results.
package daytona

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { os.Exit(internet.Main(m, covetest.Main)) }

// TestSDK runs the checks. What they show is the table of docs/compat.md.
func TestSDK(t *testing.T) { table.Test(t, suite, sdktest.UserByURL) }

// TestSoakVersions runs the checks with the oldest version that is tested, and with the SDK
// under its newer name. In "make test", TestSDK stands for it.
func TestSoakVersions(t *testing.T) {
	sdktest.Versions(t, []string{"daytona-0.205", "@daytona/sdk"}, suite)
}

// The names of the server, and of the ports of sandboxes.
const (
	host   = "cove.test"
	domain = "ports.cove.test"
)

// suite runs checks against a daemon of a user, and reports those that fail.
func suite(t *testing.T, uid uint32, w sdktest.Way, env ...string) []sdktest.Row {
	t.Helper()
	needs.GVisor(t)
	n := internet.Here(t)
	registry, image := dialecttest.PushShell(t, "")
	args := append(n.Args(), "--insecure-registries", registry)
	if w == sdktest.ByName {
		args = append(args, "--allowed-hosts", host, "--preview-domain", domain, "--config", sdktest.Certificate(t, uid, host, "*."+domain))
	}
	d := covetest.Borrow(t, covetest.Options{UID: uid, Args: args})
	key, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: sandbox.LocalCaller().Team, Scopes: []sandbox.Scope{
		sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite, sandbox.ScopeComputersWrite,
		sandbox.ScopeSecretsWrite,
	}})
	if err != nil {
		t.Fatal(err)
	}
	client := sdktest.Client{Node: 20, Without: []string{"DAYTONA_"}}
	url := d.URL
	if w == sdktest.ByName {
		url = strings.Replace(url, "127.0.0.1", host, 1)
		for _, name := range []string{host, "*." + domain} {
			n.SetName(name, netip.MustParseAddr("127.0.0.1"))
		}
		client.UseNames(t)
	}
	client.Env = append(client.Env, "DAYTONA_API_URL="+url+daytona.Prefix+daytona.ControlPath, "DAYTONA_API_KEY="+key.Secret, "COVE_IMAGE="+image)
	if slices.Contains(env, sdktest.All) {
		dialecttest.BuildScreen(t, d, "screen")
		client.Env = append(client.Env, "COVE_SCREEN=screen")
	}
	return client.Suite(t, env...)
}
