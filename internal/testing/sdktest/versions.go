package sdktest

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// Versions runs the checks that stand for all with other versions of an SDK than the pinned
// one, by the names that package.json gives them; "make soak" runs all. Suite runs the
// checks against a daemon of a user.
func Versions(t *testing.T, packages []string, suite func(t *testing.T, uid uint32, env ...string)) {
	t.Helper()
	smoke := "COVE_SMOKE=1"
	if needs.Soak() {
		smoke = "COVE_SMOKE=0"
	}
	for _, name := range packages {
		t.Run(name, func(t *testing.T) {
			covetest.ForUsers(t, false, func(t *testing.T, uid uint32) { suite(t, uid, "COVE_SDK="+name, smoke) })
		})
	}
}
