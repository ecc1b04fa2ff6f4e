package miosa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// patience is how long something that happens soon may take on a busy machine.
const patience = 90 * time.Second

// TestRealLocal tests the tools on real sandboxes, over standard input and output, for the
// daemon's user. Only "make soak" has all conversations twice: TestRealRemote has them, too.
func TestRealLocal(t *testing.T) {
	t.Parallel()
	needs.GVisor(t)
	w := localHarness(t)
	t.Run("errors", func(t *testing.T) { converse(t, w, "testdata/memory") })
	if needs.Soak() {
		t.Run("conversations", func(t *testing.T) { converse(t, w, "testdata/real") })
	}
	t.Run("next.js", func(t *testing.T) { testNextJS(t, w) })
	t.Run("jobs", func(t *testing.T) { testJobs(t, w) })
	t.Run("computer", func(t *testing.T) { testComputer(t, w) })
	t.Run("together with others", func(t *testing.T) { testTogether(t, w) })
	t.Run("environment", func(t *testing.T) { testEnvironment(t, w) })
}

// TestRealRemote does the same over HTTP, for an ordinary user's daemon, with a key made as
// the product recommends.
func TestRealRemote(t *testing.T) {
	t.Parallel()
	needs.GVisor(t)
	w := remoteHarness(t)
	t.Run("conversations", func(t *testing.T) { converse(t, w, "testdata/real") })
	t.Run("scopes", func(t *testing.T) { testScopes(t, w) })
	t.Run("sessions", func(t *testing.T) { testSessions(t, w) })
	t.Run("stream", func(t *testing.T) { testStream(t, w) })
	t.Run("cancel", func(t *testing.T) { testCancel(t, w) })
	t.Run("environment", func(t *testing.T) { testRemoteEnvironment(t, w) })
}

// refused calls a tool that must fail and returns its text.
func refused(t *testing.T, s *mcp.ClientSession, tool, args string) string {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil || !res.IsError {
		t.Fatalf("%s %.200s: %v, %+v; want an error", tool, args, err, res)
	}
	return res.Content[0].(*mcp.TextContent).Text
}

func args(t *testing.T, v map[string]any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// get reads a URL of a preview.
func get(t *testing.T, d *covetest.Daemon, link string) (status int, body string) {
	t.Helper()
	status, body, err := dialecttest.Visit(t, d, link)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

// testNextJS follows the product's own examples: a Next.js sandbox and its dependencies, a
// component and its preview, and a build that fails and is repaired. Here next is a small
// program with the same commands, since there is no Internet.
func testNextJS(t *testing.T, w *harness) {
	s := w.hasty(t)
	box := dialecttest.Ask(t, s, "sandbox_create", `{ "template": "nextjs" }`)
	if box["template"] != "nextjs" || box["status"] != "running" {
		t.Fatalf("the sandbox is %v", box)
	}
	const next = `#!/usr/bin/env node
const fs = require('fs'), http = require('http')
const page = () => fs.readFileSync('app/page.tsx', 'utf8')
if (process.argv[2] === 'build') {
  if (/: number = "/.test(page())) {
    console.error('app/page.tsx: Type error: Type "string" is not assignable to type "number".')
    process.exit(1)
  }
  console.log('Compiled successfully')
} else {
  http.createServer((q, r) => r.end('<main>' + page() + '</main>')).listen(3000, () => console.log('ready on http://localhost:3000'))
}
`
	for path, content := range map[string]string{
		"/workspace/package.json":      `{"name":"site","scripts":{"dev":"next dev","build":"next build"},"dependencies":{"next":"file:./next"}}`,
		"/workspace/next/package.json": `{"name":"next","version":"0.0.1","bin":{"next":"next.js"}}`,
		"/workspace/next/next.js":      next,
		"/workspace/.npmrc":            "offline=true\naudit=false\nfund=false\nupdate-notifier=false\n",
	} {
		dialecttest.Ask(t, s, "file_write", args(t, map[string]any{"path": path, "content": content}))
	}
	dialecttest.Ask(t, s, "sandbox_exec", `{"command":"chmod +x next/next.js"}`)
	if out := await(t, s, dialecttest.Ask(t, s, "sandbox_exec", `{ "command": "npm install" }`)); out["exit_code"] != 0.0 {
		t.Fatalf("npm install: %v", out)
	}

	dialecttest.Ask(t, s, "file_write", args(t, map[string]any{"path": "/workspace/app/page.tsx", "content": `export const n: number = "one"`}))
	if out := await(t, s, dialecttest.Ask(t, s, "sandbox_exec", `{ "command": "npm run build" }`)); out["exit_code"] != 1.0 || !strings.Contains(out["stderr"].(string), "app/page.tsx: Type error") {
		t.Fatalf("the build that must fail: %v", out)
	}
	code, _ := dialecttest.Ask(t, s, "file_read", `{"path":"/workspace/app/page.tsx"}`)["content"].(string)
	dialecttest.Ask(t, s, "file_write", args(t, map[string]any{"path": "/workspace/app/page.tsx", "content": strings.Replace(code, `"one"`, "1", 1)}))
	if out := await(t, s, dialecttest.Ask(t, s, "sandbox_exec", `{ "command": "npm run build" }`)); out["exit_code"] != 0.0 || !strings.Contains(out["stdout"].(string), "Compiled") {
		t.Fatalf("the build that is mended: %v", out)
	}

	// A server never ends, but the call does.
	dev := dialecttest.Ask(t, s, "sandbox_exec", `{ "command": "npm run dev" }`)
	if dev["exit_code"] != nil || dev["status"] != "running" || dev["job_id"] == "" {
		t.Fatalf("npm run dev: %v", dev)
	}
	link, _ := dialecttest.Ask(t, s, "preview_create", `{ "port": 3000 }`)["url"].(string)
	var body string
	if !covetest.Eventually(patience, func() bool {
		_, body = get(t, w.Daemon, link)
		return strings.Contains(body, "export const n: number = 1")
	}) {
		t.Errorf("the preview %s shows %q", link, body)
	}

	// A stopped sandbox has its server when its preview is visited.
	dialecttest.Ask(t, s, "sandbox_stop", `{}`)
	if status, body := get(t, w.Daemon, link); status != http.StatusOK || !strings.Contains(body, "number = 1") {
		t.Errorf("after a stop the preview answers %d, %q", status, body)
	}
	if got := dialecttest.Ask(t, s, "sandbox_get", `{}`); got["status"] != "running" || got["preview_url"] != link {
		t.Errorf("after the visit the sandbox is %v", got)
	}
	dialecttest.Ask(t, s, "sandbox_destroy", `{}`)
}

// await returns the result of a command that may have been detached as a job.
func await(t *testing.T, s *mcp.ClientSession, out map[string]any) map[string]any {
	t.Helper()
	id, ok := out["job_id"]
	for deadline := time.Now().Add(patience); ok && out["status"] == "running"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("job %v does not end: %v", id, out)
		}
		out = dialecttest.Ask(t, s, "sandbox_job_status", args(t, map[string]any{"job_id": id}))
	}
	return out
}

func testJobs(t *testing.T, w *harness) {
	s := w.open(t)
	box := dialecttest.Ask(t, s, "sandbox_create", `{}`)
	lines := await(t, s, dialecttest.Ask(t, s, "sandbox_exec_background", `{"command":"for i in $(seq 300); do echo $i; done; echo error >&2; exit 3"}`))
	job := args(t, map[string]any{"job_id": lines["job_id"], "tail": 2})
	if last := strings.Fields(lines["stdout"].(string)); len(last) != 200 || last[0] != "101" || lines["stderr"] != "error\n" {
		t.Errorf("the last 200 lines are %v", lines)
	}
	if lines["status"] != "failed" || lines["exit_code"] != 3.0 || lines["finished_at"] == nil || lines["stdout_bytes"] != 1092.0 {
		t.Errorf("the job is %v", lines)
	}
	if out := dialecttest.Ask(t, s, "sandbox_job_status", job); out["stdout"] != "299\n300\n" {
		t.Errorf("the last two lines are %v", out)
	}
	if out := await(t, s, dialecttest.Ask(t, s, "sandbox_exec_background", `{"command":"echo $A","env":{"A":"ü"},"name":"greeter"}`)); out["status"] != "succeeded" || out["stdout"] != "ü\n" || out["name"] != "greeter" {
		t.Errorf("the job is %v", out)
	}
	if out := await(t, s, dialecttest.Ask(t, s, "sandbox_exec_background", `{"command":"sleep 1000","timeout":1}`)); out["status"] != "failed" || out["exit_code"] != 124.0 {
		t.Errorf("the job whose time is over is %v", out)
	}
	// Another client ends one.
	sleeper := dialecttest.Ask(t, s, "sandbox_exec_background", `{"command":"sleep 1000"}`)
	if _, err := w.Client.SignalJob(t.Context(), box["id"].(string), sleeper["job_id"].(string), "TERM", 0); err != nil {
		t.Fatal(err)
	}
	if out := await(t, s, sleeper); out["status"] != "canceled" || out["exit_code"] != 143.0 {
		t.Errorf("the job that was ended is %v", out)
	}
	// A later session names the sandbox.
	later := w.open(t)
	refused(t, later, "sandbox_job_status", job)
	if out := dialecttest.Ask(t, later, "sandbox_job_status", args(t, map[string]any{"job_id": lines["job_id"], "sandbox_id": box["id"]})); out["status"] != "failed" || !strings.HasPrefix(out["command"].(string), "for i in") {
		t.Errorf("in a later session the job is %v", out)
	}
	// Jobs live through a stop, and end with their sandbox.
	on := dialecttest.Ask(t, s, "sandbox_exec_background", `{"command":"sleep 1000"}`)
	dialecttest.Ask(t, s, "sandbox_stop", `{}`)
	if out := dialecttest.Ask(t, s, "sandbox_job_status", args(t, map[string]any{"job_id": on["job_id"]})); out["status"] != "running" || out["exit_code"] != nil {
		t.Errorf("after a stop the job is %v", out)
	}
	dialecttest.Ask(t, s, "sandbox_destroy", `{}`)
	if out := dialecttest.Ask(t, s, "sandbox_job_status", args(t, map[string]any{"job_id": on["job_id"]})); out["status"] != "canceled" || out["exit_code"] != nil {
		t.Errorf("after the end of its sandbox the job is %v", out)
	}
}

// testTogether uses one sandbox through this dialect, others and the daemon's own client at
// the same time.
func testTogether(t *testing.T, w *harness) {
	s := w.open(t)
	id, _ := dialecttest.Ask(t, s, "sandbox_create", `{"name":"shared"}`)["id"].(string)
	dial := func(name string) *mcp.ClientSession {
		return dialecttest.Connect(t, dialecttest.Stdio(w.Daemon, name)(), revision)
	}
	native, superserve := dial("native"), dial("superserve")
	const each = 15
	var wg sync.WaitGroup
	errs := make(chan error, 8*each)
	do := func(c *mcp.ClientSession, tool string, in map[string]any) {
		data, _ := json.Marshal(in)
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(data)})
		if err == nil && res.IsError {
			err = fmt.Errorf("%s: %+v", tool, res.Content[0])
		}
		if err != nil {
			errs <- err
		}
	}
	for i := range each {
		line := func(who string) string { return fmt.Sprintf("echo %s-%d >> /workspace/log", who, i) }
		for _, f := range []func(){
			func() { do(s, "sandbox_exec", map[string]any{"command": line("miosa")}) },
			func() {
				do(s, "sandbox_exec_stream", map[string]any{"sandbox_id": "shared", "command": line("stream"), "timeout": 300})
			},
			func() { do(native, "sandbox_exec", map[string]any{"sandbox": id, "shell": line("native")}) },
			func() {
				do(superserve, "sandbox_exec", map[string]any{"sandbox_id": id, "command": line("superserve"), "timeout_ms": 300000})
			},
			func() {
				do(s, "file_write", map[string]any{"path": fmt.Sprintf("/workspace/f/%d", i), "content": "x"})
			},
		} {
			wg.Go(f)
		}
	}
	wg.Go(func() { do(s, "snapshot_create", map[string]any{"name": "meanwhile"}) })
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	out := dialecttest.Ask(t, s, "sandbox_exec", `{"command":"sort -u log | wc -l; ls f | wc -l"}`)
	if got := strings.Fields(out["stdout"].(string)); len(got) != 2 || got[0] != fmt.Sprint(4*each) || got[1] != fmt.Sprint(each) {
		t.Errorf("of %d lines and %d files there are %v", 4*each, each, out)
	}
	// Each dialect sees what the other makes.
	res := dialecttest.Ask(t, native, "file_write", args(t, map[string]any{"sandbox": id, "path": "/workspace/from-native", "content": "hello"}))
	if got := dialecttest.Ask(t, s, "file_read", `{"path":"/workspace/from-native"}`); got["content"] != "hello" {
		t.Errorf("%v was written, %v is read", res, got)
	}
	other := dialecttest.Ask(t, native, "sandbox_create", `{"name":"natively"}`)
	if got := dialecttest.Ask(t, s, "sandbox_get", `{"sandbox_id":"natively"}`); got["id"] != other["id"] || got["persistent"] != false {
		t.Errorf("what native has made is %v", got)
	}
	dialecttest.Ask(t, native, "sandbox_kill", args(t, map[string]any{"sandbox": id}))
	if text := refused(t, s, "sandbox_exec", `{"command":"true"}`); !strings.Contains(text, "404 NOT_FOUND") || !strings.Contains(text, id) {
		t.Errorf("after its end elsewhere: %s", text)
	}
	if text := refused(t, s, "sandbox_exec", `{"command":"true"}`); !strings.Contains(text, "no active sandbox") {
		t.Errorf("and then: %s", text)
	}
}

// testEnvironment checks that a client's variables have the same meaning as for the
// product.
func testEnvironment(t *testing.T, w *harness) {
	open := func(env ...string) (*mcp.ClientSession, *strings.Builder) {
		cmd := w.Command(context.Background(), "mcp", "--dialect", miosa.Name)
		var log strings.Builder
		cmd.Env, cmd.Stderr = append(cmd.Env, env...), &log
		return dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, revision), &log
	}
	s, _ := open("MIOSA_DEFAULT_TEMPLATE=no-such-template")
	if text := refused(t, s, "sandbox_create", `{}`); !strings.Contains(text, "unknown template no-such-template") {
		t.Errorf("a default template that is not there: %s", text)
	}
	s, _ = open("MIOSA_DEFAULT_TEMPLATE=static")
	box := dialecttest.Ask(t, s, "sandbox_create", `{}`)
	if box["template"] != "static" {
		t.Errorf("of the default template is %v", box)
	}
	// The time limits of a request, and of a command without its own.
	s, _ = open("MIOSA_TIMEOUT_MS=1", "MIOSA_LOG_LEVEL=error")
	id := args(t, map[string]any{"sandbox_id": box["id"]})
	if text := refused(t, s, "sandbox_stop", id); !strings.Contains(text, "MIOSA_TIMEOUT_MS, 1 ms") || !strings.Contains(text, "504") {
		t.Errorf("a request that takes too long: %s", text)
	}
	long := dialecttest.Ask(t, s, "sandbox_exec", args(t, map[string]any{"sandbox_id": box["id"], "command": "sleep 1000"}))
	if long["status"] != "running" {
		t.Errorf("a command that takes longer than the client waits: %v", long)
	}
	if out := dialecttest.Ask(t, s, "sandbox_exec", args(t, map[string]any{"sandbox_id": box["id"], "command": "sleep 0.1; echo done", "timeout": 300})); out["stdout"] != "done\n" {
		t.Errorf("a command with its own time: %v", out)
	}
	// Errors are logged, at the requested level.
	s, log := open("MIOSA_LOG_LEVEL=debug")
	text := refused(t, s, "sandbox_get", `{"sandbox_id":"sbx-none"}`)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, request, _ := strings.Cut(strings.TrimSuffix(text, ")"), "request_id ")
	if request == "" || !strings.Contains(log.String(), request) {
		t.Errorf("the log has no %q:\n%s", request, log)
	}
	dialecttest.KillAll(t, w.Daemon)
}

// testRemoteEnvironment uses the variables of a client configured for the product's own
// service, pointed at ours.
func testRemoteEnvironment(t *testing.T, w *harness) {
	open := func(key string) *mcp.ClientSession {
		cmd := w.Command(context.Background(), "mcp", "--dialect", miosa.Name)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.StateDir, "MIOSA_API_URL=" + w.URL, "MIOSA_API_KEY=" + key}
		return dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, revision)
	}
	s := open(w.key(t, sandbox.DefaultTeam, seedScopes...))
	id, _ := dialecttest.Ask(t, s, "sandbox_create", `{}`)["id"].(string)
	if _, err := w.Client.Get(t.Context(), id); err != nil {
		t.Error(err)
	}
	dialecttest.Ask(t, s, "sandbox_destroy", `{}`)
	for _, key := range []string{"", "msk_u_0123456789abcdef0123456789abcdef"} {
		if text := refused(t, open(key), "sandbox_list", `{}`); !strings.Contains(text, "MIOSA_API_KEY is not set") || !strings.Contains(text, "401 invalid_token") {
			t.Errorf("with the key %q: %s", key, text)
		}
	}
}
