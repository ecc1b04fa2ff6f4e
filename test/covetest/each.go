package covetest

import (
	"os"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/needs"
)

// OrdinaryUID is a user without an account.
const OrdinaryUID = 54321

// Soak reports whether tests go through all of the cases that they know, as
// "make soak" has them do (COVE_SOAK=1). Otherwise they take those that find most
// of what the others would.
func Soak() bool { return os.Getenv("COVE_SOAK") == "1" }

// Second reports whether this is the run of an ordinary user beside root's of the
// same test.
func Second(t testing.TB) bool {
	return os.Geteuid() == 0 && strings.HasSuffix(t.Name(), "/user")
}

// EachUser runs a test on a daemon of this user's and, for root, on one of an
// ordinary user's too, with these arguments. Both run at once, after the
// caller's own function. See [Shared] for tests that need no daemon of their
// own.
func EachUser(t *testing.T, test func(t *testing.T, d *Daemon), args ...string) {
	t.Helper()
	needs.GVisor(t)
	eachUser(t, func(t *testing.T, uid uint32) { test(t, Start(t, Options{UID: uid, Args: args})) })
}

// eachUser runs a test for user ids: 0 is this user.
func eachUser(t *testing.T, test func(t *testing.T, uid uint32)) {
	t.Helper()
	run := func(name string, uid uint32) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
	if os.Geteuid() == 0 {
		run("root", 0)
		run("user", OrdinaryUID)
		return
	}
	run("user", 0)
}
