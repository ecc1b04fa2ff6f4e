package e2b

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// TestSDK runs the checks, all of them by name, as E2B's own service is reached. What they
// show is the table of docs/compat.md.
func TestSDK(t *testing.T) {
	table.Test(t, suite, func(root bool, w sdktest.Way) bool { return !root && w == sdktest.ByName })
}

// TestSoakVersions runs the checks with the other versions of the SDK. In "make test", TestSDK
// stands for it.
func TestSoakVersions(t *testing.T) { sdktest.Versions(t, older, suite) }

func suite(t *testing.T, uid uint32, w sdktest.Way, env ...string) []sdktest.Row {
	t.Helper()
	return serve(t, uid, w).Suite(t, env...)
}

// TestSoakNewest runs all checks with the newest release, which may be newer than
// those that are pinned. It asks the registry for it. In "make test", TestSDK stands for it.
func TestSoakNewest(t *testing.T) {
	needs.File(t, filepath.Join(os.Getenv(newestVar), "node_modules/e2b/package.json"))
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		suite(t, uid, sdktest.ByURL, "COVE_SDK="+filepath.Join(os.Getenv(newestVar), "node_modules/e2b/dist/index.mjs"))
	})
}

// TestSoakOlderCode runs the checks of the SDK for code with its oldest version, which finds
// sandboxes by their names only. In "make test", TestSDK stands for it.
func TestSoakOlderCode(t *testing.T) {
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		suite(t, uid, sdktest.ByName, "COVE_CODE_SDK="+olderCode, "COVE_GROUPS=code", sdktest.All)
	})
}
