package hopx_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// patience is how long these tests wait for what must come.
const patience = 2 * time.Minute

// TestReal runs both generations on real sandboxes, on one daemon: the conversations
// through both doors, and what scripts cannot check. "make test" leaves out what this
// package's other tests, TestRealSandbox of package all and those of package agent have.
func TestReal(t *testing.T) {
	t.Parallel()
	needs.GVisor(t)
	needs.Command(t, "node", "bash")
	needs.File(t, "/usr/lib/python3/dist-packages/pandas/__init__.py")
	needs.File(t, "/usr/lib/python3/dist-packages/matplotlib/__init__.py")
	host, image := dialecttest.PushShell(t, registryPassword)
	d := covetest.Borrow(t, dialecttest.Ordinary("--webhooks-allow-private", "--insecure-registries", host))
	t.Run("conversations", func(t *testing.T) {
		conversations(t, d, first, "testdata/v1", "stdio")
		conversations(t, d, first, "testdata/box", "stdio")
		conversations(t, d, second, "testdata/v2", "http")
	})
	for name, test := range map[string]func(t *testing.T, d *covetest.Daemon){
		"background": background, "async": async, "system": system, "rich": rich, "preview": preview, "cancelled": cancelled,
		"hostile": hostile, "shared": shared, "environment": configured, "builds": builds(image),
	} {
		if slices.Contains([]string{"rich", "hostile", "shared", "environment", "cancelled"}, name) && !needs.More() {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
}

// TestRealAsRoot checks in "make soak" that what works in a sandbox also works for root's,
// through the other door. TestReal runs as an ordinary user.
func TestRealAsRoot(t *testing.T) {
	if os.Geteuid() != 0 || !needs.Soak() {
		return
	}
	t.Parallel()
	needs.GVisor(t)
	conversations(t, covetest.Borrow(t, covetest.Options{Dev: true}), first, "testdata/box", "http")
}

// session is a client of a dialect with a sandbox of its own.
type session struct {
	*mcp.ClientSession
	t *testing.T
	// id is the sandbox's id; args names it in calls.
	id   string
	args map[string]any
}

// open connects to a dialect, and makes a sandbox with it.
func open(t *testing.T, d *covetest.Daemon, name string) *session {
	t.Helper()
	s := &session{ClientSession: dialecttest.Connect(t, dialecttest.HTTP(d, name)(), revision), t: t}
	made := s.ask("create_sandbox", map[string]any{"template_id": "host", "timeout_seconds": 3600})
	s.id, _ = made["id"].(string)
	s.args = map[string]any{"sandbox_id": s.id}
	if name == hopx.Name {
		s.args = map[string]any{"vm_url": made["direct_url"], "auth_token": made["auth_token"]}
	}
	t.Cleanup(func() {
		if _, err := d.Client.Kill(context.WithoutCancel(t.Context()), s.id); err != nil {
			t.Error(err)
		}
	})
	return s
}

// as returns the same sandbox through another dialect.
func (s *session) as(d *covetest.Daemon, name string) *session {
	return &session{ClientSession: dialecttest.Connect(s.t, dialecttest.Stdio(d, name)(), revision), t: s.t, id: s.id, args: map[string]any{"sandbox_id": s.id, "vm_url": s.id}}
}

// ask calls a tool, whose result must be one block of JSON.
func (s *session) ask(tool string, args map[string]any) map[string]any {
	s.t.Helper()
	out, err := s.try(tool, args)
	if err != nil {
		s.t.Fatalf("%s: %v", tool, err)
	}
	return out
}

func (s *session) try(tool string, args map[string]any) (map[string]any, error) {
	res, err := s.CallTool(s.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return nil, err
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if res.IsError || len(res.Content) != 1 || !ok || res.StructuredContent != nil {
		return nil, fmt.Errorf("the result is %+v", res)
	}
	var out map[string]any
	return out, json.Unmarshal([]byte(text.Text), &out)
}

// in calls a tool on the session's sandbox.
func (s *session) in(tool string, args map[string]any) map[string]any {
	s.t.Helper()
	return s.ask(tool, s.with(args))
}

func (s *session) with(args map[string]any) map[string]any {
	all := maps.Clone(s.args)
	maps.Copy(all, args)
	return all
}

// process waits until a background process is in the expected state.
func (s *session) process(id string, is func(p map[string]any) bool) map[string]any {
	s.t.Helper()
	var last any
	var found map[string]any
	if !covetest.Eventually(patience, func() bool {
		list := s.in("execute_list_processes", nil)
		last = list
		all, _ := list["processes"].([]any)
		for _, p := range all {
			if m, ok := p.(map[string]any); ok && m["process_id"] == id && is(m) {
				found = m
				return true
			}
		}
		return false
	}) {
		s.t.Fatalf("process %s is not as it should be: %v", id, last)
	}
	return found
}

func background(t *testing.T, d *covetest.Daemon) {
	for _, name := range []string{hopx.Name, hopx.NameV2} {
		s := open(t, d, name)
		begin := func(code, language string) string {
			p := s.in("execute_code_background", map[string]any{"code": code, "language": language, "timeout": 1800, "env": map[string]any{"A": "b"}})
			if id, _ := p["process_id"].(string); strings.HasPrefix(id, "bg_") && p["status"] == "running" && p["execution_id"] != "" && p["start_time"] != "" {
				return id
			}
			t.Fatalf("%s: begun is %v", name, p)
			return ""
		}
		long := begin("import os, time\nprint('begun', os.environ['A'], flush=True)\ntime.sleep(10000)", "python")
		short := begin("echo out; echo err >&2; exit 3", "bash")
		done := begin("console.log(6 * 7)", "javascript")
		p := s.process(long, func(p map[string]any) bool { return p["stdout"] == "begun b\n" })
		if p["status"] != "running" || p["exit_code"] != nil || p["end_time"] != nil || p["language"] != "python" || p["pid"] == 0.0 {
			t.Errorf("%s: it is %v", name, p)
		}
		p = s.process(short, func(p map[string]any) bool { return p["status"] == "failed" })
		if p["exit_code"] != 3.0 || p["stdout"] != "out\n" || p["stderr"] != "err\n" || p["language"] != "bash" || p["end_time"] == nil {
			t.Errorf("%s: it is %v", name, p)
		}
		p = s.process(done, func(p map[string]any) bool { return p["status"] == "completed" })
		if p["exit_code"] != 0.0 || p["stdout"] != "42\n" || p["language"] != "javascript" {
			t.Errorf("%s: it is %v", name, p)
		}
		command := s.in("run_command_background", map[string]any{"command": "echo $0; sleep 10000 & wait", "name": "my server"})
		id, _ := command["process_id"].(string)
		if !strings.HasPrefix(id, "cmd_") || command["status"] != "running" {
			t.Fatalf("%s: begun is %v", name, command)
		}
		if p = s.process(id, func(p map[string]any) bool { return p["stdout"] == "my server\n" }); p["name"] != "my server" {
			t.Errorf("%s: it is %v", name, p)
		}
		// A foreground command is not in the background, and another door's command is not
		// code, even if its first word is a language.
		s.in("run_command", map[string]any{"command": "true"})
		box := fmt.Sprint(s.args["sandbox_id"])
		if url, ok := s.args["vm_url"].(string); ok {
			box, _, _ = strings.Cut(strings.TrimPrefix(url, "https://7777-"), ".")
		}
		other, err := d.Client.Exec(t.Context(), box, sandbox.ExecRequest{Command: []string{"bash", "-i"}, OpenStdin: true, Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if other.Language != "" {
			t.Errorf("%s: a command is code in %s", name, other.Language)
		}
		if job, err := d.Client.GetJob(t.Context(), box, strings.TrimPrefix(long, "bg_")); err != nil || job.Language != sandbox.Python {
			t.Errorf("%s: code is marked %+v, %v", name, job, err)
		}
		list := s.in("execute_list_processes", map[string]any{"max_results": 3})
		if all, _ := list["processes"].([]any); len(all) != 3 || list["count"] != 3.0 || list["truncated"] != true || all[0].(map[string]any)["process_id"] != id {
			t.Errorf("%s: the first three are %v", name, list)
		}
		if all := s.in("execute_list_processes", map[string]any{"max_results": 0}); all["count"] != 4.0 {
			t.Errorf("%s: all are %v", name, all)
		}
		list = s.in("list_processes", nil)
		if !strings.Contains(fmt.Sprint(list["processes"]), "sleep 10000") {
			t.Errorf("%s: the processes are %v", name, list)
		}
		if list = s.in("list_processes", map[string]any{"max_results": 1}); list["truncated"] != true {
			t.Errorf("%s: the first is %v", name, list)
		}
		for _, victim := range []string{long, strings.Replace(id, "cmd_", "", 1)} {
			if got := s.in("execute_kill_process", map[string]any{"process_id": victim}); got["status"] != "killed" || got["process_id"] != victim {
				t.Errorf("%s: killed is %v", name, got)
			}
		}
		s.process(long, func(p map[string]any) bool { return p["status"] == "killed" })
		s.process(id, func(p map[string]any) bool { return p["status"] == "killed" })
		if got := s.in("execute_kill_process", map[string]any{"process_id": short}); got["status"] != "failed" {
			t.Errorf("%s: killing what has ended is %v", name, got)
		}
	}
}

func async(t *testing.T, d *covetest.Daemon) {
	type post struct {
		header http.Header
		body   []byte
	}
	posts := make(chan post, 4)
	r := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		posts <- post{req.Header.Clone(), body}
	}))
	defer r.Close()
	s := open(t, d, hopx.Name)
	answer := s.in("execute_code_async", map[string]any{
		"code": "print('done')", "callback_url": r.URL + "/hook", "callback_headers": map[string]any{"X-Mine": "1"}, "callback_signature_secret": "s3cret",
	})
	if answer["status"] != "queued" || answer["callback_url"] != r.URL+"/hook" || answer["execution_id"] == "" {
		t.Fatalf("the answer is %v", answer)
	}
	select {
	case p := <-posts:
		var body map[string]any
		if err := json.Unmarshal(p.body, &body); err != nil {
			t.Fatal(err)
		}
		mac := hmac.New(sha256.New, []byte("s3cret"))
		io.WriteString(mac, p.header.Get("X-HOPX-Timestamp")+string(p.body))
		if body["execution_id"] != answer["execution_id"] || body["status"] != "completed" || body["success"] != true || body["stdout"] != "done\n" || body["exit_code"] != 0.0 ||
			p.header.Get("X-Mine") != "1" || p.header.Get("X-HOPX-Signature") != "sha256="+hex.EncodeToString(mac.Sum(nil)) {
			t.Errorf("told %s with %v", p.body, p.header)
		}
	case <-time.After(patience):
		t.Error("nobody was told")
	}
	for _, address := range []string{"", "ftp://x", "nowhere"} {
		if got := s.in("execute_code_async", map[string]any{"code": "1", "callback_url": address}); got["status_code"] != 400.0 {
			t.Errorf("callback_url %q: %v", address, got)
		}
	}
	if got := s.in("execute_code_async", map[string]any{"code": "1", "callback_url": r.URL, "timeout": 86401}); got["status_code"] != 400.0 {
		t.Errorf("over a day: %v", got)
	}
}

func system(t *testing.T, d *covetest.Daemon) {
	v1 := open(t, d, hopx.Name)
	for _, s := range []*session{v1, v1.as(d, hopx.NameV2)} {
		m := s.in("get_system_metrics", nil)
		for _, key := range []string{"cpu_percent", "memory_percent", "disk_percent", "uptime", "cpu", "memory", "disk", "os", "hardware"} {
			if m[key] == nil {
				t.Errorf("metrics lack %s: %v", key, m)
			}
		}
		memory, _ := m["memory"].(map[string]any)
		used, _ := memory["used"].(float64)
		if total, _ := memory["total"].(float64); used <= 0 || total < used {
			t.Errorf("memory is %v", memory)
		}
		if system, _ := m["os"].(map[string]any); system["kernel"] == "" || system["name"] == "" || system["hostname"] == "" {
			t.Errorf("the system is %v", m["os"])
		}
		s.in("env_set", map[string]any{"env_vars": map[string]any{"PLAIN": "p", "a_password": "w", "Api_Key_2": "k"}})
		env, _ := s.in("env_get", nil)["env_vars"].(map[string]any)
		if env["PLAIN"] != "p" || env["a_password"] != "***MASKED***" || env["Api_Key_2"] != "***MASKED***" {
			t.Errorf("the environment is %v", env)
		}
		// The masked value, when sent back, keeps the current one.
		env["PLAIN"] = "q"
		s.in("env_set", map[string]any{"env_vars": env, "merge": false})
		if got := s.in("run_command", map[string]any{"command": "echo $PLAIN $a_password"})["stdout"]; got != "q w\n" {
			t.Errorf("the command has seen %q", got)
		}
		// The template's variables stay.
		s.in("env_clear", nil)
		env, _ = s.in("env_get", nil)["env_vars"].(map[string]any)
		if env["PLAIN"] != nil || env["a_password"] != nil || env["PATH"] == nil {
			t.Errorf("after clearing, the environment is %v", env)
		}
	}
	if info := v1.in("get_vm_info", nil); info["vm_id"] != v1.id || info["arch"] == "" || info["agent"] == nil || info["version"] == nil {
		t.Errorf("info is %v", info)
	}
}

// outputs returns the rich outputs of a result, by type.
func outputs(t *testing.T, res map[string]any) map[string]map[string]any {
	t.Helper()
	all, ok := res["rich_outputs"].([]any)
	if !ok || res["success"] != true {
		t.Fatalf("the result is %.2000v", res)
	}
	out := map[string]map[string]any{}
	for _, o := range all {
		m, _ := o.(map[string]any)
		kind, _ := m["type"].(string)
		out[kind] = m
	}
	return out
}

func pngOf(t *testing.T, output map[string]any) {
	t.Helper()
	data, _ := output["data"].(map[string]any)
	text, _ := data["image/png"].(string)
	picture, err := base64.StdEncoding.DecodeString(text)
	if err != nil || !strings.HasPrefix(string(picture), "\x89PNG") || output["format"] != "base64" {
		t.Errorf("the picture is %.200v, %v", output, err)
	}
	metadata, _ := output["metadata"].(map[string]any)
	if metadata["size"] != float64(len(picture)) || metadata["source"] != "matplotlib" {
		t.Errorf("the metadata are %v, the picture has %d bytes", metadata, len(picture))
	}
}

func rich(t *testing.T, d *covetest.Daemon) {
	s := open(t, d, hopx.Name)
	const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\n"
	env := map[string]any{"MPLBACKEND": "Agg"}
	// As in the product's example, the figure is saved and closed.
	got := outputs(t, s.in("execute_code_rich", map[string]any{"code": plot + "plt.savefig('/tmp/plot.png')\nplt.close()", "timeout": 300, "env": env}))
	if got["image/png"] == nil {
		t.Fatalf("a figure that was saved is not there: %v", got)
	}
	pngOf(t, got["image/png"])
	res := s.in("execute_code_rich", map[string]any{"code": plot + "plt.savefig('/tmp/plot2.png')\nplt.show()", "timeout": 300, "env": env})
	if all, _ := res["rich_outputs"].([]any); len(all) != 1 || res["png"] == nil {
		t.Errorf("a figure that was shown and saved is %d outputs", len(all))
	}
	pngOf(t, outputs(t, res)["image/png"])
	got = outputs(t, s.in("execute_code_rich", map[string]any{"code": "import pandas as pd\npd.DataFrame({'sales': [100, 150]})", "timeout": 300}))
	data, _ := got["text/html"]["data"].(map[string]any)
	if html, _ := data["text/html"].(string); !strings.Contains(html, "<td>150</td>") || got["application/vnd.dataframe+json"] == nil {
		t.Errorf("the table is %v", got)
	}
	if plain := s.in("execute_code", map[string]any{"code": "pd.DataFrame({'sales': [7]})"}); plain["html"] == nil || plain["result"] == nil || plain["rich_outputs"] != nil {
		t.Errorf("without rich outputs it is %v", plain)
	}
}

// preview checks that a preview, as in the product, is open to everybody.
func preview(t *testing.T, d *covetest.Daemon) {
	s := open(t, d, hopx.NameV2)
	s.in("run_command_background", map[string]any{"command": "mkdir -p www && cd www && echo hello > index.html && python3 -m http.server 8000"})
	made := s.in("get_preview_url", map[string]any{"port": 8000})
	link, _ := made["preview_url"].(string)
	u, err := url.Parse(link)
	if err != nil || !strings.HasPrefix(u.Host, "8000-"+s.id+".") || made["port"] != 8000.0 || made["sandbox_id"] != s.id {
		t.Fatalf("the preview is %v", made)
	}
	var last string
	if !covetest.Eventually(patience, func() bool {
		var err error
		if _, last, err = dialecttest.Visit(t, d, link); err != nil {
			last = err.Error()
		}
		return last == "hello\n"
	}) {
		t.Errorf("the preview says %q", last)
	}
	if again := s.in("get_preview_url", map[string]any{"port": 8000}); again["preview_url"] != link {
		t.Errorf("asked again it is %v", again)
	}
}

// cancelled checks that what a client no longer waits for ends, and leaves no sandbox that
// the client does not know.
func cancelled(t *testing.T, d *covetest.Daemon) {
	known := living(t, d)
	s := dialecttest.Connect(t, dialecttest.Stdio(d, hopx.Name)(), revision)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code_isolated", Arguments: map[string]any{"code": "import time; time.sleep(250)", "timeout": 300}})
		ended <- err
	}()
	if !covetest.Eventually(patience, func() bool { return len(living(t, d)) > len(known) }) {
		t.Fatal("no sandbox was made")
	}
	cancel()
	<-ended
	if !covetest.Eventually(patience, func() bool { return len(living(t, d)) == len(known) }) {
		t.Errorf("sandboxes are left: %v, there were %v", living(t, d), known)
	}
}

func living(t *testing.T, d *covetest.Daemon) []string {
	t.Helper()
	list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range list.Items {
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	return ids
}

// hostile checks that endless output, and bytes that are not text, are returned bounded and
// as text.
func hostile(t *testing.T, d *covetest.Daemon) {
	s := open(t, d, hopx.Name)
	const most = 600 << 10
	for name, res := range map[string]map[string]any{
		"command": s.in("run_command", map[string]any{"command": "head -c 5000000 /dev/urandom; head -c 5000000 /dev/zero >&2; exit 7"}),
		"code":    s.in("execute_code", map[string]any{"code": "import sys\nsys.stdout.write('é' * 3000000)\nsys.stderr.buffer.write(b'\\xff' * 3000000)\nraise SystemExit(7)", "timeout": 120}),
	} {
		out, _ := res["stdout"].(string)
		errs, _ := res["stderr"].(string)
		if res["exit_code"] != 7.0 || len(out) == 0 || len([]rune(out)) > most || len(errs) == 0 || len([]rune(errs)) > most {
			t.Errorf("%s: exit code %v, %d and %d characters", name, res["exit_code"], len([]rune(out)), len([]rune(errs)))
		}
	}
	res := s.in("execute_code_rich", map[string]any{"code": "from IPython.display import HTML, display\nfor i in range(30):\n    display(HTML('<b>' + 'x' * 1000000 + '</b>'))", "timeout": 120})
	if data, err := json.Marshal(res); err != nil || len(data) > 12<<20 {
		t.Errorf("rich outputs have %d bytes, %v", len(data), err)
	}
	// A name that looks like a path, a query, a header or a command is only a name.
	for _, id := range []string{"../../etc/passwd", "a?b=c", "a\r\nX: y", "$(id)", strings.Repeat("x", 100_000), "\u0000", "\ufeff" + s.id} {
		if got := s.ask("get_sandbox", map[string]any{"id": id}); got["error"] == nil {
			t.Errorf("get_sandbox of %.40q: %v", id, got)
		}
		if got := s.ask("execute_code", map[string]any{"vm_url": id, "code": "1"}); got["error"] == nil {
			t.Errorf("execute_code at %.40q: %v", id, got)
		}
		if got := s.ask("call_api", map[string]any{"method": "DELETE", "path": "/v1/sandboxes/" + id}); got["error"] == nil {
			t.Errorf("call_api of %.40q: %v", id, got)
		}
	}
	if got := s.in("run_command", map[string]any{"command": strings.Repeat("x", 3<<20)}); got["error"] == nil {
		t.Errorf("a command of 3 MiB: %.300v", got)
	}
	if got := s.in("ping_vm", nil); got["message"] != "pong" {
		t.Errorf("afterwards the sandbox says %v", got)
	}
}

// shared uses one sandbox, with one interpreter, through both generations and Cove's own
// tools at the same time.
func shared(t *testing.T, d *covetest.Daemon) {
	v1 := open(t, d, hopx.Name)
	v2 := v1.as(d, hopx.NameV2)
	native := dialecttest.Connect(t, dialecttest.HTTP(d, "native")(), revision)
	v1.in("execute_code", map[string]any{"code": "import threading\nlock, n = threading.Lock(), 0"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if res, err := v1.try("execute_code", v1.with(map[string]any{"code": "with lock: n += 1"})); err != nil || res["success"] != true {
				t.Errorf("v0.1: %v, %v", res, err)
			}
		})
		wg.Go(func() {
			if res, err := v2.try("execute_code", v2.with(map[string]any{"code": "with lock: n += 1", "mode": "persistent"})); err != nil || res["success"] != true {
				t.Errorf("v0.2: %v, %v", res, err)
			}
		})
		wg.Go(func() {
			res, err := native.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{"sandbox": v1.id, "code": "with lock: n += 1"}})
			if err != nil || res.IsError {
				t.Errorf("native: %+v, %v", res, err)
			}
		})
		wg.Go(func() {
			path := fmt.Sprintf("/workspace/shared-%d", i)
			if res, err := v1.try("file_write", v1.with(map[string]any{"path": path, "content": path})); err != nil || res["success"] != true {
				t.Errorf("file_write: %v, %v", res, err)
			}
			if res, err := v2.try("file_read", v2.with(map[string]any{"path": path})); err != nil || res["content"] != path {
				t.Errorf("file_read: %v, %v", res, err)
			}
		})
	}
	wg.Wait()
	if got := v2.in("execute_code", map[string]any{"code": "print(n)", "mode": "persistent"})["stdout"]; got != "24\n" {
		t.Errorf("24 runs have counted to %q", got)
	}
	// A sandbox paused elsewhere is stopped here; one killed elsewhere does not exist.
	if _, err := d.Client.Pause(t.Context(), v1.id); err != nil {
		t.Fatal(err)
	}
	if got := v1.in("file_list", nil); got["status_code"] != 409.0 {
		t.Errorf("paused: %v", got)
	}
	if got := v2.ask("resume_sandbox", map[string]any{"id": v1.id}); got["status"] != "running" {
		t.Errorf("resumed: %v", got)
	}
	if _, err := d.Client.Kill(t.Context(), v1.id); err != nil {
		t.Fatal(err)
	}
	if got := v2.in("run_command", map[string]any{"command": "true"}); got["error"] != "Sandbox not found" {
		t.Errorf("killed: %v", got)
	}
}

// configured uses a client's configuration for the product's own server, pointed at ours,
// and a sandbox of isolated code, which lives for ten more minutes.
func configured(t *testing.T, d *covetest.Daemon) {
	cmd := dialecttest.Command(d, hopx.Name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "HOPX_BASE_URL=" + d.URL + "/", "HOPX_API_KEY=hopx_live_any"}
	s := &session{ClientSession: dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, revision), t: t}
	id, _ := s.ask("execute_code_isolated", map[string]any{"code": "x = 6"})["sandbox_id"].(string)
	box, err := d.Client.Get(t.Context(), id)
	if err != nil || box.LifetimeSeconds != 600 || box.State != sandbox.StateRunning || box.OnTimeout == sandbox.ActionPause {
		t.Fatalf("the sandbox is %+v, %v", box, err)
	}
	s.args = map[string]any{"vm_url": id}
	if got := s.in("execute_code", map[string]any{"code": "print(x * 7)"})["stdout"]; got != "42\n" {
		t.Errorf("later code says %q", got)
	}
	if got := s.ask("delete_sandbox", map[string]any{"id": id})["status"]; got != "deleted" {
		t.Errorf("deleted is %v", got)
	}
	s.ask("create_sandbox", map[string]any{"template_id": "host", "timeout_seconds": 1})
	if !covetest.Eventually(patience, func() bool {
		list, _ := s.ask("list_sandboxes", nil)["data"].([]any)
		return len(list) == 0
	}) {
		t.Error("a sandbox with a timeout of one second did not end")
	}
}
