// Package microsandbox runs microsandbox's own SDK and its program msb, unmodified, in
// their cloud mode against "cove serve" with real sandboxes. The checks are in
// checks/*.mjs; the table of docs/compat.md is generated from their results.
package microsandbox

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud"
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

// host is the name of the server.
const host = "cove.test"

// suite runs checks against a daemon of a user, and reports those that fail.
func suite(t *testing.T, uid uint32, w sdktest.Way, env ...string) []sdktest.Row {
	t.Helper()
	needs.GVisor(t)
	msb, err := filepath.Abs("node_modules/@superradcompany/microsandbox-linux-x64-gnu/bin/msb")
	if err != nil {
		t.Fatal(err)
	}
	needs.File(t, msb) // npm ci --prefix test/sdk/microsandbox
	n := internet.Here(t)
	registry, image := dialecttest.PushShell(t, "")
	args := append(n.Args(), "--insecure-registries", registry)
	if w == sdktest.ByName {
		args = append(args, "--allowed-hosts", host, "--config", sdktest.Certificate(t, uid, host))
	}
	d := covetest.Borrow(t, covetest.Options{UID: uid, Args: args})
	key := func(team string) string {
		made, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: team, Scopes: []sandbox.Scope{
			sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeSecretsWrite, sandbox.ScopeTemplatesWrite,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return made.Secret
	}
	client := sdktest.Client{Node: 22, Without: []string{"MSB_", "HOME="}}
	url := d.URL
	if w == sdktest.ByName {
		url = strings.Replace(url, "127.0.0.1", host, 1)
		n.SetName(host, netip.MustParseAddr("127.0.0.1"))
		client.UseNames(t)
	}
	client.Env = append(client.Env, "MSB_BACKEND=cloud", "MSB_API_URL="+url+cloud.Prefix, "MSB_API_KEY="+key(sandbox.LocalCaller().Team), "HOME="+t.TempDir(),
		"COVE_URL="+url, "COVE_MSB="+msb, "COVE_IMAGE="+image, "COVE_FOREIGN_KEY="+key("others"))
	return client.Suite(t, env...)
}
