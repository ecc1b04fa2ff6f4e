package sdktest

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// Versions runs the checks with other versions of an SDK than the pinned one, by URL as an
// ordinary user. Packages have the names that package.json gives them.
func Versions(t *testing.T, packages []string, suite Suite) {
	t.Helper()
	for _, name := range packages {
		t.Run(name, func(t *testing.T) {
			covetest.ForUsers(t, false, func(t *testing.T, uid uint32) { suite(t, uid, ByURL, "COVE_SDK="+name, All) })
		})
	}
}
