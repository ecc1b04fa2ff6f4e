package hopx_test

import (
	"testing"

	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/test/covetest"
)

// A template is built of an image by call_api as the product's SDK builds it,
// followed, used, and deleted.
func builds(image string) func(t *testing.T, d *covetest.Daemon) {
	return func(t *testing.T, d *covetest.Daemon) {
		s := &session{ClientSession: dialecttest.Connect(t, dialecttest.HTTP(d, first.Name())(), revision), t: t}
		api := func(method, path string, body any) map[string]any {
			args := map[string]any{"method": method, "path": path}
			if body != nil {
				args["body"] = body
			}
			return s.ask("call_api", args)
		}
		step := func(kind string, args ...string) map[string]any { return map[string]any{"type": kind, "args": args} }
		spec := map[string]any{
			"name": "made-by-hopx", "from_image": image, "cpu": 1, "memory": 512, "diskGB": 1,
			"steps": []any{step("ENV", "A", "from the template"), step("WORKDIR", "/srv"), step("RUN", `echo "$A, $PWD" > /made`)},
		}
		begun := api("POST", "/v1/templates/build", spec)
		build, _ := begun["build_id"].(string)
		var state map[string]any
		if !covetest.Eventually(patience, func() bool {
			state = api("GET", "/v1/templates/build/"+build+"/status", nil)
			return state["status"] != "building"
		}) || state["status"] != "success" || state["progress"] != 100.0 {
			t.Fatalf("begun is %v, the build is %v, its log %v", begun, state, api("GET", "/v1/templates/build/"+build+"/logs", nil))
		}
		if logs := api("GET", "/v1/templates/build/made-by-hopx/logs", nil); logs["complete"] != true || logs["logs"] == "" {
			t.Errorf("the log is %v", logs)
		}
		if got := s.ask("get_template", map[string]any{"name": "made-by-hopx"}); got["status"] != "active" || got["is_active"] != true {
			t.Errorf("the template is %v", got)
		}
		if again := api("POST", "/v1/templates/build", spec); again["status_code"] != 409.0 {
			t.Errorf("built again: %v", again)
		}
		made := s.ask("create_sandbox", map[string]any{"template_id": begun["template_id"], "timeout_seconds": 600})
		s.args = map[string]any{"vm_url": made["direct_url"], "auth_token": made["auth_token"]}
		if got := s.in("run_command", map[string]any{"command": "read x < /made; echo $x; echo $A; pwd"}); got["stdout"] != "from the template, /srv\nfrom the template\n/workspace\n" {
			t.Errorf("in a sandbox of it: %v", got)
		}
		s.ask("delete_sandbox", map[string]any{"id": made["id"]})
		if got := api("DELETE", "/v1/templates/made-by-hopx", nil); got["status"] != "deleted" {
			t.Errorf("deleted: %v", got)
		}
		if got := s.ask("get_template", map[string]any{"name": "made-by-hopx"}); got["status_code"] != 404.0 {
			t.Errorf("afterwards it is %v", got)
		}
	}
}
