package e2b

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// An agent of a framework that has E2B's SDK built in works in a sandbox, which the framework
// then pauses, finds again and kills. In "make test", TestSDK stands for it.
func TestMoreAgent(t *testing.T) {
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		out := serve(t, uid, sdktest.ByURL).Run(t, "agent.mjs", "MASTRA_TELEMETRY_DISABLED=1")
		if !strings.HasSuffix(strings.TrimSpace(out), "done") {
			t.Errorf("the agent has not done its work:\n%s", out)
		}
	})
}
