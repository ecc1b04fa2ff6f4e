package superserve_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// table is the product's table: title, hints (read-only, destructive, idempotent) and
// the required arguments, in its order.
const table = `
sandbox_create|Create a sandbox|---|
sandbox_template_list|List templates|R-I|
sandbox_template_create|Build a custom template|---|name from
sandbox_list|List sandboxes|R-I|
sandbox_info|Get sandbox details|R-I|sandbox_id
sandbox_pause|Pause a sandbox|--I|sandbox_id
sandbox_resume|Resume a sandbox|--I|sandbox_id
sandbox_kill|Delete a sandbox|-DI|sandbox_id
sandbox_update|Update a sandbox|-D-|sandbox_id
sandbox_preview_url|Get a port's public URL|R-I|sandbox_id port
sandbox_network_log|Audit a sandbox's egress|R-I|sandbox_id
sandbox_exec|Run a command in a sandbox|---|sandbox_id command
sandbox_files_read|Read a file from a sandbox|R-I|sandbox_id path
sandbox_files_write|Write a file to a sandbox|--I|sandbox_id path content
sandbox_files_list|List a directory in a sandbox|R-I|sandbox_id path
sandbox_files_download_dir|Download a directory as a zip|R-I|sandbox_id path
secret_list|List team secrets|R-I|
sandbox_attach_secret|Bind a secret to a sandbox|--I|sandbox_id env_key secret_name
sandbox_detach_secret|Unbind a secret from a sandbox|--I|sandbox_id env_key
`

func TestTools(t *testing.T) {
	d := superserve.New()
	dialecttest.Snapshot(t, d, "testdata/tools")
	var got strings.Builder
	got.WriteByte('\n')
	for _, tool := range d.Tools() {
		def := tool.Def
		data, err := json.Marshal(def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var schema struct {
			Required             []string `json:"required"`
			AdditionalProperties *bool    `json:"additionalProperties"`
		}
		if err := json.Unmarshal(data, &schema); err != nil {
			t.Fatal(err)
		}
		a := def.Annotations
		hint := func(on bool, letter string) string {
			if on {
				return letter
			}
			return "-"
		}
		got.WriteString(strings.Join([]string{def.Name, def.Title, hint(a.ReadOnlyHint, "R") + hint(*a.DestructiveHint, "D") + hint(a.IdempotentHint, "I"), strings.Join(schema.Required, " ")}, "|") + "\n")
		if a.OpenWorldHint == nil || !*a.OpenWorldHint {
			t.Errorf("%s: openWorldHint is not true", def.Name)
		}
		if strings.Contains(string(data), `"$ref"`) || def.OutputSchema != nil || def.Description == "" {
			t.Errorf("%s: has $ref or an output schema, or lacks a description", def.Name)
		}
		if closed := schema.AdditionalProperties != nil && !*schema.AdditionalProperties; closed == (def.Name == "secret_list") {
			t.Errorf("%s: additionalProperties false is %t", def.Name, closed)
		}
	}
	if diff := cmp.Diff(table, got.String()); diff != "" {
		t.Errorf("the tools differ from the product's (-want +got):\n%s", diff)
	}
}

// arguments are the product's arguments, as documented.
const arguments = `
sandbox_create: allow_out string[], auto_delete_seconds integer >=0 <=2592000, deny_out string[], env_vars map, from_snapshot string, from_template string, metadata map, name string, secrets map, timeout_seconds integer >0 <=604800
sandbox_template_list: name_prefix string
sandbox_template_create: disk_mib integer >0, from string!, memory_mib integer >0, name string!, ready_cmd string, run_steps string[], start_cmd string, vcpu integer >0
sandbox_list: metadata map
sandbox_info: sandbox_id string!
sandbox_pause: sandbox_id string!
sandbox_resume: sandbox_id string!
sandbox_kill: sandbox_id string!
sandbox_update: allow_out string[], auto_delete_seconds integer|null >=0 <=2592000, deny_out string[], metadata map, sandbox_id string!, timeout_seconds integer|null >=1 <=604800
sandbox_preview_url: port integer! >=1 <=65535, sandbox_id string!
sandbox_network_log: limit integer >0 =50, sandbox_id string!, verdict string [allowed blocked failed]
sandbox_exec: command string!, cwd string, env map, sandbox_id string!, timeout_ms integer >0 =60000
sandbox_files_read: encoding string [text base64] ="text", path string!, sandbox_id string!
sandbox_files_write: content string!, encoding string [text base64] ="text", path string!, sandbox_id string!
sandbox_files_list: path string!, sandbox_id string!
sandbox_files_download_dir: path string!, sandbox_id string!
secret_list:
sandbox_attach_secret: env_key string!, sandbox_id string!, secret_name string!
sandbox_detach_secret: env_key string!, sandbox_id string!
`

func TestArguments(t *testing.T) {
	if diff := cmp.Diff(arguments, "\n"+dialecttest.Arguments(t, superserve.New())); diff != "" {
		t.Errorf("the arguments differ from the product's (-want +got):\n%s", diff)
	}
}

// TestReadOnlySelection checks that no port is published if only read-only tools are
// served.
func TestReadOnlySelection(t *testing.T) {
	tools, err := dialect.Select(superserve.New(), dialect.Selection{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if tool.Def.Name == "sandbox_preview_url" {
			t.Error("sandbox_preview_url is among the read-only tools")
		}
	}
}

func TestInstructions(t *testing.T) {
	text := superserve.New().Server("1").Instructions
	first, _, found := strings.Cut(text, "\n\n")
	if !found || len(first) > 512 || len(text) > 1400 {
		t.Errorf("the first of the paragraphs has %d characters, all have %d", len(first), len(text))
	}
	for _, want := range []string{"sandbox_create", "sandbox_list", "sandbox_id", "1 MiB", "head -c"} {
		if !strings.Contains(first, want) {
			t.Errorf("the first paragraph lacks %s", want)
		}
	}
	if !strings.Contains(text, "secrets") {
		t.Error("the instructions do not mention secrets")
	}
}

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		env         map[string]string
		server, key string
	}{
		"none":        {nil, "", ""},
		"ours":        {map[string]string{"SUPERSERVE_BASE_URL": "http://127.0.0.1:7070/", "SUPERSERVE_API_KEY": "k"}, "http://127.0.0.1:7070", "k"},
		"the product": {map[string]string{"SUPERSERVE_BASE_URL": "https://api-usw.Superserve.ai", "SUPERSERVE_API_KEY": "ss_live_1"}, "", "ss_live_1"},
		"another":     {map[string]string{"SUPERSERVE_BASE_URL": "https://notsuperserve.ai"}, "https://notsuperserve.ai", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, key := superserve.New().Environment(func(n string) string { return tt.env[n] })
			if server != tt.server || key != tt.key {
				t.Errorf("%q, %q; want %q, %q", server, key, tt.server, tt.key)
			}
		})
	}
}
