package miosa_test

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// table is the product's table: hints (read-only, destructive), all arguments, and those
// that are required, in its order.
const table = `
sandbox_create|--|always_on cpu_count disk_size_mb env external_project_id external_user_id external_workspace_id idle_timeout_sec memory_mb metadata name persistent size template timeout_sec|
sandbox_get|R-|sandbox_id|
sandbox_list|R-|external_project_id external_user_id external_workspace_id page page_size status|
sandbox_stop|--|sandbox_id|
sandbox_destroy|-D|sandbox_id|
sandbox_resume|--|sandbox_id|
file_write|--|content encoding path sandbox_id|path content
file_read|R-|encoding path sandbox_id|path
file_list|R-|depth path recursive sandbox_id|
file_delete|-D|path sandbox_id|path
file_move|--|from sandbox_id to|from to
sandbox_exec|--|command cwd env sandbox_id timeout|command
sandbox_exec_stream|--|command cwd env sandbox_id timeout|command
sandbox_exec_background|--|command cwd env name sandbox_id timeout|command
sandbox_job_status|R-|job_id sandbox_id tail|job_id
preview_create|--|port sandbox_id visibility|port
preview_list|R-|sandbox_id|
preview_destroy|-D|preview_id sandbox_id|preview_id
snapshot_create|--|comment expiration_days expiration_seconds keep name retention_seconds sandbox_id|
snapshot_restore|-D|sandbox_id snapshot_id|snapshot_id
snapshot_list|R-|sandbox_id|
computer_create|--|external_project_id external_workspace_id name size template workspace_id|
computer_screenshot|R-|computer_id|
computer_action|--|action button clicks computer_id delay direction key text x y|action
computer_stop|--|computer_id|
`

func TestTools(t *testing.T) {
	d := miosa.New()
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
			Type       string                     `json:"type"`
			Required   []string                   `json:"required"`
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(data, &schema); err != nil {
			t.Fatal(err)
		}
		var args []string
		for name := range schema.Properties {
			args = append(args, name)
		}
		slices.Sort(args)
		a := def.Annotations
		hint := func(on bool, letter string) string {
			if on {
				return letter
			}
			return "-"
		}
		got.WriteString(strings.Join([]string{def.Name, hint(a.ReadOnlyHint, "R") + hint(*a.DestructiveHint, "D"), strings.Join(args, " "), strings.Join(schema.Required, " ")}, "|") + "\n")
		if schema.Type != "object" || def.Description == "" || def.OutputSchema != nil {
			t.Errorf("%s: the schema is no object, or there is an output schema or no description", def.Name)
		}
	}
	if diff := cmp.Diff(table, got.String()); diff != "" {
		t.Errorf("the tools differ from the product's (-want +got):\n%s", diff)
	}
}

// TestSchemas checks what the reference says about single arguments.
func TestSchemas(t *testing.T) {
	for tool, args := range map[string]map[string]string{
		"sandbox_create": {
			"timeout_sec": `"default":300`, "persistent": `"default":true`, "always_on": `"default":false`,
			"size": `"enum":["xs","small","medium","large","xl"]`, "env": `"additionalProperties":{"type":"string"}`,
		},
		"sandbox_list":        {"page": `"default":1`, "page_size": `"default":20`, "status": `"provisioning","running"`},
		"file_read":           {"encoding": `"default":"utf8"`},
		"file_write":          {"encoding": `"enum":["utf8","base64"]`},
		"file_list":           {"recursive": `"default":false`},
		"sandbox_exec":        {"timeout": `"maximum":300`},
		"sandbox_exec_stream": {"timeout": `"maximum":300`},
		"sandbox_job_status":  {"tail": `"default":200`},
		"preview_create":      {"port": `"maximum":65535`, "visibility": `"enum":["public","private"]`},
		"computer_create":     {"template": `"default":"ubuntu-desktop"`, "size": `"enum":["small","medium","large","xl"]`},
		"computer_action": {
			"action": `"enum":["click","type","key","scroll","double_click"]`, "button": `"default":"left"`,
			"direction": `"default":"down"`, "clicks": `"default":3`,
		},
	} {
		for _, def := range miosa.New().Tools() {
			if def.Def.Name != tool {
				continue
			}
			data, err := json.Marshal(def.Def.InputSchema)
			if err != nil {
				t.Fatal(err)
			}
			var schema struct {
				Properties map[string]json.RawMessage `json:"properties"`
			}
			if err := json.Unmarshal(data, &schema); err != nil {
				t.Fatal(err)
			}
			for arg, want := range args {
				if !strings.Contains(string(schema.Properties[arg]), want) {
					t.Errorf("%s: %s is %s, want %s in it", tool, arg, schema.Properties[arg], want)
				}
			}
		}
	}
}

func TestServer(t *testing.T) {
	s := miosa.New().Server("1.2")
	if s.Implementation.Name != "miosa-mcp" || s.Implementation.Version != "1.2" {
		t.Errorf("the server is %+v", s.Implementation)
	}
	first, _, found := strings.Cut(s.Instructions, "\n\n")
	if !found || len(first) > 512 || len(s.Instructions) > 1400 {
		t.Errorf("the first of the paragraphs has %d characters, all have %d", len(first), len(s.Instructions))
	}
}

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		env         map[string]string
		server, key string
	}{
		"none":        {nil, "", ""},
		"ours":        {map[string]string{"MIOSA_API_URL": "http://127.0.0.1:7070/", "MIOSA_API_KEY": "msk_u_1"}, "http://127.0.0.1:7070", "msk_u_1"},
		"of the SDK":  {map[string]string{"MIOSA_BASE_URL": "https://cove.example.com/api/v1/"}, "https://cove.example.com", ""},
		"both":        {map[string]string{"MIOSA_API_URL": "http://a", "MIOSA_BASE_URL": "http://b/api/v1"}, "http://a", ""},
		"the product": {map[string]string{"MIOSA_API_URL": "https://api.miosa.ai", "MIOSA_API_KEY": "msk_live_1"}, "", "msk_live_1"},
		"its SDK's":   {map[string]string{"MIOSA_BASE_URL": "https://API.Miosa.ai/api/v1"}, "", ""},
		"another":     {map[string]string{"MIOSA_API_URL": "https://notmiosa.ai"}, "https://notmiosa.ai", ""},
		"no address":  {map[string]string{"MIOSA_API_URL": "http://%zz"}, "http://%zz", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, key := miosa.New().Environment(func(n string) string { return tt.env[n] })
			if server != tt.server || key != tt.key {
				t.Errorf("%q, %q; want %q, %q", server, key, tt.server, tt.key)
			}
		})
	}
}

func TestLogLevel(t *testing.T) {
	for value, want := range map[string]slog.Level{
		"": slog.LevelWarn, "warn": slog.LevelWarn, "nonsense": slog.LevelWarn,
		"debug": slog.LevelDebug, "INFO": slog.LevelInfo, "error": slog.LevelError,
	} {
		if got := miosa.New().LogLevel(func(string) string { return value }); got != want {
			t.Errorf("%q is %v, want %v", value, got, want)
		}
	}
}
