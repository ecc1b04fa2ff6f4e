package hopx_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/sandbox"
)

var place = &hopx.Place{URL: func(id string) string { return "http://here/" + id }, Token: func(id string) string { return "token of " + id }}

func restCall(svc sandbox.Service) *dialect.Call {
	return &dialect.Call{Service: svc, Status: func(string) {}, Log: slog.New(slog.DiscardHandler)}
}

// agent sends a request to the agent of the imaginary sandbox, and returns the status and
// body.
func agent(t *testing.T, svc sandbox.Service, method, path, body string) (int, string) {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := hopx.Agent(t.Context(), restCall(svc), place, "sbx-1", &hopx.Request{Method: method, Path: u.EscapedPath(), Query: u.Query(), Body: json.RawMessage(body)})
	status, v := 0, any(nil)
	if err != nil {
		status, v = hopx.Describe(err, true, "req_1")
	} else {
		status, v = out.Status, out.Value
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return status, string(text)
}

// TestAgentRequests checks the service calls that clients' requests cause.
func TestAgentRequests(t *testing.T) {
	s := newImaginary()
	s.job = sandbox.Job{ID: "job-1", State: sandbox.JobRunning}
	for _, c := range []struct{ path, body string }{
		{"/execute", `{"code":"1","workdir":"/a","working_dir":"/b","env":{"A":"b"},"timeout":7}`},
		{"/execute/ipython", `{"code":"2"}`},
		{"/execute", `{"code":"3"}`},
	} {
		if status, text := agent(t, s, "POST", c.path, c.body); status != http.StatusOK {
			t.Fatalf("%s: %d %s", c.path, status, text)
		}
	}
	for i, want := range []struct {
		dir string
		ms  int64
	}{{"/a", 7000}, {"", 60_000}, {"/workspace", 60_000}} {
		if got := s.ran[i]; got.WorkDir != want.dir || got.TimeoutMS != want.ms || got.Language != sandbox.Python {
			t.Errorf("code %d is %+v", i+1, got)
		}
	}
	status, text := agent(t, s, "POST", "/commands/background", `{"command":"bash","args":["-c","echo $0"],"timeout":5,"name":"n"}`)
	if last := s.execs[len(s.execs)-1]; status != 200 || strings.Join(last.Command, "|") != "bash|-c|echo $0" || last.Tag != "hopx:n" || !last.Background || last.TimeoutMS != 5000 || !strings.Contains(text, "cmd_job-1") {
		t.Errorf("a command in the background is %+v, answered %d %s", last, status, text)
	}
}

// TestDescribe checks that an error has the class, the request and the hint in the API's
// terms.
func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		err    error
		agent  bool
		status int
		says   []string
	}{
		{sandbox.Errorf(sandbox.CodeUnsupported, "no"), true, 400, []string{`"code":"NOT_SUPPORTED"`, `"request_id":"req_1"`}},
		{sandbox.Errorf(sandbox.CodeUnauthenticated, "no"), true, 401, []string{`"code":"TOKEN_INVALID"`, `"error":"no"`}},
		{sandbox.Errorf(sandbox.CodeUnauthenticated, "no"), false, 401, []string{`"code":"unauthorized"`, `"error":{"message":"no"`}},
		{sandbox.Errorf(sandbox.CodeInvalid, "run_command is odd; use run_command_background or create_sandbox"), true, 400, []string{"run_command is odd; use POST /commands/background or POST /v1/sandboxes"}},
		{errors.New("a secret of the host"), true, 500, []string{`"code":"INTERNAL_ERROR"`, `"error":"`}},
	} {
		status, body := hopx.Describe(c.err, c.agent, "req_1")
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "secret") {
			t.Errorf("%v is told: %s", c.err, text)
		}
		for _, want := range c.says {
			if status != c.status || !strings.Contains(string(text), want) {
				t.Errorf("%v: %d %s, want %d with %s", c.err, status, text, c.status, want)
			}
		}
	}
	if status, text := agent(t, newImaginary(), "GET", "/files/read?path=/etc/x", ""); status != 403 || !strings.Contains(text, "PATH_NOT_ALLOWED") {
		t.Errorf("a path that is not allowed: %d %s", status, text)
	}
}
