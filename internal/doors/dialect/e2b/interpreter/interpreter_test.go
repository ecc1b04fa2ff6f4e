package interpreter

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/sandbox"
)

// door is the interpreters of a sandbox over HTTP.
type door struct {
	t   *testing.T
	url string
	box string
	svc *local.Service
}

func open(t *testing.T) *door {
	t.Helper()
	svc := local.New(t)
	ctx := sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
	sb, err := svc.Create(ctx, sandbox.CreateRequest{Env: map[string]string{"FROM": "sandbox"}})
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, box: sb.ID, svc: svc}
	s := New(Config{Service: svc, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := gate.WithSandbox(sandbox.WithCaller(r.Context(), sandbox.LocalCaller()), &sandbox.Sandbox{ID: d.box})
		s.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(srv.Close)
	d.url = srv.URL
	return d
}

func (d *door) do(method, path, body string) (int, string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(data))
}

// run runs code and returns the lines of the answer, without their times and
// without keepalives.
func (d *door) run(body string) []string {
	d.t.Helper()
	status, text := d.do("POST", "/execute", body)
	if status != http.StatusOK {
		d.t.Fatalf("%s: %d %s", body, status, text)
	}
	var lines []string
	for l := range strings.SplitSeq(text, "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			d.t.Fatalf("%q: %v", l, err)
		}
		kind := m["type"].(string)
		delete(m, "type")
		delete(m, "timestamp")
		data, err := json.Marshal(m)
		if err != nil {
			d.t.Fatal(err)
		}
		if kind != "keepalive" {
			lines = append(lines, kind+" "+string(data))
		}
	}
	return lines
}

func (d *door) says(body string, want ...string) {
	d.t.Helper()
	if diff := cmp.Diff(append(want, "end_of_execution {}"), d.run(body)); diff != "" {
		d.t.Errorf("%s:\n%s", body, diff)
	}
}

func TestExecute(t *testing.T) {
	d := open(t)
	d.says(`{"code": "x = 6\nprint('hello')"}`, `stdout {"text":"hello\n"}`, `number_of_executions {"execution_count":1}`)
	d.says(`{"code": "x * 7", "context_id": null, "language": null, "env_vars": null}`,
		`result {"extra":{},"is_main_result":true,"text":"42"}`, `number_of_executions {"execution_count":2}`)
	d.says(`{"code": "'a\\'b'", "language": "Python "}`, `result {"extra":{},"is_main_result":true,"text":"a'b"}`, `number_of_executions {"execution_count":3}`)
	d.says(`{"code": "import os; print(os.environ['FROM'], os.environ['A'])", "env_vars": {"A": "1"}}`,
		`stdout {"text":"sandbox 1\n"}`, `number_of_executions {"execution_count":4}`)
	d.says(`{"code": "print(os.environ.get('A'))"}`, `stdout {"text":"None\n"}`, `number_of_executions {"execution_count":5}`)
	d.says(`{"code": "display({'text/html': '<b>', 'image/png': 'cG5n', 'application/pdf': b'p', 'x/y': 'z'}, raw=True)"}`,
		`result {"extra":{"x/y":"eg=="},"html":"\u003cb\u003e","is_main_result":false,"pdf":"cA==","png":"cG5n"}`, `number_of_executions {"execution_count":6}`)
	d.says(`{"code": "[1, {'a': None}]"}`, `result {"extra":{},"is_main_result":true,"json":[1,{"a":null}],"text":"[1, {'a': None}]"}`, `number_of_executions {"execution_count":7}`)
	d.says(`{"code": " \n"}`, `number_of_executions {"execution_count":8}`)
	d.says(`{"code": "import sys; sys.exit(3)"}`, `number_of_executions {"execution_count":9}`, `error {"name":"SystemExit","traceback":"SystemExit: 3","value":"3"}`)
	d.says(`{"code": "echo $FROM; (exit 4)", "language": "bash"}`, `stdout {"text":"sandbox\n"}`, `number_of_executions {"execution_count":1}`,
		`error {"name":"ExitCode","traceback":"the code has ended with exit code 4","value":"4"}`)
	lines := d.run(`{"code": "1/0"}`)
	if !strings.HasPrefix(lines[1], `error {"name":"ZeroDivisionError","traceback":"Traceback`) || !strings.HasSuffix(lines[1], `"value":"division by zero"}`) {
		t.Errorf("an error: %q", lines)
	}
	lines = d.run(`{"code": "os._exit(1)"}`)
	if !strings.HasPrefix(lines[1], `error {"name":"UnexpectedEndOfExecution"`) {
		t.Errorf("an end: %q", lines)
	}
	lines = d.run(`{"code": "print('x' * 17_000_000)"}`)
	if n := len(lines); !strings.Contains(lines[n-3], `bytes left out`) || !strings.Contains(lines[n-2], "number_of_executions") {
		t.Errorf("a flood: %d lines, %.300q", n, lines[n-3])
	}
}

func TestContexts(t *testing.T) {
	d := open(t)
	status, text := d.do("GET", "/contexts", "")
	var list []codeContext
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK || len(list) != 2 || list[0].ID != "python" || list[1].ID != "javascript" || list[0].CWD == "" {
		t.Fatalf("%d %s: %v", status, text, err)
	}
	create := func(body string) codeContext {
		t.Helper()
		status, text := d.do("POST", "/contexts", body)
		var c codeContext
		if err := json.Unmarshal([]byte(text), &c); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s: %v", status, text, err)
		}
		return c
	}
	dir := "/tmp"
	a, b := create(`{"cwd": "`+dir+`"}`), create(`{"language": "bash", "cwd": "`+dir+`"}`)
	if c := create(""); c.Language != sandbox.Python || c.CWD == "" {
		t.Errorf("by default it is %+v", c)
	}
	d.says(`{"code": "import os; a = 1; os.getcwd()", "context_id": "`+a.ID+`"}`, `result {"extra":{},"is_main_result":true,"text":"/tmp"}`, `number_of_executions {"execution_count":1}`)
	d.says(`{"code": "pwd", "context_id": "`+b.ID+`"}`, `stdout {"text":"/tmp\n"}`, `number_of_executions {"execution_count":1}`)
	if lines := d.run(`{"code": "a"}`); !strings.Contains(lines[1], `"NameError"`) {
		t.Errorf("another context has it: %q", lines)
	}
	if status, text := d.do("POST", "/contexts/"+a.ID+"/restart", ""); status != http.StatusOK || text != "null" {
		t.Errorf("restart: %d %s", status, text)
	}
	if lines := d.run(`{"code": "import os; [os.getcwd(), 'a' in dir()]", "context_id": "` + a.ID + `"}`); !strings.Contains(lines[0], `"json":["/tmp",false]`) {
		t.Errorf("after the restart: %q", lines)
	}
	if status, text := d.do("POST", "/contexts/javascript/restart", ""); status != http.StatusOK || text != "null" {
		t.Errorf("restart of what has not run yet: %d %s", status, text)
	}
	if status, text := d.do("DELETE", "/contexts/"+b.ID, ""); status != http.StatusOK || text != "null" {
		t.Errorf("remove: %d %s", status, text)
	}
	_, text = d.do("GET", "/contexts", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 4 || list[2].ID != a.ID {
		t.Errorf("%s: %v", text, err)
	}
	for _, route := range []string{"POST /contexts/" + b.ID + "/restart", "DELETE /contexts/" + b.ID, "DELETE /contexts/python-nope", "DELETE /contexts/x", "DELETE /contexts/go-a"} {
		method, path, _ := strings.Cut(route, " ")
		if status, text := d.do(method, path, ""); status != http.StatusNotFound || text != "Context ID not found" {
			t.Errorf("%s: %d %s", route, status, text)
		}
	}
}

func TestRefuses(t *testing.T) {
	d := open(t)
	for _, c := range []struct {
		route, body string
		status      int
		text        string
	}{
		{"POST /execute", `{"code": "1", "context_id": "python", "language": "python"}`, 400, "Only one of context_id or language"},
		{"POST /execute", `{"code": "1", "context_id": "python-nope"}`, 404, "Context ID not found"},
		{"POST /execute", `{"code": "1", "context_id": "../python"}`, 404, "Context ID not found"},
		{"POST /execute", `{"code": "1", "language": "cobol"}`, 500, "is not supported"},
		{"POST /execute", `{"code": "1", "stdin": "x"}`, 400, `the field "stdin" is not known here`},
		{"POST /execute", `{"code": "1", "env_vars": {"A=B": "1"}}`, 400, "A=B"},
		{"POST /execute", `{"code": "1"} {}`, 400, "more after"},
		{"POST /execute", `{"code": "1"}}`, 400, "more after"},
		{"POST /execute", `{"code": "1", "code": "2"}`, 400, "twice"},
		{"POST /execute", `{"code":`, 400, "not valid"},
		{"POST /execute", `{"code": "` + strings.Repeat("#", maxBody) + `"}`, 413, "put data into files"},
		{"POST /contexts", `{"language": "r"}`, 500, "is not supported"},
		{"POST /contexts", `{"language": "go"}`, 400, "no contexts"},
		{"POST /contexts", `{"cwd": "/no/such'dir"}`, 500, "make it first"},
		{"POST /contexts", `{"language": "bash", "cwd": "/no/such'dir"}`, 500, "make it first"},
		{"POST /contexts", `{"name": "x"}`, 400, `the field "name"`},
		{"GET /execute", ``, 404, "there is no GET /execute"},
		{"GET /", ``, 404, "there is no"},
	} {
		method, path, _ := strings.Cut(c.route, " ")
		if status, text := d.do(method, path, c.body); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s %.80s: %d %s; want %d %s", c.route, c.body, status, text, c.status, c.text)
		}
	}
	_, text := d.do("GET", "/contexts", "")
	if n := strings.Count(text, `"id"`); n != 2 {
		t.Errorf("contexts are left of what was refused: %s", text)
	}
	if status, text := d.do("GET", "/health", ""); status != http.StatusOK || text != `"OK"` {
		t.Errorf("health: %d %s", status, text)
	}
	d.box = "nosuchsandbox"
	for path, body := range map[string]string{"/execute": `{"code": "1"}`, "/contexts": ""} {
		if status, text := d.do("POST", path, body); status != http.StatusBadGateway || !strings.Contains(text, `"sandboxId":"sbxnosuchsandbox"`) {
			t.Errorf("%s of no sandbox: %d %s", path, status, text)
		}
	}
}

// Whoever goes away has interrupted the code: the context is free for the next.
func TestClientGoesAway(t *testing.T) {
	d := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/execute", strings.NewReader(`{"code": "import time\nkept = 1\nprint('begun')\ntime.sleep(3600)"}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "begun") {
			break
		}
	}
	cancel()
	if lines := d.run(`{"code": "kept"}`); !strings.Contains(fmt.Sprint(lines), `"text":"1"`) {
		t.Errorf("afterwards: %q", lines)
	}
}

// FuzzRefOf has ids of contexts lead back to themselves or to nothing.
func FuzzRefOf(f *testing.F) {
	for _, id := range []string{"python", "javascript-e2b-00", "python-default", "bash-", "-", "", "go-x"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if ref, ok := refOf(id); ok && idOf(ref) != id {
			t.Errorf("%q is %+v, which is %q", id, ref, idOf(ref))
		}
	})
}
