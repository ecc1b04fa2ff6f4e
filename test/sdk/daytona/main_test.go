// Package daytona runs Daytona's own SDK, unmodified, against "cove serve" with real
// sandboxes. The checks are in checks/*.mjs; the table of docs/compat.md is made of
// what they show.
package daytona

import (
	"os"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { covetest.Main(m) }

// TestSDK runs all checks as an ordinary user, and "make soak" as root too. What they
// show is the table of docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []sdktest.Row
	t.Run("users", func(t *testing.T) {
		covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
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

// TestVersions runs the checks that stand for all with the oldest version that is tested,
// and with the SDK under its newer name.
func TestVersions(t *testing.T) {
	sdktest.Versions(t, []string{"daytona-0.205", "@daytona/sdk"}, func(t *testing.T, uid uint32, env ...string) { suite(t, uid, env...) })
}

// suite runs checks against a daemon of a user, and reports those that fail.
func suite(t *testing.T, uid uint32, env ...string) []sdktest.Row {
	t.Helper()
	needs.GVisor(t)
	registry, image := dialecttest.PushShell(t, "")
	d := covetest.Borrow(t, covetest.Options{UID: uid, Args: []string{"--insecure-registries", registry}})
	key, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "sdk " + t.Name(), Team: sandbox.LocalCaller().Team, Scopes: []sandbox.Scope{
		sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite,
	}})
	if err != nil {
		t.Fatal(err)
	}
	client := sdktest.Client{Node: 20, Without: []string{"DAYTONA_"}, Env: []string{
		"DAYTONA_API_URL=" + d.URL + "/daytona/api", "DAYTONA_API_KEY=" + key.Secret, "COVE_IMAGE=" + image,
	}}
	return client.Suite(t, env...)
}
