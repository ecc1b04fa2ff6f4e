package miosa

import (
	"encoding/json"
	"testing"
)

// TestIDs checks that an id names the tool's own subject or, if that is already named, the
// sandbox, but never both.
func TestIDs(t *testing.T) {
	defs := map[string]*definition{}
	for _, def := range definitions() {
		defs[def.Name] = def
	}
	aliases := map[string][]alias{
		"sandbox_job_status": jobAliases, "preview_destroy": previewAliases, "snapshot_restore": restoreAliases,
	}
	for _, tt := range []struct{ tool, args, want string }{
		{"sandbox_get", `{"id":"sbx-1"}`, `{"sandbox_id":"sbx-1"}`},
		{"sandbox_get", `{"id":"sbx-1","sandboxId":"sbx-2"}`, `{"sandbox_id":"sbx-2"}`},
		{"computer_stop", `{"id":"sbx-1"}`, `{"computer_id":"sbx-1"}`},
		{"preview_list", `{"id":"sbx-1"}`, `{"sandbox_id":"sbx-1"}`},
		{"sandbox_job_status", `{"id":"job-1"}`, `{"job_id":"job-1"}`},
		{"sandbox_job_status", `{"id":"job-1","sandbox_id":"sbx-1"}`, `{"job_id":"job-1","sandbox_id":"sbx-1"}`},
		{"sandbox_job_status", `{"id":"sbx-1","jobId":"job-1"}`, `{"job_id":"job-1","sandbox_id":"sbx-1"}`},
		{"preview_destroy", `{"id":"prv-1"}`, `{"preview_id":"prv-1"}`},
		{"preview_destroy", `{"id":"prv-1","port":80,"sandbox_id":"sbx-1"}`, `{"port":80,"preview_id":"prv-1","sandbox_id":"sbx-1"}`},
		{"preview_destroy", `{"id":"sbx-1","preview_id":"prv-1"}`, `{"preview_id":"prv-1","sandbox_id":"sbx-1"}`},
		{"snapshot_restore", `{"id":"snap-1"}`, `{"snapshot_id":"snap-1"}`},
		{"snapshot_restore", `{"id":"snap-1","sandboxId":"sbx-1"}`, `{"sandbox_id":"sbx-1","snapshot_id":"snap-1"}`},
		{"snapshot_restore", `{"id":"sbx-1","name":"before"}`, `{"sandbox_id":"sbx-1","snapshot_id":"before"}`},
		{"snapshot_restore", `{"id":"sbx-1","snapshot_id":"snap-1"}`, `{"sandbox_id":"sbx-1","snapshot_id":"snap-1"}`},
		{"snapshot_restore", `{"id":null,"snapshot_id":"snap-1"}`, `{"snapshot_id":"snap-1"}`},
	} {
		got, err := argumentsOf(defs[tt.tool], aliases[tt.tool]).plain(json.RawMessage(tt.args))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s %s: got %s, %v, want %s", tt.tool, tt.args, got, err, tt.want)
		}
	}
}
