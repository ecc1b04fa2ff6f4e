package e2b

import (
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// certificate writes a configuration with a certificate for all names below the
// domain, which a user can read.
func certificate(t *testing.T, uid uint32) (config string) {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if _, err := os.Stat(made.of[uid]); err == nil { // the test that made it has not ended
		return made.of[uid]
	}
	made.of[uid] = sdktest.Certificate(t, uid, "*."+domain)
	return made.of[uid]
}

// made are the configurations by user: daemons are shared if they have the same.
var made = struct {
	sync.Mutex
	of map[uint32]string
}{of: map[uint32]string{}}

// TestSDK runs all checks: as root by URL, and as an ordinary user by name;
// "make soak" both as both. What they show is the table of docs/compat.md.
func TestSDK(t *testing.T) {
	var mu sync.Mutex
	var rows []sdktest.Row
	t.Run("ways", func(t *testing.T) {
		covetest.ForUsers(t, true, func(t *testing.T, uid uint32) {
			ways := []way{byURL, byName}
			if !needs.Soak() && os.Geteuid() == 0 {
				ways = map[bool][]way{true: {byURL}, false: {byName}}[uid == 0]
			}
			for _, w := range ways {
				t.Run("by "+string(w), func(t *testing.T) {
					got := serve(t, uid, w).Suite(t, "COVE_E2B="+pinned)
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

// TestNewest runs all checks with the newest release, which may be newer than
// those that are pinned. Only "make soak" asks the registry for it; TestSDK and
// TestVersions stand for it.
func TestNewest(t *testing.T) {
	if !needs.Soak() {
		return
	}
	needs.File(t, filepath.Join(os.Getenv(newestVar), "node_modules/e2b/package.json"))
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		serve(t, uid, byURL).Suite(t, "COVE_E2B="+filepath.Join(os.Getenv(newestVar), "node_modules/e2b/dist/index.mjs"))
	})
}

// TestVersions runs the checks that stand for all with the other versions of the
// SDK; "make soak" runs all.
func TestVersions(t *testing.T) {
	for _, v := range versions {
		if v == pinned {
			continue // TestSDK has it
		}
		t.Run(v, func(t *testing.T) {
			covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
				smoke := "COVE_SMOKE=1"
				if needs.Soak() {
					smoke = "COVE_SMOKE=0"
				}
				serve(t, uid, byURL).Suite(t, "COVE_E2B="+v, smoke)
			})
		})
	}
}

// TestOlderCode runs the checks of the SDK for code that stand for all with its oldest
// version, which finds sandboxes by their names only.
func TestOlderCode(t *testing.T) {
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		serve(t, uid, byName).Suite(t, "COVE_E2B="+pinned, "COVE_E2B_CODE="+olderCode, "COVE_GROUPS=code", "COVE_SMOKE=1")
	})
}
