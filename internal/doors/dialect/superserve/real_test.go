package superserve_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func newSandbox(t *testing.T, s *mcp.ClientSession, args string) string {
	t.Helper()
	id, _ := dialecttest.Ask(t, s, "sandbox_create", args)["id"].(string)
	return id
}

// TestRealPreviewIsPublic checks that a preview is open to everybody at once, as in the
// product.
func TestRealPreviewIsPublic(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	s := dialecttest.Connect(t, dialecttest.HTTP(d, superserve.Name)(), revision)
	id := newSandbox(t, s, `{}`)
	dialecttest.Ask(t, s, "sandbox_exec", fmt.Sprintf(`{"sandbox_id":%q,"command":"mkdir /srv/www && cd /srv/www && echo hello > index.html && python3 -m http.server 8000 >/dev/null 2>&1 & for i in $(seq 100); do python3 -c 'import urllib.request; urllib.request.urlopen(\"http://127.0.0.1:8000/\")' 2>/dev/null && break; sleep 0.1; done"}`, id))
	link, _ := dialecttest.Ask(t, s, "sandbox_preview_url", fmt.Sprintf(`{"sandbox_id":%q,"port":8000}`, id))["url"].(string)
	if u, err := url.Parse(link); err != nil || !strings.HasPrefix(u.Host, "8000-"+id+".") {
		t.Fatalf("the URL is %s, %v", link, err)
	}
	if status, body, err := dialecttest.Visit(t, d, link); err != nil || body != "hello\n" {
		t.Errorf("%v, %d, %q", err, status, body)
	}
}

// TestRealEgress checks that deny_out and internal addresses are blocked, that attempts are
// in the log, and that reading the log resumes no sandbox.
func TestRealEgress(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	s := dialecttest.Connect(t, dialecttest.Stdio(d, superserve.Name)(), revision)
	id := newSandbox(t, s, `{"deny_out":["203.0.113.0/24"],"allow_out":["10.0.0.0/8"]}`)
	try := func(address string) {
		dialecttest.Ask(t, s, "sandbox_exec", fmt.Sprintf(`{"sandbox_id":%q,"command":"python3 -c 'import socket; socket.create_connection((\"%s\", 80), 1)'; true"}`, id, address))
	}
	log := func(args string) []any {
		events, _ := dialecttest.Ask(t, s, "sandbox_network_log", fmt.Sprintf(`{"sandbox_id":%q%s}`, id, args))["events"].([]any)
		return events
	}
	try("203.0.113.1")
	try("10.1.2.3")
	dialecttest.Ask(t, s, "sandbox_pause", fmt.Sprintf(`{"sandbox_id":%q}`, id))
	events := log("")
	if len(events) != 2 {
		t.Fatalf("the log has %v", events)
	}
	for i, want := range []map[string]any{
		{"kind": "connection", "dstIp": "10.1.2.3", "dstPort": 80.0, "verdict": "blocked", "matchRule": "internal-ip"},
		{"kind": "connection", "dstIp": "203.0.113.1", "dstPort": 80.0, "verdict": "blocked", "matchRule": "cidr"},
	} {
		got, _ := events[i].(map[string]any)
		for key, v := range want {
			if got[key] != v {
				t.Errorf("row %d: %s is %v, want %v", i, key, got[key], v)
			}
		}
	}
	if got := log(`,"verdict":"allowed"`); len(got) != 0 {
		t.Errorf("allowed are %v", got)
	}
	if status := dialecttest.Ask(t, s, "sandbox_info", fmt.Sprintf(`{"sandbox_id":%q}`, id))["status"]; status != "paused" {
		t.Errorf("the sandbox is %v", status)
	}
}

// TestRealSecretPlaceholders checks that a bound secret is a placeholder inside, and that its
// value is in no result.
func TestRealSecretPlaceholders(t *testing.T) {
	needs.GVisor(t)
	const value = "sk-proj-the-real-value"
	d := covetest.Borrow(t, dialecttest.Ordinary())
	if _, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{Name: "openai", Provider: "openai", Value: sandbox.NewSecretValue(value)}); err != nil {
		t.Fatal(err)
	}
	s := dialecttest.Connect(t, dialecttest.Stdio(d, superserve.Name)(), revision)
	id := newSandbox(t, s, `{"secrets":{"FIRST":"openai"}}`)
	var seen []string
	say := func(tool, args string) map[string]any {
		out := dialecttest.Ask(t, s, tool, args)
		seen = append(seen, fmt.Sprint(out))
		return out
	}
	say("secret_list", `{}`)
	say("sandbox_attach_secret", fmt.Sprintf(`{"sandbox_id":%q,"env_key":"SECOND","secret_name":"openai"}`, id))
	out, _ := say("sandbox_exec", fmt.Sprintf(`{"sandbox_id":%q,"command":"echo $FIRST; echo $SECOND"}`, id))["stdout"].(string)
	if tokens := strings.Fields(out); len(tokens) != 2 || !strings.HasPrefix(tokens[0], "sk-proj-") || tokens[0] == tokens[1] {
		t.Errorf("inside are %q", out)
	}
	if bound, _ := say("sandbox_info", fmt.Sprintf(`{"sandbox_id":%q}`, id))["secrets"].([]any); len(bound) != 2 {
		t.Errorf("bound are %v", bound)
	}
	for range 2 {
		say("sandbox_detach_secret", fmt.Sprintf(`{"sandbox_id":%q,"env_key":"FIRST"}`, id))
	}
	if err := d.Client.DeleteSecret(t.Context(), "openai"); err != nil {
		t.Fatal(err)
	}
	bound, _ := say("sandbox_info", fmt.Sprintf(`{"sandbox_id":%q}`, id))["secrets"].([]any)
	if len(bound) != 1 || bound[0].(map[string]any)["revoked"] != true {
		t.Errorf("after its end, bound are %v", bound)
	}
	if all := strings.Join(seen, "\n"); strings.Contains(all, value) {
		t.Error("the value is in a result")
	}
}

// TestRealWithoutSession calls a tool with a client's first request.
func TestRealWithoutSession(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	res, answer := dialecttest.FirstRequest(t, d, superserve.Name, "sandbox_list", `{}`)
	if res.StatusCode != http.StatusOK || !strings.Contains(answer, "(no sandboxes)") || res.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%s, %s", res.Status, answer)
	}
}

// TestRealConfiguredByEnvironment uses a client's configuration for the product's own
// server, pointed at ours.
func TestRealConfiguredByEnvironment(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	cmd := dialecttest.Command(d, superserve.Name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SUPERSERVE_BASE_URL=" + d.URL + "/", "SUPERSERVE_API_KEY=ss_live_any"}
	s := dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd}, revision)
	id := newSandbox(t, s, `{}`)
	if _, err := d.Client.Get(t.Context(), id); err != nil {
		t.Error(err)
	}
}
