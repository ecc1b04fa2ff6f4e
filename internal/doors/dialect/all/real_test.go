package all_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// ownPort finds where a daemon says that it speaks microsandbox.
var ownPort = regexp.MustCompile(`listening on (http://\S+) \(microsandbox\)`)

// client is a client of one dialect.
type client struct {
	t    *testing.T
	name string
	mcp  *mcp.ClientSession
}

// call calls a tool that must succeed and returns its text.
func (c *client) call(tool, args string) string {
	c.t.Helper()
	res, err := c.mcp.CallTool(c.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		c.t.Errorf("%s: %s %s: %v", c.name, tool, args, err)
		return ""
	}
	var text strings.Builder
	for _, block := range res.Content {
		if b, ok := block.(*mcp.TextContent); ok {
			text.WriteString(b.Text)
		}
	}
	if res.IsError || failedText([]byte(text.String())) {
		c.t.Errorf("%s: %s %s: %s", c.name, tool, args, text.String())
	}
	return text.String()
}

// The clients of all products work with one daemon, and with one sandbox of it.
func TestRealSandbox(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Start(t, dialecttest.Ordinary("--dialect-port", "microsandbox=0", "--webhooks-allow-private"))
	clients := map[string]*client{}
	for _, dialect := range all.Dialects() {
		endpoint := d.URL + "/mcp/" + dialect.Name()
		if own := ownPort.FindStringSubmatch(d.Output()); dialect.Name() == "microsandbox" && own != nil {
			endpoint = own[1] + "/mcp"
		}
		clients[dialect.Name()] = &client{t, dialect.Name(), dialecttest.Connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "2025-06-18")}
	}
	s, err := d.Client.Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("together", func(t *testing.T) { testTogether(t, clients, s.ID) })
	t.Run("rest", func(t *testing.T) { testRest(t, d, clients, s.ID) })
}

// shells are how a client of each dialect runs a line in the shell of a sandbox:
// the tool, and its arguments, in which %[1]q is the sandbox and %[2]q the line.
var shells = map[string][2]string{
	"native":          {"sandbox_exec", `{"sandbox": %[1]q, "shell": %[2]q}`},
	"superserve":      {"sandbox_exec", `{"sandbox_id": %[1]q, "command": %[2]q}`},
	"miosa":           {"sandbox_exec", `{"sandbox_id": %[1]q, "command": %[2]q}`},
	"microsandbox":    {"sandbox_run_command", `{"sandbox": %[1]q, "namespace": "default", "command": "sh", "args": ["-c", %[2]q]}`},
	"podflare":        {"run_bash", `{"sandbox_id": %[1]q, "code": %[2]q}`},
	"podflare@hosted": {"run_bash", `{"sandbox_id": %[1]q, "code": %[2]q}`},
	"hopx":            {"run_command", `{"vm_url": %[1]q, "command": %[2]q}`},
	"hopx@0.2":        {"run_command", `{"sandbox_id": %[1]q, "command": %[2]q}`},
}

// pythons are how they run code, likewise. Superserve's and MIOSA's clients have
// no such tool.
var pythons = map[string][2]string{
	"native":          {"run_code", `{"sandbox": %[1]q, "language": "python", "code": %[2]q}`},
	"microsandbox":    {"sandbox_run_code", `{"sandbox": %[1]q, "namespace": "default", "language": "python", "code": %[2]q}`},
	"podflare":        {"run_python", `{"sandbox_id": %[1]q, "code": %[2]q}`},
	"podflare@hosted": {"run_python", `{"sandbox_id": %[1]q, "code": %[2]q}`},
	"hopx":            {"execute_code", `{"vm_url": %[1]q, "language": "python", "code": %[2]q}`},
	"hopx@0.2":        {"execute_code_persistent", `{"sandbox_id": %[1]q, "language": "python", "code": %[2]q}`},
}

// testTogether uses one sandbox through all dialects at once, by its id: each
// sees the files of all, and the interpreter's variables.
func testTogether(t *testing.T, clients map[string]*client, id string) {
	var wg sync.WaitGroup
	for name, c := range clients {
		how, ok := shells[name]
		if !ok {
			t.Errorf("%s is not in this test", name)
			continue
		}
		wg.Go(func() {
			for range 2 {
				c.call(how[0], fmt.Sprintf(how[1], id, "echo from "+name+" >> /workspace/together"))
			}
		})
		if code, ok := pythons[name]; ok {
			wg.Go(func() {
				c.call(code[0], fmt.Sprintf(code[1], id, "seen = sorted(set(globals().get('seen', [])) | {'"+name+"'})"))
			})
		}
	}
	wg.Wait()
	for name, c := range clients {
		text := c.call(shells[name][0], fmt.Sprintf(shells[name][1], id, "sort /workspace/together | uniq -c | tr -s ' '"))
		for other := range clients {
			if !strings.Contains(text, "2 from "+other) {
				t.Errorf("%s does not see what %s has written: %s", name, other, text)
			}
		}
		code, ok := pythons[name]
		if !ok {
			continue
		}
		text = c.call(code[0], fmt.Sprintf(code[1], id, "print(seen)"))
		for other := range pythons {
			if !strings.Contains(text, other) {
				t.Errorf("%s does not see what %s has in the interpreter: %s", name, other, text)
			}
		}
	}
}

// testRest makes the calls that no conversation of a dialect's own shows. All must
// succeed; [TestParity] counts on that.
func testRest(t *testing.T, d *covetest.Daemon, clients map[string]*client, id string) {
	if _, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{Name: "openai", Provider: "openai", Value: sandbox.NewSecretValue("sk-proj-x")}); err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	defer hook.Close()
	files, err := filepath.Glob("testdata/rest/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		process := ""
		for _, f := range txtar.Parse(data).Files {
			args := strings.NewReplacer("<sandbox>", id, "<hook>", hook.URL, "<process>", process).Replace(string(f.Data))
			text := clients[name].call(strings.TrimPrefix(f.Name, "call "), args)
			var v struct {
				Process string `json:"process_id"`
			}
			if json.Unmarshal([]byte(text), &v) == nil && v.Process != "" {
				process = v.Process
			}
		}
	}
	select {
	case <-called:
	case <-time.After(time.Minute):
		t.Error("the callback of code that runs by itself does not come")
	}
}
