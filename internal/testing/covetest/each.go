package covetest

import (
	"os"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
)

// OrdinaryUID is a user without an account.
const OrdinaryUID = 54321

// Own runs a test on a daemon of its own with these arguments. The daemon is an
// ordinary user's, who may do less than root; "make soak" has root run the test
// too. See [Shared] for tests that need no daemon of their own, and [EachUser]
// for those that are about what root may do and others may not.
func Own(t *testing.T, test func(t *testing.T, d *Daemon), args ...string) {
	t.Helper()
	start(t, needs.Soak(), test, args)
}

// EachUser is [Own] for tests whose subject differs between root and ordinary
// users: cgroups, mounts, the owners of files. It always runs as both, at the
// same time, after the caller's own function.
func EachUser(t *testing.T, test func(t *testing.T, d *Daemon), args ...string) {
	t.Helper()
	start(t, true, test, args)
}

// start runs a test on a new daemon for each user, or for the ordinary one.
func start(t *testing.T, both bool, test func(t *testing.T, d *Daemon), args []string) {
	t.Helper()
	needs.GVisor(t)
	ForUsers(t, both, func(t *testing.T, uid uint32) { test(t, Start(t, Options{UID: uid, Args: args})) })
}

// ForUsers runs a test for user ids, where 0 is this user: for root and an ordinary
// user, at the same time, or for the ordinary one only. An ordinary user runs it
// alone in any case.
func ForUsers(t *testing.T, both bool, test func(t *testing.T, uid uint32)) {
	t.Helper()
	run := func(name string, uid uint32) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
	if os.Geteuid() != 0 {
		run("user", 0)
		return
	}
	if both {
		run("root", 0)
	}
	run("user", OrdinaryUID)
}
