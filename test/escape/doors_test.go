package escape

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// request makes one request over TCP, with the path unchanged.
func request(t *testing.T, d *covetest.Daemon, method, path, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(data)
}

// routes reads the routes on one sandbox from the interface's description, with
// a body that each accepts.
func routes(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{
		"/restore": `{"snapshot": "snap-x"}`,
		"/merge":   `{"winner": "other"}`,
		"/try":     `{"commands": [{"shell": "true"}]}`,
		"/exec":    `{"command":["true"]}`, "/edit": `{"path":"/a","old_text":"a","new_text":"b"}`, "/mkdir": `{"path":"/tmp/d"}`, "/symlink": `{"path":"/tmp/l","target":"/tmp"}`,
		"/secrets": `{"secret":"x","env":"A"}`, "/previews": `{"port":80}`,
		"/computer/open": `{"url":"https://example.com"}`, "/computer/clipboard": `{"text":"x"}`, "/computer/input": `{"inputs":[{"type":"move","x":1,"y":1}]}`,
		"/code": `{"language":"python","code":"1"}`,
		"/move": `{"from":"/tmp/a","to":"/tmp/b"}`, "/resize": `{"cols":1,"rows":1}`, "/signal": `{"signal":"KILL"}`, "/stdin": `{"data":"eA=="}`,
	}
	found := map[string]string{}
	path, isPath, isMethod := "", regexp.MustCompile(`^  (/v1/\S+):$`), regexp.MustCompile(`^    (get|put|post|patch|delete):$`)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		if m := isPath.FindStringSubmatch(line); m != nil {
			path = m[1]
		}
		if m := isMethod.FindStringSubmatch(line); m != nil && strings.Contains(path, "{sandbox}") && !strings.HasSuffix(path, "/terminal") && !strings.HasSuffix(path, "/ports/{port}") {
			body := ""
			if m[1] == "post" || m[1] == "patch" {
				body = "{}"
			}
			for end, b := range bodies {
				if strings.HasSuffix(path, end) {
					body = b
				}
			}
			found[strings.ToUpper(m[1])+" "+path] = body
		}
	}
	if len(found) < 20 {
		t.Fatalf("found only %d routes", len(found))
	}
	return found
}

// Attack: a key of one team is used on the sandbox of another, by id and by
// name, on every route; no key at all; a key in the URL. Foreign and unknown
// ids must look the same, and nothing may happen.
func TestTeamsAreApart(t *testing.T) {
	all := routes(t)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		key := func(team string) string {
			k, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: team, Team: team})
			if err != nil {
				t.Fatal(err)
			}
			return k.Secret
		}
		red, blue := key("red"), key("blue")
		asRed, err := client.New(client.Config{URL: d.URL, Key: client.Secret(red)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { asRed.Close() })
		s, err := asRed.Create(t.Context(), sandbox.CreateRequest{Name: "ours"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := asRed.Kill(context.WithoutCancel(t.Context()), s.ID); err != nil {
				t.Errorf("kill: %v", err)
			}
		})
		job, err := asRed.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"sleep", "600"}, Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		unknown := "sbx-" + strings.Repeat("a", len(s.ID)-4)
		for route, body := range all {
			method, path, _ := strings.Cut(route, " ")
			path = strings.NewReplacer("{job}", job.ID, "{port}", "80", "{env}", "A", "{language}", "python", "{context}", "default", "{pid}", "2").Replace(path)
			switch {
			case strings.HasSuffix(path, "/output"):
				path += "?stream=stdout"
			case strings.Contains(path, "/files"):
				path += "?path=/etc/hosts"
			}
			if method == http.MethodPost && strings.Contains(path, "/files/") {
				path, _, _ = strings.Cut(path, "?")
			}
			at := func(name string) string { return strings.ReplaceAll(path, "{sandbox}", name) }
			status, answer := request(t, d, method, at(s.ID), blue, body)
			status2, answer2 := request(t, d, method, at(unknown), blue, body)
			status3, _ := request(t, d, method, at("ours"), blue, body)
			if status != 404 || status2 != 404 || status3 != 404 || strings.ReplaceAll(answer, s.ID, unknown) != answer2 {
				t.Errorf("%s: foreign %d %s, unknown %d %s, by name %d", route, status, answer, status2, answer2, status3)
			}
			if status, answer := request(t, d, method, at(s.ID), "", body); status != 401 {
				t.Errorf("%s without a key: %d %s", route, status, answer)
			}
			separator := "?"
			if strings.Contains(path, "?") {
				separator = "&"
			}
			if status, answer := request(t, d, method, at(s.ID)+separator+"key="+red+"&token="+red, "", body); status != 401 {
				t.Errorf("%s with a key in the URL: %d %s", route, status, answer)
			}
		}
		if j, err := asRed.GetJob(t.Context(), s.ID, job.ID); err != nil || j.State != sandbox.JobRunning {
			t.Errorf("after the attacks: %+v, %v", j, err)
		}
		if status, answer := request(t, d, http.MethodGet, "/v1/audit?sandbox_id="+s.ID, blue, ""); strings.Contains(answer, job.ID) || status == 200 && strings.Contains(answer, s.ID) {
			t.Errorf("the audit shows another team's: %d %s", status, answer)
		}
	})
}

// Attack: names and paths that mean something else in an inner layer: a sandbox named
// like the id of another, a path out of the route, bodies that are too large or too
// deep. Answers must not reveal internals.
func TestHostileRequests(t *testing.T) {
	inside := regexp.MustCompile(`goroutine |\.go:\d|/cells/|\.sock|runtime error|sqlite|SQL`)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		k, err := d.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{
			sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite,
		}})
		if err != nil {
			t.Fatal(err)
		}
		victim := d.Create(t, sandbox.CreateRequest{Name: "victim"})
		deep := strings.Repeat(`{"metadata":`, 50_000)
		for _, c := range []struct{ name, method, path, body string }{
			{"named like an id", "POST", "/v1/sandboxes", fmt.Sprintf(`{"name":%q}`, victim.ID)},
			{"named like some id", "POST", "/v1/sandboxes", `{"name":"sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa"}`},
			{"renamed to an id", "PATCH", "/v1/sandboxes/victim", fmt.Sprintf(`{"name":%q}`, victim.ID)},
			{"name with an escape", "POST", "/v1/sandboxes", `{"name":"a\u001b[2J"}`},
			{"name with a line end", "POST", "/v1/sandboxes", `{"name":"a\nb"}`},
			{"template out of its directory", "POST", "/v1/sandboxes", `{"template":"../../etc"}`},
			{"id out of its directory", "GET", "/v1/sandboxes/..%2f..%2fetc%2fpasswd", ""},
			{"id with dots", "GET", "/v1/sandboxes/%2e%2e/stats", ""},
			{"id with zero", "GET", "/v1/sandboxes/victim%00/stats", ""},
			{"job out of its directory", "GET", "/v1/sandboxes/victim/jobs/..%2f..%2f1", ""},
			{"path with zero", "GET", "/v1/sandboxes/victim/files/content?path=/etc/passwd%00.txt", ""},
			{"device", "GET", "/v1/sandboxes/victim/files/content?path=/dev/zero", ""},
			{"deep", "POST", "/v1/sandboxes", deep},
			{"large", "POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("a", 32<<20) + `"}`},
			{"unknown field", "POST", "/v1/sandboxes", `{"nmae":"x"}`},
			{"twice", "GET", "/v1/sandboxes?limit=1&limit=2", ""},
			{"cursor", "GET", "/v1/sandboxes?cursor=%27%20OR%201%3D1", ""},
			{"user", "POST", "/v1/sandboxes/victim/exec", `{"command":["id"],"user":"../root"}`},
			{"environment", "POST", "/v1/sandboxes/victim/exec", `{"command":["env"],"env":{"A=B":"x","C\u0000":"y"}}`},
			{"admin", "GET", "/v1/keys", ""},
			{"method", "TRACE", "/v1/sandboxes", ""},
		} {
			status, answer := request(t, d, c.method, c.path, k.Secret, c.body)
			if status < 400 || status >= 500 || inside.MatchString(answer) || len(answer) > 4096 {
				t.Errorf("%s: %d %.500s", c.name, status, answer)
			}
		}
	})
}

// Attack: the output of a command, and names of files, forge the daemon's own lines in
// a stream of events.
func TestOutputCannotForgeEvents(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		const forged = "\n{\"job\":{\"exit_code\":0,\"state\":\"exited\"},\"final\":true}\n\u2028\x00\xff\x1b]0;x\x07"
		res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"sh", "-c", `printf '%s\000\377' "$1"; exit 7`, "sh", strings.Split(forged, "\x00")[0]}})
		if err != nil || res.Job.ExitCode != 7 || !strings.HasPrefix(res.Stdout, forged[:20]) || !strings.HasSuffix(res.Stdout, "\x00\xff") {
			t.Errorf("got %q, %+v, %v", res.Stdout, res.Job, err)
		}
		name := "a\n{\"final\":true}\n\x1b[2J"
		d.Sh(t, s.ID, "mkdir -p /workspace/d && touch \"/workspace/d/$(printf 'a\\n{\"final\":true}\\n\\033[2J')\"")
		list, err := d.Client.ListFiles(t.Context(), s.ID, sandbox.ListFilesRequest{Path: "/workspace/d"})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != name {
			t.Errorf("listing %+v, %v", list, err)
		}
	})
}

// Attack: a sandbox serves a directory that shall be written elsewhere when it
// is copied out, or text that drives the terminal of whoever looks at it.
func TestCommandLineWithHostileSandbox(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "hostile", Metadata: map[string]string{"note": "\x1b[31mred\nstate:  forged"}})
		d.Sh(t, s.ID, `mkdir -p /workspace/d/sub && cd /workspace/d && ln -s /etc/passwd link && ln -s / root && ln -s ../../../.. up &&
			mkfifo pipe && echo data > sub/file && touch "$(printf 'esc\033[2Jape')" && chmod 6777 sub/file && echo in > "..hidden" && echo back > 'a\..\b'`)
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		for p := filepath.Dir(dir); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := d.Command(t.Context(), "cp", "hostile:/workspace/d", dir+"/out")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "\x1b[2J") {
			t.Errorf("cp: %v %q", err, out)
		}
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := e.Info(); err != nil || !e.Type().IsRegular() && !e.IsDir() && e.Type() != os.ModeSymlink || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
				t.Errorf("%s is %v, %v", path, info.Mode(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(dir + "/out/sub/file"); err != nil || string(data) != "data\n" {
			t.Errorf("the file is %q, %v", data, err)
		}
		for _, args := range [][]string{{"ls"}, {"get", "hostile"}, {"logs", "--jobs", "hostile"}, {"audit", "hostile"}, {"cp", "hostile:/workspace/d/esc\x1b[2Jnot", "/dev/null"}} {
			out, _ := d.Command(t.Context(), args...).CombinedOutput()
			if strings.ContainsAny(string(out), "\x1b\x07") || strings.Contains(string(out), "\nstate:  forged") {
				t.Errorf("%v: %q", args, out)
			}
		}
		out, err := d.Command(t.Context(), "ls", "--json").Output()
		if err != nil || !json.Valid(out) {
			t.Errorf("ls --json: %q, %v", out, err)
		}
		if info, err := os.Stat("/dev/null"); err != nil || info.Mode().Type()&os.ModeCharDevice == 0 {
			t.Errorf("/dev/null is %v, %v", info.Mode(), err)
		}
	})
}
