package superserve

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// certificate writes a configuration with a certificate for the product's names, which
// a user can read.
func certificate(t *testing.T, uid uint32) (config string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-superserve-cert-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cert, key := internet.Here(t).Certificate(t, dir, names...)
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

// table is what the SDK offers, and of what the run makes the table of docs/compat.md.
var table = sdktest.Table{Product: "superserve", Sections: []sdktest.Section{
	{Title: "Superserve: sandboxes", Classes: classes("Sandbox")},
	{Title: "Superserve: commands and files", Classes: classes("Commands", "CommandSession", "CommandStdin", "Files")},
	{Title: "Superserve: templates", Classes: classes("Template")},
	{Title: "Superserve: secrets", Classes: classes("Secret", "Provider")},
}}

func classes(names ...string) []sdktest.Class {
	var list []sdktest.Class
	for _, name := range names {
		list = append(list, sdktest.Class{Package: "@superserve/sdk", Name: name})
	}
	return list
}

// naming is held while a test has the product's names lead to its daemon.
var naming sync.Mutex

// TestSDK runs all checks by URL, and by name those that stand for them, as an ordinary
// user; "make soak" runs all in both ways, as root too. What they show is the table of
// docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []sdktest.Row
	t.Run("ways", func(t *testing.T) {
		covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
			for _, w := range []way{byURL, byName} {
				t.Run("by "+string(w), func(t *testing.T) {
					smoke := "COVE_SMOKE=0"
					if w == byName {
						naming.Lock()
						defer naming.Unlock()
						if !needs.Soak() {
							smoke = "COVE_SMOKE=1"
						}
					}
					got := serve(t, uid, w).run(t, smoke)
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
