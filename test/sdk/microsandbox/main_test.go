// Package microsandbox runs microsandbox's own SDK and its program msb, unmodified, in
// their cloud mode against "cove serve" with real sandboxes. The checks are in
// checks/*.mjs; the table of docs/compat.md is made of what they show.
package microsandbox

import (
	"os"
	"path/filepath"
	"sync"
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

// TestSDK runs all checks as an ordinary user, and "make soak" as root too. What they
// show is the table of docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []sdktest.Row
	t.Run("users", func(t *testing.T) {
		covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
			got := suite(t, uid)
			mu.Lock()
			defer mu.Unlock()
			rows = append(rows, got...)
		})
	})
	if os.Getenv("COVE_GROUPS") == "" {
		table.Compare(t, rows)
	}
}

// suite runs all checks against a daemon of a user, and reports those that fail.
func suite(t *testing.T, uid uint32) []sdktest.Row {
	t.Helper()
	needs.GVisor(t)
	msb, err := filepath.Abs("node_modules/@superradcompany/microsandbox-linux-x64-gnu/bin/msb")
	if err != nil {
		t.Fatal(err)
	}
	needs.File(t, msb) // npm ci --prefix test/sdk/microsandbox
	registry, image := dialecttest.PushShell(t, "")
	d := covetest.Borrow(t, covetest.Options{UID: uid, Args: append(internet.Here(t).Args(), "--insecure-registries", registry)})
	key := func(team string) string {
		made, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: team, Scopes: []sandbox.Scope{
			sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeSecretsWrite, sandbox.ScopeTemplatesWrite,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return made.Secret
	}
	client := sdktest.Client{Node: 22, Without: []string{"MSB_", "HOME="}, Env: []string{
		"MSB_BACKEND=cloud", "MSB_API_URL=" + d.URL + cloud.Prefix, "MSB_API_KEY=" + key(sandbox.LocalCaller().Team), "HOME=" + t.TempDir(),
		"COVE_URL=" + d.URL, "COVE_MSB=" + msb, "COVE_IMAGE=" + image, "COVE_FOREIGN_KEY=" + key("others"),
	}}
	return client.Suite(t)
}
