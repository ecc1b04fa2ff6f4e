package e2b

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// A sandbox that a program with E2B's SDK has created is the same for everybody else: on the
// command line, for an agent that forks it by MCP, and for a program with Daytona's SDK. In
// "make test", TestRealSandbox of internal/doors/dialect/all and TestDaytonaSameSandbox of
// package server stand for it.
func TestMoreDoors(t *testing.T) {
	needs.File(t, "../daytona/node_modules/.package-lock.json") // npm ci --prefix test/sdk/daytona
	covetest.ForUsers(t, false, func(t *testing.T, uid uint32) {
		s := serve(t, uid, sdktest.ByURL)
		var made struct{ ID string }
		if out := s.Run(t, "doors.mjs"); json.Unmarshal([]byte(out), &made) != nil {
			t.Fatalf("E2B's SDK: %s", out)
		}
		id := strings.Replace(made.ID, "sbx", "sbx-", 1)

		out, err := s.d.Command(t.Context(), "ls", "--json").Output()
		if err != nil || !strings.Contains(string(out), id) {
			t.Fatalf("cove ls: %v\n%s", err, out)
		}

		session := dialecttest.Connect(t, dialecttest.Stdio(s.d, "native")(), "")
		children, _ := dialecttest.Ask(t, session, "sandbox_fork", `{"sandbox":"`+id+`","count":1}`)["children"].([]any)
		if len(children) != 1 {
			t.Fatalf("children %v", children)
		}
		child, _ := children[0].(map[string]any)["id"].(string)
		dialecttest.Ask(t, session, "file_write", `{"sandbox":"`+child+`","path":"/home/user/by-mcp","content":"of the child"}`)

		for ref, want := range map[string]string{id: "made by E2B\nnone\n", child: "made by E2B\nof the child\n"} {
			got := s.Run(t, "../daytona/other.mjs", "COVE_SANDBOX="+ref, "DAYTONA_API_URL="+s.d.URL+daytona.Prefix+daytona.ControlPath, "DAYTONA_API_KEY="+s.key)
			if got != want {
				t.Errorf("Daytona's SDK reads %q in %s, want %q", got, ref, want)
			}
		}
		box, err := s.d.Client.Get(t.Context(), child)
		if err != nil || box.Metadata["made"] != "here" || box.Metadata["forked_from"] != id {
			t.Errorf("the child is %+v, %v", box, err)
		}
	})
}
