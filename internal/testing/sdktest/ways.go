package sdktest

import (
	"os"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// A Way is how a client finds the server.
type Way string

// The ways.
const (
	// ByURL has one address for all, over plain HTTP, which programs are told.
	ByURL Way = "URL"
	// ByName has host names, over TLS.
	ByName Way = "name"
)

// other is the other way.
func (w Way) other() Way {
	if w == ByURL {
		return ByName
	}
	return ByURL
}

// A Suite runs checks against a daemon of a user that is reached in a way, with further
// variables, and returns what came of them. COVE_ROOT says that the user is root.
type Suite func(t *testing.T, uid uint32, w Way, env ...string) []Row

// Test runs the checks of a product that stand for all, as the user and in the way that
// whole accepts. "make test-all" runs all checks there, and those that stand for all also as
// the other user in the other way, and compares what they show with docs/compat.md. "make
// soak" runs all as both users in both ways.
func (tab *Table) Test(t *testing.T, suite Suite, whole func(root bool, w Way) bool) {
	t.Helper()
	var mu sync.Mutex
	var rows []Row
	t.Run("ways", func(t *testing.T) {
		covetest.ForUsers(t, true, func(t *testing.T, uid uint32) {
			root := uid == 0 && os.Geteuid() == 0
			for _, w := range []Way{ByURL, ByName} {
				if !whole(root, w) && !(whole(!root, w.other()) && needs.More()) && !needs.Soak() {
					continue
				}
				t.Run("by "+string(w), func(t *testing.T) {
					env := []string{smoke(!whole(root, w) || !needs.More())}
					if root {
						env = append(env, "COVE_ROOT=1")
					}
					got := suite(t, uid, w, env...)
					mu.Lock()
					defer mu.Unlock()
					rows = append(rows, got...)
				})
			}
		})
	})
	if os.Getenv("COVE_GROUPS") == "" && needs.More() && !covetest.OnNode() {
		tab.compare(t, rows)
	}
}

// UserByURL is where most products have all of their checks.
func UserByURL(root bool, w Way) bool { return !root && w == ByURL }

// The variables with which all checks run, or those that stand for them.
const (
	All = "COVE_SMOKE=0"
	Few = "COVE_SMOKE=1"
)

// smoke chooses one of the variables; "make soak" runs all.
func smoke(few bool) string {
	if few && !needs.Soak() {
		return Few
	}
	return All
}
