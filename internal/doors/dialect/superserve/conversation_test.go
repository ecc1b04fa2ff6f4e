package superserve_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// differs is what is never the same: sizes of directories, and of zip files,
// which have times in them.
var differs = regexp.MustCompile(`("content": )"UEs[A-Za-z0-9+/=]*"`)

func hide(s string) string {
	return differs.ReplaceAllString(s, `$1"<zip>"`)
}

// revision is the protocol's that the tests speak.
const revision = "2025-11-25"

// The conversations that need no machine of their own, over the service whose
// sandboxes are in memory.
func TestConversations(t *testing.T) {
	d := superserve.New()
	dialecttest.Conversations(t, d, "testdata/memory", dialecttest.InMemory(d))
}

// The conversations with real sandboxes, by both doors and for both kinds of
// users, one of each crosswise.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range dialecttest.Users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			for door, open := range dialecttest.Doors(daemon, superserve.Name) {
				if opts.UID != dialecttest.Ordinary().UID && door == "http" {
					continue // what a door does differently is the same for root
				}
				for _, scripts := range []string{"testdata/memory", "testdata/real"} {
					t.Run(door+" "+filepath.Base(scripts), func(t *testing.T) {
						dialecttest.Conversations(t, superserve.New(), scripts, dialecttest.Through(daemon, open, revision, hide))
					})
				}
			}
		})
	}
}
