package superserve

import (
	"os"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

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
						t.Cleanup(naming.Unlock) // after the port is free
						if !needs.Soak() {
							smoke = "COVE_SMOKE=1"
						}
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
	sdktest.Versions(t, []string{"superserve-0.7"}, func(t *testing.T, uid uint32, env ...string) { serve(t, uid, byURL).Suite(t, env...) })
}
