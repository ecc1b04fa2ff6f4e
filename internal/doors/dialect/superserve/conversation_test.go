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

// differs matches what is never the same: sizes of directories, and of zip files, which
// contain times.
var differs = regexp.MustCompile(`("content": )"UEs[A-Za-z0-9+/=]*"`)

func hide(s string) string {
	return differs.ReplaceAllString(s, `$1"<zip>"`)
}

// revision is the protocol version of the tests.
const revision = "2025-11-25"

// TestConversations has the conversations that need no machine, over the service with
// sandboxes in memory.
func TestConversations(t *testing.T) {
	d := superserve.New()
	dialecttest.Conversations(t, d, "testdata/memory", dialecttest.InMemory(d))
}

// TestRealConversations has the conversations with real sandboxes, through both doors and
// for both kinds of users, in two combinations.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range dialecttest.Users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			for door, open := range dialecttest.Doors(daemon, superserve.Name) {
				if opts.UID != dialecttest.Ordinary().UID && door == "http" {
					continue // the differences between doors are the same for root
				}
				for scripts, first := range map[string]string{"testdata/memory": "stdio", "testdata/real": "http"} {
					if door != first && !needs.Soak() {
						continue // only "make soak" has each through both
					}
					t.Run(door+" "+filepath.Base(scripts), func(t *testing.T) {
						dialecttest.Conversations(t, superserve.New(), scripts, dialecttest.Through(daemon, open, revision, hide))
					})
				}
			}
		})
	}
}
