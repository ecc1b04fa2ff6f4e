package hopx_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// imaginary is a service with one sandbox, which records the calls it gets.
type imaginary struct {
	sandbox.Service
	box      sandbox.Sandbox
	created  []sandbox.CreateRequest
	killed   []string
	ran      []sandbox.RunCodeRequest
	isolated []sandbox.RunIsolatedRequest
	execs    []sandbox.ExecRequest
	envs     []sandbox.SetEnvRequest
	env      []sandbox.EnvVar
	result   sandbox.CodeResult
	job      sandbox.Job
	fail     error // of Create, RunCode, Exec and List
	built    []sandbox.BuildTemplateRequest
	build    sandbox.Build
	events   []sandbox.BuildEvent
	boxes    []sandbox.Sandbox
	listed   []sandbox.ListRequest
	ready    bool // code-interpreter
}

func newImaginary() *imaginary {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	return &imaginary{
		box:    sandbox.Sandbox{ID: "sbx-1", State: sandbox.StateRunning, WorkDir: "/workspace", Template: "host", CreatedAt: at},
		result: sandbox.CodeResult{Language: sandbox.Python, Stdout: "out\n"},
		build:  sandbox.Build{ID: "bld-1", Template: "mine", State: sandbox.BuildRunning, Step: "run 1", Fraction: 0.5, CreatedAt: at},
	}
}

func (s *imaginary) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	if id != s.box.ID && id != "my.box" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %.64q", id)
	}
	return new(s.box), nil
}

func (s *imaginary) List(_ context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	s.listed = append(s.listed, req)
	return &sandbox.List[sandbox.Sandbox]{Items: s.boxes}, s.fail
}

func (s *imaginary) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	s.created = append(s.created, req)
	return new(s.box), s.fail
}

func (s *imaginary) Kill(_ context.Context, id string) (*sandbox.Sandbox, error) {
	s.killed = append(s.killed, id)
	return new(s.box), nil
}

func (s *imaginary) RunCode(_ context.Context, _ string, req sandbox.RunCodeRequest, _ sandbox.CodeSink) (*sandbox.CodeResult, error) {
	s.ran = append(s.ran, req)
	return new(s.result), s.fail
}

func (s *imaginary) RunIsolated(_ context.Context, req sandbox.RunIsolatedRequest, _ sandbox.CodeSink) (*sandbox.CodeResult, error) {
	s.isolated = append(s.isolated, req)
	return new(s.result), s.fail
}

func (s *imaginary) Exec(_ context.Context, _ string, req sandbox.ExecRequest, _ sandbox.JobSink) (*sandbox.Job, error) {
	s.execs = append(s.execs, req)
	return new(s.job), s.fail
}

func (s *imaginary) StatFile(context.Context, string, string) (*sandbox.FileInfo, error) {
	return &sandbox.FileInfo{}, nil
}

func (s *imaginary) GetEnv(context.Context, string, sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	return &sandbox.List[sandbox.EnvVar]{Items: s.env}, nil
}

func (s *imaginary) SetEnv(_ context.Context, _ string, req sandbox.SetEnvRequest) (*sandbox.List[sandbox.EnvVar], error) {
	s.envs = append(s.envs, req)
	return &sandbox.List[sandbox.EnvVar]{}, nil
}

func (s *imaginary) ListTemplates(context.Context, sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return &sandbox.List[sandbox.Template]{Items: []sandbox.Template{
		{Name: "base", State: sandbox.TemplateAvailable, Description: "plain"},
		{Name: "code-interpreter", State: s.state(), Warm: map[string]string{"python": "import pandas"}},
		{Name: "desktop", State: sandbox.TemplateReady, Desktop: &sandbox.Desktop{}},
		{Name: "host", State: sandbox.TemplateReady, Resources: sandbox.Resources{VCPUs: 2, DiskMiB: 10240}},
	}}, nil
}

// LinkUpload knows one archive, that of the hash "there".
func (s *imaginary) LinkUpload(_ context.Context, req sandbox.UploadLinkRequest) (*sandbox.UploadLink, error) {
	return &sandbox.UploadLink{Archive: "upload-of-" + req.Name, Present: req.Name == "there", URL: fmt.Sprintf("http://127.0.0.1:1/%d", req.SizeBytes), ExpiresAt: s.box.CreatedAt}, nil
}

func (s *imaginary) state() sandbox.TemplateState {
	if s.ready {
		return sandbox.TemplateReady
	}
	return sandbox.TemplateAvailable
}

func (s *imaginary) GetTemplate(ctx context.Context, name string) (*sandbox.Template, error) {
	list, _ := s.ListTemplates(ctx, sandbox.Page{})
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %s", name)
}

func (s *imaginary) StartBuild(_ context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	s.built = append(s.built, req)
	return &sandbox.Build{ID: "bld-1", Template: req.Name, State: sandbox.BuildRunning}, nil
}

func (s *imaginary) GetBuild(_ context.Context, id string) (*sandbox.Build, error) {
	if id != s.build.ID {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no build %s", id)
	}
	return new(s.build), nil
}

func (s *imaginary) ListBuilds(_ context.Context, req sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	if req.Template != s.build.Template {
		return &sandbox.List[sandbox.Build]{}, nil
	}
	return &sandbox.List[sandbox.Build]{Items: []sandbox.Build{s.build}}, nil
}

func (s *imaginary) FollowBuild(ctx context.Context, _ string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	for _, e := range s.events {
		if err := sink(e); err != nil {
			return nil, err
		}
	}
	if s.build.State == sandbox.BuildRunning {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return new(s.build), nil
}

// told returns a tool's text, and whether it is a protocol error.
func told(t *testing.T, d dialect.Dialect, svc sandbox.Service, tool, args string) (string, bool) {
	t.Helper()
	res, err := dialecttest.Direct(t, d, svc)(t.Context(), tool, json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok || len(res.Content) != 1 || res.StructuredContent != nil {
		t.Fatalf("%s: the result is %+v", tool, res)
	}
	return text.Text, res.IsError
}

// answer calls a tool and returns the object in its answer.
func answer(t *testing.T, d dialect.Dialect, svc sandbox.Service, tool, args string) map[string]any {
	t.Helper()
	text, failed := told(t, d, svc, tool, args)
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil || failed {
		t.Fatalf("%s %s: %s, %v", tool, args, text, err)
	}
	return out
}

const at = `"vm_url":"https://7777-sbx-1.local.vms.cove.internal"`

func TestCreateRequests(t *testing.T) {
	hour, minutes := int64(3600), int64(600)
	for _, tt := range []struct {
		tool, args string
		want       sandbox.CreateRequest
	}{
		{"create_sandbox", `{"template_id":"host"}`, sandbox.CreateRequest{Template: "host"}},
		{"create_sandbox", `{"template_id":"20","timeout_seconds":3600,"internet_access":true}`,
			sandbox.CreateRequest{LifetimeSeconds: &hour, Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}}},
		{"create_sandbox", `{"template_id":"base","internet_access":"false","region":"eu-west","vcpu":"2","memory_mb":2048,"disk_gb":10.0}`,
			sandbox.CreateRequest{
				Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, Metadata: map[string]string{"hopx.region": "eu-west"},
				Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 2048, DiskMiB: 10240},
			}},
		{"create_sandbox", `{"template_id":"host","region":"local","vcpu":null,"nonsense":{"a":1},"Vcpu":7,"env_vars":{"A":"b"}}`, sandbox.CreateRequest{Template: "host"}},
		{"execute_code_isolated", `{"code":"1","template_name":"host","region":"us-east"}`,
			sandbox.CreateRequest{Template: "host", LifetimeSeconds: &minutes, Metadata: map[string]string{"hopx.region": "us-east"}}},
	} {
		svc := newImaginary()
		answer(t, first, svc, tt.tool, tt.args)
		tt.want.User, tt.want.WorkDir = "root", "/workspace"
		if diff := cmp.Diff([]sandbox.CreateRequest{tt.want}, svc.created); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.tool, tt.args, diff)
		}
	}
	svc := newImaginary()
	svc.ready = true
	if got := answer(t, first, svc, "create_sandbox", `{"template_id":"20"}`); svc.created[0].Template != "code-interpreter" || got["_note"] != nil {
		t.Errorf("a template that is built: %+v, %v", svc.created, got)
	}
	for _, args := range []string{`{"template_id":"host","vcpu":0}`, `{"template_id":"host","memory_mb":-1}`, `{"template_id":"host","disk_gb":9000000000000000}`, `{"template_id":"host","timeout_seconds":31536001}`} {
		svc := newImaginary()
		if got := answer(t, first, svc, "create_sandbox", args); got["status_code"] != 400.0 || len(svc.created) > 0 {
			t.Errorf("%s: %v, %+v", args, got, svc.created)
		}
	}
}

// TestFailures checks that errors of the service become answers of the product's API.
func TestFailures(t *testing.T) {
	for code, want := range map[sandbox.Code]string{
		sandbox.CodeInvalid:         "400 invalid_request Client error '400 Bad Request' for url '/v1/sandboxes'",
		sandbox.CodeUnauthenticated: "401 unauthorized Client error '401 Unauthorized' for url '/v1/sandboxes'",
		sandbox.CodeForbidden:       "403 forbidden Client error '403 Forbidden' for url '/v1/sandboxes'",
		sandbox.CodeNotFound:        "404 template_not_found Client error '404 Not Found' for url '/v1/sandboxes'",
		sandbox.CodeConflict:        "409 conflict Client error '409 Conflict' for url '/v1/sandboxes'",
		sandbox.CodeQuotaExceeded:   "429 rate_limit_exceeded Client error '429 Too Many Requests' for url '/v1/sandboxes'",
		sandbox.CodeTooLarge:        "413 too_large Client error '413 Request Entity Too Large' for url '/v1/sandboxes'",
		sandbox.CodeTimeout:         "408 execution_timeout Client error '408 Request Timeout' for url '/v1/sandboxes'",
		sandbox.CodeCancelled:       "499 cancelled Client error '499 Client Closed Request' for url '/v1/sandboxes'",
		sandbox.CodeUnsupported:     "501 not_supported Server error '501 Not Implemented' for url '/v1/sandboxes'",
		sandbox.CodeInternal:        "500 internal_server_error Server error '500 Internal Server Error' for url '/v1/sandboxes'",
	} {
		svc := newImaginary()
		svc.fail = &sandbox.Error{Code: code, Message: "the message", RetryAfter: 3 * time.Second}
		got := answer(t, first, svc, "create_sandbox", `{"template_id":"host"}`)
		body, _ := got["body"].(map[string]any)
		nested, _ := body["error"].(map[string]any)
		if line := fmt.Sprint(got["status_code"], " ", nested["code"], " ", got["error"]); line != want || nested["message"] != "the message" || body["message"] != "the message" || body["code"] != nested["code"] {
			t.Errorf("%s: %s, %v", code, line, body)
		}
		if details, _ := nested["details"].(map[string]any); details["retry_after_seconds"] != 3.0 {
			t.Errorf("%s: details %v", code, details)
		}
		isolated := answer(t, first, svc, "execute_code_isolated", `{"code":"1","template_name":"host"}`)
		wrong := "Failed to create sandbox"
		if code == sandbox.CodeNotFound { // the template went away
			wrong = "Failed to resolve template"
		}
		if isolated["error"] != wrong || isolated["exit_code"] != 1.0 || isolated["stdout"] != "" || !strings.Contains(fmt.Sprint(isolated["stderr"]), "the message") || isolated["details"] == nil {
			t.Errorf("%s: isolated %v", code, isolated)
		}
		second := answer(t, second, svc, "create_sandbox", `{"template_id":"host"}`)
		if second["error"] != "Failed to create sandbox" || second["exception"] != "the message" {
			t.Errorf("%s: v0.2 %v", code, second)
		}
	}
	for _, d := range []dialect.Dialect{first, second} {
		svc := newImaginary()
		svc.fail = errors.New("dial /run/secret.sock: refused")
		text, failed := told(t, d, svc, "create_sandbox", `{"template_id":"host"}`)
		if failed || strings.Contains(text, "secret.sock") {
			t.Errorf("%s: %s", d.Name(), text)
		}
		svc.fail = sandbox.Errorf(sandbox.CodeUnavailable, "the server cannot be reached")
		for tool, args := range map[string]string{"create_sandbox": `{"template_id":"host"}`, "list_sandboxes": `{}`} {
			if text, failed := told(t, d, svc, tool, args); !failed || text != "Error executing tool "+tool+": the server cannot be reached" {
				t.Errorf("%s %s: isError %v, %s", d.Name(), tool, failed, text)
			}
		}
	}
	svc := newImaginary()
	svc.fail = sandbox.Errorf(sandbox.CodeUnavailable, "the server cannot be reached")
	if got := answer(t, second, svc, "health", `{}`); got["error"] != "Health check failed" || got["exception"] != "the server cannot be reached" {
		t.Errorf("health: %v", got)
	}
	svc.fail = sandbox.Errorf(sandbox.CodeUnauthenticated, "no key")
	if got := answer(t, first, svc, "health", `{}`); got["status"] != "healthy" {
		t.Errorf("health without a key: %v", got)
	}
}

// TestIsolatedSandboxIsKilled checks that a sandbox is killed if its code did not run, but not
// if the code fails.
func TestIsolatedSandboxIsKilled(t *testing.T) {
	for code, want := range map[sandbox.Code]string{sandbox.CodeInternal: "Code execution failed", sandbox.CodeTimeout: "", sandbox.CodeInvalid: ""} {
		svc := &failsLater{imaginary: newImaginary(), err: sandbox.Errorf(code, "it broke")}
		got := answer(t, first, svc, "execute_code_isolated", `{"code":"1","template_name":"host"}`)
		if got["error"] == nil || want != "" && (got["error"] != want || got["exception"] != "it broke" || got["exit_code"] != 1.0) || len(svc.killed) != 1 {
			t.Errorf("%s: %v, killed %v", code, got, svc.killed)
		}
	}
	svc := newImaginary()
	svc.result = sandbox.CodeResult{Language: sandbox.Python, ExitCode: 1, Error: &sandbox.CodeError{Name: "ValueError", Message: "x"}}
	if got := answer(t, first, svc, "execute_code_isolated", `{"code":"1"}`); got["error"] != nil || got["stderr"] != "ValueError: x\n" || len(svc.killed) > 0 {
		t.Errorf("%v, killed %v", got, svc.killed)
	}
}

// failsLater is a service in which code cannot run.
type failsLater struct {
	*imaginary
	err error
}

func (s *failsLater) RunCode(context.Context, string, sandbox.RunCodeRequest, sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return nil, s.err
}

func TestCodeRequests(t *testing.T) {
	for args, want := range map[string]sandbox.RunCodeRequest{
		`"code":"1"`: {Language: sandbox.Python, Code: "1", TimeoutMS: 30_000},
		`"code":"1","timeout":300,"language":"NODE","working_dir":"/tmp","env":{"A":"b"}`: {Language: sandbox.JavaScript, Code: "1", TimeoutMS: 300_000, WorkDir: "/tmp", Env: map[string]string{"A": "b"}},
		`"code":"1","timeout":" 1 ","language":"sh","env":"null"`:                         {Language: sandbox.Bash, Code: "1", TimeoutMS: 1000, Fresh: true},
		`"code":"1","timeout":2.0,"language":"go","env":"{\"A\": \"\\u00e9\"}"`:           {Language: sandbox.Go, Code: "1", TimeoutMS: 2000, Env: map[string]string{"A": "é"}},
		`"code":"{\"a\":1}","timeout":1e1`:                                                {Language: sandbox.Python, Code: `{"a":1}`, TimeoutMS: 10_000},
	} {
		svc := newImaginary()
		answer(t, first, svc, "execute_code", `{`+at+`,`+args+`}`)
		want.KeepBytes = 512 << 10
		if diff := cmp.Diff([]sandbox.RunCodeRequest{want}, svc.ran); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	for _, args := range []string{
		`"code":1`, `"code":["1"]`, `"code":"1","timeout":1.5`, `"code":"1","timeout":"1.5"`, `"code":"1","timeout":"0x10"`, `"code":"1","timeout":true`, `"code":"1","timeout":1e40`,
		`"code":"1","timeout":"Infinity"`, `"code":"1","env":[]`, `"code":"1","env":"[1]"`, `"code":"1","env":"{"`, `"code":"1","env":{"A":null}`, `"code":"1","language":5`, `"code":null`,
	} {
		svc := newImaginary()
		text, failed := told(t, first, svc, "execute_code", `{`+at+`,`+args+`}`)
		if !failed || !strings.HasPrefix(text, "Error executing tool execute_code: 1 validation error for execute_codeArguments\n") || len(svc.ran) > 0 {
			t.Errorf("%s: isError %v, %s", args, failed, text)
		}
	}
	for _, args := range []string{`null`, ``, `[]`, `"x"`, `{`, "{\"code\":\"\xff\"}"} {
		if text, failed := told(t, first, newImaginary(), "execute_code", args); !failed || !strings.HasPrefix(text, "Error executing tool execute_code: ") {
			t.Errorf("%q: isError %v, %s", args, failed, text)
		}
	}
}

// TestSchemaDefaultsDoNotCount checks that a default of the schema does not count as given:
// background code has another default, and null names no sandbox.
func TestSchemaDefaultsDoNotCount(t *testing.T) {
	for args, want := range map[string]int64{
		`"sandbox_id":"sbx-1"`:                            300_000,
		`"sandbox_id":"sbx-1","timeout":null`:             300_000,
		`"sandbox_id":"sbx-1","timeout":30`:               30_000,
		`"sandbox_id":"sbx-1","timeout":1800`:             1_800_000,
		`"sandbox_id":null,"vm_url":"sbx-1","timeout":40`: 40_000,
	} {
		svc := newImaginary()
		answer(t, second, svc, "execute_code", `{"code":"1","mode":"background",`+args+`}`)
		if len(svc.execs) != 1 || svc.execs[0].TimeoutMS != want {
			t.Errorf("%s: started were %+v, want one of %d ms", args, svc.execs, want)
		}
	}
	for _, mode := range []string{`"isolated"`, `"persistent"`, `"rich"`} {
		svc := newImaginary()
		answer(t, second, svc, "execute_code", `{"code":"1","sandbox_id":"sbx-1","mode":`+mode+`}`)
		if len(svc.ran) != 1 || svc.ran[0].TimeoutMS != 30_000 {
			t.Errorf("%s: ran %+v", mode, svc.ran)
		}
	}
}

// TestCodeResults checks that exit_code and stderr show how code ended.
func TestCodeResults(t *testing.T) {
	for name, tt := range map[string]struct {
		result sandbox.CodeResult
		exit   float64
		stderr string
	}{
		"exit":           {sandbox.CodeResult{ExitCode: 3, Stderr: "e"}, 3, "e"},
		"exception":      {sandbox.CodeResult{ExitCode: 1, Stderr: "e", Error: &sandbox.CodeError{Name: "E", Message: "m", Traceback: "T\nE: m"}}, 1, "e\nT\nE: m\n"},
		"told already":   {sandbox.CodeResult{ExitCode: 1, Stderr: "T\nE: m\n", Error: &sandbox.CodeError{Name: "E", Message: "m", Traceback: "T\nE: m"}}, 1, "T\nE: m\n"},
		"no exit code":   {sandbox.CodeResult{Error: &sandbox.CodeError{Name: "E", Message: "m"}}, 1, "E: m\n"},
		"timeout":        {sandbox.CodeResult{ExitCode: 1, TimedOut: true, Error: &sandbox.CodeError{Name: "KeyboardInterrupt"}}, 124, "Execution timed out after 30 seconds\n"},
		"interrupted":    {sandbox.CodeResult{Interrupted: true}, 1, ""},
		"new":            {sandbox.CodeResult{ExitCode: 137, Restarted: true, Reason: "it used too much memory"}, 137, ""},
		"stderr is fine": {sandbox.CodeResult{Stderr: "warning\n"}, 0, "warning\n"},
	} {
		svc := newImaginary()
		tt.result.Language = sandbox.Python
		svc.result = tt.result
		got := answer(t, first, svc, "execute_code", `{`+at+`,"code":"1"}`)
		if note, _ := got["_note"].(string); strings.Contains(note, tt.result.Reason+".") != tt.result.Restarted {
			t.Errorf("%s: the note is %q", name, note)
		}
		if got["exit_code"] != tt.exit || got["stderr"] != tt.stderr || got["success"] != (tt.exit == 0) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAddresses checks that all forms of addresses lead to the sandbox, and nothing else
// does.
func TestAddresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://7777-sbx-1.local.vms.cove.internal": true, "https://7777-SBX-1.eu-1001.vms.hopx.dev/": true, "7777-sbx-1.eu.vms.hopx.dev": true, "sbx-1.eu.vms.hopx.dev": true,
		"http://127.0.0.1:8080/vm/sbx-1": true, "http://127.0.0.1:8080/vm/sbx-1/execute": true, "127.0.0.1:8080/vm/sbx-1": true, "http://sbx-1": true, "sbx-1": true, " sbx-1/ ": true, "my.box": true,
		"": false, "https://": false, "https://sbx-2.vms.hopx.dev": false, "http://127.0.0.1:8080": false, "http://127.0.0.1/vm/": false, "sbx": false, "sbx-1.example": false,
		"https://7777-": false, "://": false, "/": false, "\x00": false,
	} {
		data, err := json.Marshal(map[string]string{"vm_url": address})
		if err != nil {
			t.Fatal(err)
		}
		got := answer(t, first, newImaginary(), "ping_vm", string(data))
		if (got["message"] == "pong") != ok {
			t.Errorf("%q: %v", address, got)
		}
	}
	token, _ := answer(t, first, newImaginary(), "create_sandbox", `{"template_id":"host"}`)["auth_token"].(string)
	if parts := strings.Split(token, "."); !strings.HasPrefix(token, "eyJ") || len(parts) != 3 || parts[2] != "" {
		t.Errorf("the token is %q", token)
	}
	for given, ok := range map[string]bool{token: true, "": true, "eyJ": false, token + "x": false} {
		got := answer(t, first, newImaginary(), "ping_vm", fmt.Sprintf(`{%s,"auth_token":%q}`, at, given))
		if (got["message"] == "pong") != ok || !ok && got["status_code"] != 401.0 {
			t.Errorf("token %q: %v", given, got)
		}
	}
	for state, want := range map[sandbox.State]string{
		sandbox.StateCreating: "409 SANDBOX_CREATING", sandbox.StatePaused: "409 SANDBOX_STOPPED", sandbox.StateStopping: "404 SANDBOX_NOT_FOUND",
		sandbox.StateKilled: "404 SANDBOX_NOT_FOUND", sandbox.StateFailed: "404 SANDBOX_NOT_FOUND",
	} {
		svc := newImaginary()
		svc.box.State = state
		got := answer(t, first, svc, "ping_vm", `{`+at+`}`)
		body, _ := got["body"].(map[string]any)
		if line := fmt.Sprint(got["status_code"], " ", body["code"]); line != want {
			t.Errorf("%s: %s", state, line)
		}
	}
}

func TestEnvironmentOfSandbox(t *testing.T) {
	svc := newImaginary()
	svc.env = []sandbox.EnvVar{{Name: "PATH", Value: "/bin", Source: "template"}, {Name: "DB_PASSWORD", Value: "w", Source: "sandbox"}, {Name: "OPENAI", Value: "[secret ai]", Source: "secret"}}
	got, _ := answer(t, first, svc, "env_get", `{`+at+`}`)["env_vars"].(map[string]any)
	if diff := cmp.Diff(map[string]any{"PATH": "/bin", "DB_PASSWORD": "***MASKED***", "OPENAI": "***MASKED***"}, got); diff != "" {
		t.Error(diff)
	}
	for args, want := range map[string][]sandbox.SetEnvRequest{
		`"env_vars":{"A":"b"}`: {{Set: map[string]string{"A": "b"}}},
		`"env_vars":{"A":"b","DB_PASSWORD":"***MASKED***","OPENAI":"***MASKED***"},"merge":false`: {{Set: map[string]string{"A": "b", "DB_PASSWORD": "w"}, Replace: true}},
		`"env_vars":{"DB_PASSWORD":"***MASKED***"}`:                                               nil,
		`"env_vars":{}`:              nil,
		`"env_vars":{},"merge":"no"`: {{Set: map[string]string{}, Replace: true}},
	} {
		svc.envs = nil
		if got := answer(t, first, svc, "env_set", `{`+at+`,`+args+`}`); got["text"] != "" {
			t.Errorf("%s: %v", args, got)
		}
		if diff := cmp.Diff(want, svc.envs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
}

func TestTemplates(t *testing.T) {
	names := func(args string) string {
		var all []string
		list := answer(t, first, newImaginary(), "list_templates", args)
		data, _ := list["data"].([]any)
		for _, d := range data {
			all = append(all, fmt.Sprint(d.(map[string]any)["name"]))
		}
		return strings.Join(all, " ") + fmt.Sprint(" ", list["has_more"])
	}
	for args, want := range map[string]string{
		`{}`: "desktop host base code-interpreter false", `{"limit":2}`: "desktop host true", `{"category":"desktop"}`: "desktop false",
		`{"category":"development","language":"python"}`: "code-interpreter false", `{"language":5}`: "desktop host base code-interpreter false",
	} {
		if got := names(args); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	text, _ := told(t, first, newImaginary(), "list_templates", `{"limit":1,"fields":"name, language,category"}`)
	if !strings.Contains(text, "\"name\": \"desktop\",\n      \"category\": \"desktop\"\n") || !strings.Contains(text, `"_note"`) {
		t.Errorf("cut to three fields: %s", text)
	}
	for _, args := range []string{`{"fields":"all"}`, `{"fields":null}`} {
		list := answer(t, first, newImaginary(), "list_templates", args)
		if first, _ := list["data"].([]any)[0].(map[string]any); list["_fields"] != nil || first["features"] == nil || first["tags"] == nil || first["is_active"] != true {
			t.Errorf("%s: %v", args, list)
		}
	}
	if got := answer(t, first, newImaginary(), "get_template", `{"name":"20"}`); got["id"] != "20" || got["name"] != "code-interpreter" || got["status"] != "pending" || got["language"] != "python" {
		t.Errorf("the template 20 is %v", got)
	}
	if got := answer(t, first, newImaginary(), "get_template", `{"name":"host"}`); fmt.Sprint(got["default_resources"]) != "map[disk_gb:10 memory_mb:1024 vcpu:2]" {
		t.Errorf("host is %v", got)
	}
	if got := answer(t, first, newImaginary(), "list_templates", `{"fields":"`+strings.Repeat("x,", 65)+`"}`); got["status_code"] != 400.0 {
		t.Errorf("65 fields: %v", got)
	}
}
