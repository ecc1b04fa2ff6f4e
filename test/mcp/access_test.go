package mcp

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// keyDoors are the ways to reach a daemon with a key.
func keyDoors(d *covetest.Daemon, secret string) []door {
	http := func() mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp" + everything, HTTPClient: withKey(secret)}
	}
	stdio := func() mcp.Transport {
		return &mcp.CommandTransport{Command: coveMCP(d, "--url", d.URL, "--key", secret, "--toolsets", "all")}
	}
	return []door{
		{"HTTP, sessions", sessionRevision, http},
		{"HTTP, stateless", statelessRevision, http},
		{"stdio", sessionRevision, stdio},
	}
}

// A key can do what its scopes allow, with its team's sandboxes only, whatever ids the
// caller knows.
func TestKeys(t *testing.T) {
	d := daemon(t, covetest.Options{})
	all := []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite}
	owner := keyDoors(d, key(t, d, "owners", all...))[1].open(t)
	box := owner.ok("sandbox_create", map[string]any{"name": "secret", "metadata": map[string]any{"team": "owners"}}).text("id")
	job := owner.ok("sandbox_exec", map[string]any{"sandbox": box, "shell": "echo hidden | tee file"}).text("job_id")
	uri := owner.ok("file_read", map[string]any{"sandbox": box, "path": "file"}).text("uri")

	reader := key(t, d, "owners", sandbox.ScopeSandboxesRead)
	for i := range keyDoors(d, "") {
		o := keyDoors(d, key(t, d, fmt.Sprintf("strangers-%d", i), all...))[i]
		t.Run("another team/"+o.name, func(t *testing.T) { testStranger(t, o.open(t), box, job, uri) })
		o = keyDoors(d, reader)[i]
		t.Run("a scope/"+o.name, func(t *testing.T) {
			s := o.open(t)
			if got := s.ok("sandbox_get", map[string]any{"sandbox": "secret"}).text("id"); got != box {
				t.Errorf("got %s, want %s", got, box)
			}
			s.refused("sandbox_create", nil, "forbidden", "sandboxes:write")
			s.refused("sandbox_exec", map[string]any{"sandbox": box, "shell": "true"}, "forbidden", "sandboxes:write")
			s.refused("sandbox_kill", map[string]any{"sandbox": box}, "forbidden", "sandboxes:write")
			s.refused("file_write", map[string]any{"sandbox": box, "path": "f", "content": "x"}, "forbidden", "files:write")
		})
	}
	if got := owner.ok("file_read", map[string]any{"sandbox": "secret", "path": "file"}).text("content"); got != "hidden\n" {
		t.Errorf("afterwards the file holds %q", got)
	}
	owner.ok("sandbox_kill", map[string]any{"sandbox": box}) // the daemon's own client sees another team
}

func testStranger(t *testing.T, s *session, box, job, uri string) {
	if list := s.ok("sandbox_list", nil)["sandboxes"]; len(list.([]any)) != 0 {
		t.Errorf("a stranger's sandboxes are listed: %v", list)
	}
	for _, name := range []string{box, "secret"} {
		for tool, args := range map[string]map[string]any{
			"sandbox_get": {}, "sandbox_kill": {}, "sandbox_update": {"lifetime_seconds": 1}, "job_list": {},
			"sandbox_exec": {"shell": "true"}, "file_read": {"path": "file"}, "file_write": {"path": "file", "content": "x"},
			"file_edit": {"path": "file", "old_text": "hidden", "new_text": "x"}, "file_list": {}, "file_delete": {"path": "file"},
			"file_move": {"from": "file", "to": "x"}, "dir_download": {}, "job_get": {"job_id": job}, "job_stop": {"job_id": job},
		} {
			args["sandbox"] = name
			s.refused(tool, args, "not_found", "there is no sandbox")
		}
	}
	if res, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
		t.Errorf("a stranger's file is a resource: %v", res)
	}
	mine := s.ok("sandbox_create", map[string]any{"name": "secret"}).text("id")
	s.ok("sandbox_kill", map[string]any{"sandbox": mine})
}

// Without a key the answer is 401, and says how to send one. A web page from another
// origin is refused, with any key and for any request.
func TestStrangersOnHTTP(t *testing.T) {
	keyed, dev := daemon(t, covetest.Options{}), daemon(t, covetest.Options{Dev: true})
	for _, tt := range []struct {
		name    string
		daemon  *covetest.Daemon
		headers map[string]string
		want    int
	}{
		{"no key", keyed, nil, http.StatusUnauthorized},
		{"wrong key", keyed, map[string]string{"Authorization": "Bearer cove_nope"}, http.StatusUnauthorized},
		{"not bearer", keyed, map[string]string{"Authorization": "Basic Zm9vOmJhcg=="}, http.StatusUnauthorized},
		{"host of elsewhere", dev, map[string]string{"Host": "evil.example.com"}, http.StatusForbidden},
		{"host of elsewhere, with port", dev, map[string]string{"Host": "evil.example.com:7777"}, http.StatusForbidden},
		{"host of elsewhere, keys", keyed, map[string]string{"Host": "evil.example.com"}, http.StatusForbidden},
		{"page of elsewhere", dev, map[string]string{"Origin": "http://evil.example.com"}, http.StatusForbidden},
		{"page of nowhere", dev, map[string]string{"Origin": "null"}, http.StatusForbidden},
		{"page of another port", dev, map[string]string{"Origin": "http://localhost:6274"}, http.StatusForbidden},
		{"page of its own", dev, map[string]string{"Origin": dev.URL}, http.StatusOK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, path := range []string{"/mcp", "/mcp/readonly"} {
				w := &web{t: t, url: tt.daemon.URL + path, headers: tt.headers}
				first, _, _ := strings.Cut(hello, "\n")
				res := w.do(t.Context(), http.MethodPost, first)
				if res.StatusCode != tt.want {
					t.Errorf("POST %s: %s, want %d", path, res.Status, tt.want)
				}
				if tt.want == http.StatusUnauthorized && !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("WWW-Authenticate is %q", res.Header.Get("WWW-Authenticate"))
				}
				for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodOptions} {
					if res := w.do(t.Context(), method, ""); tt.want != http.StatusOK && res.StatusCode != tt.want {
						t.Errorf("%s %s: %s, want %d", method, path, res.Status, tt.want)
					}
				}
			}
		})
	}
}

// What "cove mcp" offers is chosen by its flags; what it does not offer cannot
// be called.
func TestChoiceOnStdio(t *testing.T) {
	d := daemon(t, covetest.Options{Args: []string{"--listen", "off"}})
	for _, tt := range []struct {
		flags   []string
		tools   int
		refused string
	}{
		{nil, 20, "network_set"},
		{[]string{"--read-only"}, 8, "sandbox_create"},
		{[]string{"--toolsets", "core"}, 18, "job_list"},
		{[]string{"--toolsets", "code"}, 2, "sandbox_create"},
		{[]string{"--toolsets", "core,jobs", "--read-only"}, 8, "file_write"},
		{[]string{"--toolsets", "all"}, 58, "nope"},
		{[]string{"--tools", "volume_list,network_log"}, 2, "network_set"},
		{[]string{"--toolsets", "code", "--tools", "volume_list"}, 3, "volume_create"},
	} {
		t.Run(strings.Join(tt.flags, " "), func(t *testing.T) {
			s := door{"stdio", sessionRevision, func() mcp.Transport { return &mcp.CommandTransport{Command: coveMCP(d, tt.flags...)} }}.open(t)
			list, err := s.ListTools(t.Context(), nil)
			if err != nil || len(list.Tools) != tt.tools {
				t.Errorf("%d tools, %v; want %d", len(list.Tools), err, tt.tools)
			}
			if res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tt.refused}); err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, %v; want an error that names it", tt.refused, res, err)
			}
		})
	}
	out, err := coveMCP(d, "--toolsets", "core,nope").CombinedOutput()
	if want := "cove: unknown toolset \"nope\"; known are core, sandboxes, jobs, code, files, time, network, secrets, previews, computer, templates, volumes, dynamic, default and all\n"; err == nil || string(out) != want {
		t.Errorf("%v, %q; want %q", err, out, want)
	}
}

// "cove mcp" starts the daemon if none runs, and two of them share one. The daemon ends
// by itself when it is idle, and is started again when needed.
func TestOnDemand(t *testing.T) {
	needs.GVisor(t)
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := onDemandDir(t)
	start := func() *process {
		cmd := exec.Command(binary, "mcp")
		cmd.Env = append(os.Environ(), "COVE_STATE_DIR="+dir, "COVE_IDLE_EXIT=1s", "COVE_URL=", "COVE_API_KEY=")
		return startProcess(t, cmd)
	}
	both := []*process{start(), start()}
	for _, p := range both {
		p.send(strings.TrimSuffix(hello, "\n"))
		p.begin("2", "sandbox_create", "{}")
	}
	for _, p := range both {
		p.next()
		if m := p.next(); !strings.Contains(m, `"state":"running"`) {
			t.Fatalf("%s; standard error: %s", m, &p.stderr)
		}
	}
	ids := idsIn(both[0].call("3", "sandbox_list", "{}"))
	if diff := cmp.Diff(ids, idsIn(both[1].call("3", "sandbox_list", "{}"))); diff != "" || len(ids) != 2 {
		t.Errorf("two clients see other sandboxes than the two that they made, or than each other: %v %s", ids, diff)
	}
	for _, id := range ids {
		both[0].call("4", "sandbox_kill", `{"sandbox":"`+id+`"}`)
	}
	gone := func() bool { return unlocked(t, filepath.Join(dir, "serve.lock")) }
	if !covetest.Eventually(30*time.Second, gone) {
		t.Error("the daemon goes on although nothing runs and no one asks")
	}
	for _, p := range both {
		if m := p.call("5", "sandbox_list", "{}"); !strings.Contains(m, `"sandboxes":[]`) {
			t.Error(m)
		}
		_ = p.in.Close()
		if err := p.wait(); err != nil || p.stderr.Len() > 0 {
			t.Errorf("the process ended with %v; standard error: %s", err, &p.stderr)
		}
	}
	if !covetest.Eventually(30*time.Second, gone) {
		t.Error("the second daemon does not end")
	}
}

// unlocked reports whether no daemon holds its lock.
func unlocked(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// onDemandDir is a state directory with a path that is short enough for a
// socket. After a failure, what still runs there is ended.
func onDemandDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-on-demand-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			ctx := context.WithoutCancel(t.Context())
			d, err := covetest.Launch(ctx, covetest.Options{StateDir: dir})
			if err == nil {
				err = d.Shutdown(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

var sandboxID = regexp.MustCompile(`sbx-[a-z0-9]+`)

// idsIn returns the ids of sandboxes in a message, each once.
func idsIn(message string) []string {
	ids := sandboxID.FindAllString(message, -1)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// A server that cannot be reached is an error of the call, which says what to
// look at.
func TestServerThatIsNotThere(t *testing.T) {
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, exec.Command(binary, "mcp", "--url", "http://127.0.0.1:1", "--key", "cove_x"))
	p.hello()
	if m := p.call("2", "sandbox_list", "{}"); !strings.Contains(m, `"code":"unavailable"`) || !strings.Contains(m, "127.0.0.1:1") {
		t.Error(m)
	}
}
