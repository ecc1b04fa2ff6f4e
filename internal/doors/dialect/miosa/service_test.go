package miosa

import (
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// imaginary is a service with one sandbox, which records the calls it gets.
type imaginary struct {
	sandbox.Service
	box       sandbox.Sandbox
	templates map[string]sandbox.Template
	created   []sandbox.CreateRequest
	killed    []string
	programs  bool // are there
	inputs    []sandbox.Input
	fail      error // of Pause
	slow      bool  // Pause never ends
	job       sandbox.Job
	output    []sandbox.JobEvent
	executed  []sandbox.ExecRequest
	attached  []sandbox.AttachRequest
	signals   []string
	detached  bool // Attach returns before the end
	taken     map[string]bool
	snapshots []sandbox.Snapshot
	fill      string // content of files, instead of x
	path      string // path of entries
	// processors are those of the machine; 0 is any number.
	processors int
	listed     []sandbox.ListSnapshotsRequest
}

func newImaginary() *imaginary {
	return &imaginary{
		box:       sandbox.Sandbox{ID: "sbx-1", Name: "one", State: sandbox.StateRunning},
		templates: map[string]sandbox.Template{"host": {Name: "host", State: sandbox.TemplateReady}},
		taken:     map[string]bool{}, job: sandbox.Job{ID: "job-1", SandboxID: "sbx-1", State: sandbox.JobExited},
	}
}

func (s *imaginary) is(id string) error {
	if id != s.box.ID && id != s.box.Name {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s", id)
	}
	return nil
}

func (s *imaginary) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	if err := s.is(id); err != nil {
		return nil, err
	}
	return new(s.box), nil
}

func (s *imaginary) GetTemplate(_ context.Context, name string) (*sandbox.Template, error) {
	t, ok := s.templates[name]
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %s", name)
	}
	return &t, nil
}

func (s *imaginary) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	s.created = append(s.created, req)
	if req.Name == s.box.Name {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "the name is taken")
	}
	made := &sandbox.Sandbox{ID: fmt.Sprintf("sbx-%d", 1+len(s.created)), Name: req.Name, Metadata: req.Metadata, Template: req.Template, State: sandbox.StateRunning, Resources: req.Resources}
	made.Desktop = s.templates[req.Template].Desktop
	if s.processors > 0 && req.FitResources {
		made.Resources.VCPUs = min(made.Resources.VCPUs, s.processors)
	}
	return made, nil
}

func (s *imaginary) Kill(_ context.Context, id string) (*sandbox.Sandbox, error) {
	s.killed = append(s.killed, id)
	return &sandbox.Sandbox{ID: id, State: sandbox.StateKilled}, nil
}

func (s *imaginary) Pause(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	if s.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return new(s.box), errors.Join(s.fail, s.is(id))
}

func (s *imaginary) Exec(_ context.Context, id string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	s.executed = append(s.executed, req)
	job := s.job
	if len(req.Command) > 0 { // a check for a program
		said := "Python 3.11.2\n"
		if !s.programs {
			job.ExitCode, said = 1, "npm\n"
		}
		return &job, sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: []byte(said)})
	}
	if err := s.is(id); err != nil {
		return nil, err
	}
	if req.Background {
		job.State = sandbox.JobRunning
		return &job, nil
	}
	return &job, s.play(sink)
}

func (s *imaginary) play(sink sandbox.JobSink) error {
	for _, e := range s.output {
		if err := sink(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *imaginary) Attach(ctx context.Context, _, _ string, req sandbox.AttachRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	s.attached = append(s.attached, req)
	if err := s.play(sink); err != nil {
		return nil, err
	}
	job := s.job
	if s.detached {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(req.DetachAfterMS) * time.Millisecond):
		}
		job.State = sandbox.JobRunning
	}
	return &job, nil
}

func (s *imaginary) SignalJob(_ context.Context, _, job, signal string, _ int64) (*sandbox.Job, error) {
	s.signals = append(s.signals, job+" "+signal)
	return &s.job, nil
}

func (s *imaginary) GetJob(_ context.Context, id, job string) (*sandbox.Job, error) {
	if s.box.State == sandbox.StateKilled {
		return nil, sandbox.Errorf(sandbox.CodeNotRunning, "it was killed")
	}
	if job != s.job.ID {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no job %s", job)
	}
	return &s.job, s.is(id)
}

func (s *imaginary) GetScreen(_ context.Context, id string) (*sandbox.Screen, error) {
	if s.box.Desktop == nil {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "it has no screen")
	}
	return &sandbox.Screen{Width: s.box.Desktop.Width, Height: s.box.Desktop.Height}, s.is(id)
}

func (s *imaginary) SendInput(_ context.Context, id string, inputs []sandbox.Input) (*sandbox.Screen, error) {
	s.inputs = append(s.inputs, inputs...)
	return &sandbox.Screen{}, s.is(id)
}

func (s *imaginary) Screenshot(_ context.Context, id string, req sandbox.ScreenshotRequest) (*sandbox.Screenshot, error) {
	return &sandbox.Screenshot{MIME: "image/png", Data: []byte("PNG " + string(req.Format))}, s.is(id)
}

func (s *imaginary) ReadFile(_ context.Context, _ string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	var size int
	if _, err := fmt.Sscanf(req.Path, "/%d", &size); err != nil {
		return nil, err
	}
	size = min(size, int(req.Limit))
	return &sandbox.FileReader{Info: sandbox.FileInfo{Path: req.Path}, ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat(stdcmp.Or(s.fill, "x"), size)))}, nil
}

func (s *imaginary) WriteFile(_ context.Context, _ string, req sandbox.WriteFileRequest, content io.Reader) (*sandbox.FileInfo, error) {
	_, err := io.Copy(io.Discard, content)
	return &sandbox.FileInfo{Path: req.Path}, err
}

func (s *imaginary) StatFile(_ context.Context, _, path string) (*sandbox.FileInfo, error) {
	return &sandbox.FileInfo{Path: path}, nil
}

// ListFiles lists as many files as the path says.
func (s *imaginary) ListFiles(_ context.Context, _ string, req sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	var all, from int
	_, _ = fmt.Sscanf(req.Path, "/%d", &all)
	_, _ = fmt.Sscanf(req.Cursor, "%d", &from)
	list := &sandbox.List[sandbox.FileInfo]{Items: make([]sandbox.FileInfo, min(req.Limit, all-from))}
	for i := range list.Items {
		list.Items[i].Path = s.path
	}
	if next := from + len(list.Items); next < all {
		list.NextCursor = fmt.Sprint(next)
	}
	return list, nil
}

func (s *imaginary) CreateSnapshot(_ context.Context, id string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	if s.taken[req.Name] {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "the name is taken")
	}
	snap := sandbox.Snapshot{ID: fmt.Sprintf("snap-%d", len(s.snapshots)), SandboxID: "sbx-1", Name: req.Name, Label: req.Label}
	s.snapshots = append([]sandbox.Snapshot{snap}, s.snapshots...)
	return &snap, s.is(id)
}

func (s *imaginary) ListSnapshots(_ context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	s.listed = append(s.listed, req)
	return &sandbox.List[sandbox.Snapshot]{Items: s.snapshots}, nil
}

func (s *imaginary) GetSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	for _, snap := range s.snapshots {
		if snap.ID == name || snap.Name == name {
			return &snap, nil
		}
	}
	if s.taken[name] {
		return &sandbox.Snapshot{ID: "snap-other", Name: name, SandboxID: "sbx-other"}, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no snapshot %s", name)
}

// client is one session with a service.
type client struct {
	svc     sandbox.Service
	session *dialect.Session
	env     map[string]string
	told    []string
}

func newClient(svc sandbox.Service) *client {
	return &client{svc: svc, session: dialect.NewSession(), env: map[string]string{}}
}

// made returns one dialect for all calls, since making its tables takes a while.
var made = sync.OnceValue(New)

// ask calls a tool and returns its result.
func (c *client) ask(t *testing.T, tool, args string) *mcp.CallToolResult {
	t.Helper()
	return c.with(t.Context(), t, tool, args)
}

func (c *client) with(ctx context.Context, t *testing.T, tool, args string) *mcp.CallToolResult {
	t.Helper()
	d := made()
	for _, def := range d.Tools() {
		if def.Def.Name != tool {
			continue
		}
		res, err := dialect.Invoke(ctx, d, def, &dialect.Call{
			Service: c.svc, Args: json.RawMessage(args), Session: func() *dialect.Session { return c.session },
			Status: func(string) {}, Tell: func(m string) { c.told = append(c.told, m) },
			Env: func(name string) string { return c.env[name] }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	t.Fatalf("no tool %s", tool)
	return nil
}

// ok calls a tool that must succeed and returns the fields of its result.
func (c *client) ok(t *testing.T, tool, args string) map[string]any {
	t.Helper()
	res := c.ask(t, tool, args)
	if res.IsError {
		t.Fatalf("%s %s: %+v", tool, args, res.Content[0])
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// refuses checks the error of a tool, except for the request's id.
func (c *client) refuses(t *testing.T, tool, args, want string) {
	t.Helper()
	res := c.ask(t, tool, args)
	got := res.Content[0].(*mcp.TextContent).Text
	got, id, _ := strings.Cut(strings.TrimSuffix(got, ")"), ", request_id ")
	if !res.IsError || got+")" != want || !strings.HasPrefix(id, "req_") {
		t.Errorf("%s %.100s: %s), request %s; want %s", tool, args, got, id, want)
	}
}

func TestCreateRequests(t *testing.T) {
	sec := func(n int64) *int64 { return &n }
	tags := func(template string, more ...string) map[string]string {
		m := map[string]string{templateTag: template}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	small := sandbox.Resources{VCPUs: 2, MemoryMiB: 4096, DiskMiB: 10240}
	base := sandbox.CreateRequest{
		WorkDir: "/workspace", Resources: small, FitResources: true, Metadata: tags("miosa-sandbox"),
		IdleTimeoutSeconds: sec(300), LifetimeSeconds: sec(day), OnTimeout: sandbox.ActionPause,
	}
	with := func(change func(r *sandbox.CreateRequest)) sandbox.CreateRequest {
		r := base
		change(&r)
		return r
	}
	for args, want := range map[string]sandbox.CreateRequest{
		`{}`:                              base,
		`{"unknown":{"x":1},"name":null}`: base,
		`{"size":"xl"}`: with(func(r *sandbox.CreateRequest) {
			r.Resources = sandbox.Resources{VCPUs: 16, MemoryMiB: 32768, DiskMiB: 81920}
		}),
		`{"timeout_sec":60}`:                         with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds = sec(60) }),
		`{"timeout_sec":31536000}`:                   with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds, r.LifetimeSeconds = sec(31536000), sec(31536000) }),
		`{"idle_timeout_sec":1}`:                     with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds = sec(1) }),
		`{"idleTimeoutSec":900}`:                     with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds = sec(900) }),
		`{"timeout_sec":null}`:                       base,
		`{"timeout_sec":300,"idle_timeout_sec":900}`: base,
		`{"timeout_sec":900,"idle_timeout_sec":300}`: base,
		`{"always_on":true}`:                         with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds, r.LifetimeSeconds = sec(0), sec(0) }),
		`{"persistent":false}`:                       with(func(r *sandbox.CreateRequest) { r.OnTimeout, r.LifetimeSeconds = sandbox.ActionKill, sec(0) }),
		`{"template":"static"}`:                      with(func(r *sandbox.CreateRequest) { r.Metadata = tags("static") }),
		`{"template_id":"host"}`:                     with(func(r *sandbox.CreateRequest) { r.Template, r.Metadata = "host", tags("host") }),
		`{"templateId":"host"}`:                      with(func(r *sandbox.CreateRequest) { r.Template, r.Metadata = "host", tags("host") }),
		`{"template":"big"}`: with(func(r *sandbox.CreateRequest) {
			r.Template, r.Metadata, r.Resources = "big", tags("big"), sandbox.Resources{}
		}),
		`{"template":"big","size":"xs"}`: with(func(r *sandbox.CreateRequest) {
			r.Template, r.Metadata, r.Resources = "big", tags("big"), sizes[0].resources
		}),
		`{"template":"big@2"}`:             with(func(r *sandbox.CreateRequest) { r.Template, r.Metadata = "big@2", tags("big@2") }),
		`{"name":"two"}`:                   with(func(r *sandbox.CreateRequest) { r.Name = "two" }),
		`{"name":"Any Name"}`:              with(func(r *sandbox.CreateRequest) { r.Metadata = tags("miosa-sandbox", nameTag, "Any Name") }),
		`{"name":"sbx-mine"}`:              with(func(r *sandbox.CreateRequest) { r.Metadata = tags("miosa-sandbox", nameTag, "sbx-mine") }),
		`{"name":"one"}`:                   with(func(r *sandbox.CreateRequest) { r.Metadata = tags("miosa-sandbox", nameTag, "one") }),
		`{"env":{"A":"1"}}`:                with(func(r *sandbox.CreateRequest) { r.Env = map[string]string{"A": "1"} }),
		`{"metadata":{"k":"v","n":[1,2]}}`: with(func(r *sandbox.CreateRequest) { r.Metadata = tags("miosa-sandbox", "k", "v", "n", "[1,2]") }),
		`{"cpu_count":64,"memory_mb":262144,"disk_size_mb":1048576,"size":"xs"}`: with(func(r *sandbox.CreateRequest) {
			r.Resources, r.FitResources = sandbox.Resources{VCPUs: 64, MemoryMiB: 262144, DiskMiB: 1048576}, false
		}),
		`{"external_workspace_id":"w","external_project_id":"p","external_user_id":"u"}`: with(func(r *sandbox.CreateRequest) {
			r.Metadata = tags("miosa-sandbox", workspaceTag, "w", projectTag, "p", userTag, "u")
		}),
	} {
		svc := newImaginary()
		svc.templates["big"] = sandbox.Template{Name: "big", State: sandbox.TemplateReady, Resources: sandbox.Resources{VCPUs: 8}}
		svc.templates["big@2"] = sandbox.Template{Name: "big", State: sandbox.TemplateReady}
		newClient(svc).ok(t, "sandbox_create", args)
		if diff := cmp.Diff(want, svc.created[len(svc.created)-1]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	svc := newImaginary()
	c := newClient(svc)
	for args, text := range map[string]string{
		// Of two invalid values, the same one is always reported.
		`{"cpu_count":65,"memory_mb":999999,"disk_size_mb":99999999}`: "Error: cpu_count must be at most 64 (422 VALIDATION_ERROR)",
		`{"cpu_count":1,"memory_mb":262145,"disk_size_mb":1024}`:      "Error: memory_mb must be at most 262144 (422 VALIDATION_ERROR)",
		`{"cpu_count":1,"memory_mb":1024,"disk_size_mb":1048577}`:     "Error: disk_size_mb must be at most 1048576 (422 VALIDATION_ERROR)",
		`{"cpu_count":1,"disk_size_mb":1024}`:                         "Error: give all of cpu_count, memory_mb and disk_size_mb, or none of them and a size (422 VALIDATION_ERROR)",
		`{"name":"` + strings.Repeat("n", 129) + `"}`:                 `Error: sandbox_create: "name" may have at most 128 characters (422 VALIDATION_ERROR)`,
		`{"template":"none"}`:                                         "Error: unknown template none: there is no template none (422 VALIDATION_ERROR)",
	} {
		c.refuses(t, "sandbox_create", args, text)
	}
	if len(svc.created) != 0 {
		t.Errorf("created were %+v", svc.created)
	}
}

// TestTemplates checks that a template of the product is one of the server's, or the
// server's default if that suffices, and that the caller is told about a substitute.
func TestTemplates(t *testing.T) {
	const (
		no      = " is not built on this server, so its "
		npm     = " is not on this server, and its default template has no npm; build the template "
		project = " stands in, without a project in /workspace; to have it: cove template build "
	)
	for _, tt := range []struct {
		asked, built string
		programs     bool
		used, said   string
	}{
		{"miosa-sandbox", "", false, "", ""},
		{"static", "", false, "", "template static" + no + "default template stands in"},
		{"nextjs", "node", false, "node", "template nextjs" + no + "template node" + project + "nextjs"},
		{"nextjs", "", true, "", "template nextjs" + no + "default template" + project + "nextjs"},
		{"nextjs", "", false, "", "Error: template nextjs" + npm + "nextjs (cove template build nextjs), or choose another (422 VALIDATION_ERROR)"},
		{"react-vite", "", true, "", "template react-vite" + no + "default template" + project + "react-vite"},
		{"node-22", "node", false, "node", ""},
		{"node-22", "", true, "", "template node-22" + no + "default template stands in, with node 3.11.2; to have it: cove template build node"},
		{"node-22", "", false, "", "Error: template node-22" + npm + "node (cove template build node), or choose another (422 VALIDATION_ERROR)"},
		{"python-3.12", "code-interpreter", true, "code-interpreter", "template python-3.12" + no + "template code-interpreter stands in, with python3 3.11.2"},
		{"python-3.12", "", true, "", "template python-3.12" + no + "default template stands in, with python3 3.11.2"},
		{"python-3.12", "", false, "", "Error: template python-3.12" + npm + "code-interpreter (cove template build code-interpreter), or choose another (422 VALIDATION_ERROR)"},
	} {
		svc := newImaginary()
		svc.programs = tt.programs
		for _, name := range []string{"nextjs", "react-vite", "node", "code-interpreter"} {
			svc.templates[name] = sandbox.Template{Name: name, State: sandbox.TemplateAvailable}
		}
		svc.templates[tt.built] = sandbox.Template{Name: tt.built, State: sandbox.TemplateReady}
		c, args := newClient(svc), `{"template":"`+tt.asked+`"}`
		if strings.HasPrefix(tt.said, "Error") {
			c.refuses(t, "sandbox_create", args, tt.said)
			if len(svc.killed) != 1 {
				t.Errorf("%+v: killed were %v", tt, svc.killed)
			}
		} else if got, _ := c.ok(t, "sandbox_create", args)["note"].(string); got != tt.said || len(svc.killed) > 0 {
			t.Errorf("%+v: the note is %q, killed were %v", tt, got, svc.killed)
		}
		if len(svc.created) != 1 || svc.created[0].Template != tt.used {
			t.Errorf("%+v: created were %+v", tt, svc.created)
		}
	}
	// The server's own template of that name takes precedence.
	svc := newImaginary()
	svc.templates["nextjs"] = sandbox.Template{Name: "nextjs", State: sandbox.TemplateReady}
	svc.templates["node"] = sandbox.Template{Name: "node", State: sandbox.TemplateReady}
	if newClient(svc).ok(t, "sandbox_create", `{"template":"nextjs"}`); svc.created[0].Template != "nextjs" {
		t.Errorf("made from %q", svc.created[0].Template)
	}
}

// TestErrors checks that every error code of the service maps to one of the product's.
func TestErrors(t *testing.T) {
	for code, want := range map[sandbox.Code]string{
		sandbox.CodeInvalid:         "Error: the reason (422 VALIDATION_ERROR)",
		sandbox.CodeUnsupported:     "Error: the reason (422 VALIDATION_ERROR)",
		sandbox.CodeUnauthenticated: "Error: MIOSA_API_KEY is not set to a key of this server: the reason (401 invalid_token)",
		sandbox.CodeForbidden:       "Error: 403 Unauthorized: the reason (403 insufficient_scope)",
		sandbox.CodeNotFound:        "Error: the reason (404 NOT_FOUND)",
		sandbox.CodeConflict:        "Error: the reason (409 CONFLICT)",
		sandbox.CodeNotRunning:      "Error: the reason (409 SANDBOX_NOT_RUNNING)",
		sandbox.CodeTooLarge:        "Error: the reason (413 PAYLOAD_TOO_LARGE)",
		sandbox.CodeQuotaExceeded:   "Error: the reason (429 rate_limit_exceeded)",
		sandbox.CodeCancelled:       "Error: the reason (499 CANCELLED)",
		sandbox.CodeInternal:        "Error: the reason (500 INTERNAL_ERROR)",
		sandbox.CodeUnavailable:     "Error: the reason (503 SERVICE_UNAVAILABLE)",
		sandbox.CodeTimeout:         "Error: the reason (504 TIMEOUT)",
	} {
		svc := newImaginary()
		svc.fail = sandbox.Errorf(code, "the reason")
		newClient(svc).refuses(t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`, want)
	}
	svc := newImaginary()
	svc.fail = errors.New("a secret: hunter2")
	newClient(svc).refuses(t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`, "Error: internal error; see the server's log for details (500 INTERNAL_ERROR)")
	busy := sandbox.Errorf(sandbox.CodeQuotaExceeded, "busy")
	busy.RetryAfter = 4500 * time.Millisecond
	svc.fail = busy
	data, err := json.Marshal(newClient(svc).ask(t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`).StructuredContent)
	if err != nil || !strings.Contains(string(data), `"retry_after":5`) || !strings.Contains(string(data), `"status":429`) {
		t.Errorf("busy is told as %s, %v", data, err)
	}
	// A panic of a tool too.
	c := newClient(&imaginary{})
	c.svc = nil
	if res := c.ask(t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`); !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "500 INTERNAL_ERROR, request_id req_") {
		t.Errorf("a panic is %+v", res.Content[0])
	}
}

// TestRequestTimeout checks that the client sets the time limit of a request.
func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newImaginary()
		svc.slow = true
		c := newClient(svc)
		c.env["MIOSA_TIMEOUT_MS"] = "1500"
		start := time.Now()
		c.refuses(t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`, "Error: the request took longer than MIOSA_TIMEOUT_MS, 1500 ms; raise it, or try again (504 TIMEOUT)")
		if took := time.Since(start); took != 1500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		for _, wrong := range []string{"", "0", "-1", "soon", "99999999999999999999"} {
			c.env["MIOSA_TIMEOUT_MS"] = wrong
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			start := time.Now()
			res := c.with(ctx, t, "sandbox_stop", `{"sandbox_id":"sbx-1"}`)
			if took := time.Since(start); took != time.Hour || strings.Contains(fmt.Sprint(res.Content[0]), "MIOSA_TIMEOUT_MS") {
				t.Errorf("with %q it took %v, %+v", wrong, took, res.Content[0])
			}
			cancel()
		}
	})
}

func TestExecRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for args, want := range map[string]sandbox.ExecRequest{
			`"timeout":1`:                   {TimeoutMS: 1000},
			`"timeout":300`:                 {TimeoutMS: 300000},
			`"timeout_sec":7`:               {TimeoutMS: 7000},
			`"timeoutMs":300000`:            {TimeoutMS: 300000},
			`"timeout_ms":0.5`:              {TimeoutMS: 1},
			`"timeout":2,"timeout_ms":5`:    {TimeoutMS: 2000},
			`"cwd":"/a","env":{"A":"b"}`:    {WorkDir: "/a", Env: map[string]string{"A": "b"}, Background: true, TimeoutMS: -1},
			`"working_dir":"/b"`:            {WorkDir: "/b", Background: true, TimeoutMS: -1},
			`"workingDir":"/b","dir":"/c"`:  {WorkDir: "/b", Background: true, TimeoutMS: -1},
			`"timeout":null,"name":"label"`: {Background: true, TimeoutMS: -1},
		} {
			for _, tool := range []string{"sandbox_exec", "sandbox_exec_stream"} {
				svc := newImaginary()
				newClient(svc).ok(t, tool, `{"sandbox_id":"one","command":"ls",`+args+`}`)
				want.Shell = "ls"
				if diff := cmp.Diff([]sandbox.ExecRequest{want}, svc.executed); diff != "" {
					t.Errorf("%s %s (-want +got):\n%s", tool, args, diff)
				}
			}
		}
		// How long to wait for a command without a timeout.
		for env, want := range map[string]time.Duration{"": 25 * time.Second, "70000": 70 * time.Second, "86400000": 10 * time.Minute} {
			svc := newImaginary()
			svc.detached = true
			c := newClient(svc)
			c.env["MIOSA_TIMEOUT_MS"] = env
			start := time.Now()
			out := c.ok(t, "sandbox_exec", `{"sandbox_id":"one","command":"npm run dev"}`)
			if took := time.Since(start); took != want || out["status"] != "running" || out["job_id"] != "job-1" || out["exit_code"] != nil {
				t.Errorf("with %q it took %v: %v", env, took, out)
			}
		}
	})
}

// TestExecCancelled checks that a cancelled call ends its command, however it waits.
func TestExecCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newImaginary()
		svc.detached = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if res := newClient(svc).with(ctx, t, "sandbox_exec", `{"sandbox_id":"one","command":"ls"}`); !res.IsError {
			t.Errorf("the result is %+v", res)
		}
		if diff := cmp.Diff([]string{"job-1 KILL"}, svc.signals); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOutcomes(t *testing.T) {
	for _, tt := range []struct {
		job    sandbox.Job
		status string
		exit   any
	}{
		{sandbox.Job{State: sandbox.JobRunning}, "running", nil},
		{sandbox.Job{State: sandbox.JobExited}, "succeeded", 0.0},
		{sandbox.Job{State: sandbox.JobExited, ExitCode: 7}, "failed", 7.0},
		{sandbox.Job{State: sandbox.JobExited, ExitCode: 137, EndCause: sandbox.EndOutOfMemory}, "failed", 137.0},
		{sandbox.Job{State: sandbox.JobExited, ExitCode: 137, EndCause: sandbox.EndTimeout}, "failed", 124.0},
		{sandbox.Job{State: sandbox.JobExited, ExitCode: 143, EndCause: sandbox.EndSignal, Signal: "TERM"}, "canceled", 143.0},
	} {
		svc := newImaginary()
		tt.job.ID, tt.job.SandboxID = "job-1", "sbx-1"
		svc.job = tt.job
		out := newClient(svc).ok(t, "sandbox_job_status", `{"job_id":"job-1","sandbox_id":"sbx-1"}`)
		if out["status"] != tt.status || out["exit_code"] != tt.exit {
			t.Errorf("%+v is %v", tt.job, out)
		}
	}
	svc := newImaginary()
	svc.job = sandbox.Job{ID: "job-1", SandboxID: "sbx-1", State: sandbox.JobExited, ExitCode: 137, EndCause: sandbox.EndOutOfMemory}
	if out := newClient(svc).ok(t, "sandbox_exec", `{"sandbox_id":"one","command":"x","timeout":1}`); out["exit_code"] != 137.0 || !strings.Contains(fmt.Sprint(out["reason"]), "larger size") {
		t.Errorf("out of memory is %v", out)
	}
}

// TestJobsOfSession checks that a session remembers its jobs, up to a bound.
func TestJobsOfSession(t *testing.T) {
	svc := newImaginary()
	c := newClient(svc)
	begin := func(id string) {
		svc.job.ID = id
		c.ok(t, "sandbox_exec_background", `{"sandbox_id":"one","command":"x"}`)
	}
	begin("job-first")
	for i := range maxJobs - 1 {
		begin(fmt.Sprintf("job-%d", i))
	}
	svc.job.ID = "job-first"
	c.ok(t, "sandbox_job_status", `{"job_id":"job-first"}`)
	begin("job-last")
	svc.job.ID = "job-first"
	c.refuses(t, "sandbox_job_status", `{"job_id":"job-first"}`, "Error: sandbox_id is required: this session has no active sandbox; sandbox_create makes one (400 MISSING_PARAM)")
	svc.box.State = sandbox.StateKilled
	if out := c.ok(t, "sandbox_job_status", `{"job_id":"job-last"}`); out["status"] != "canceled" {
		t.Errorf("the job of an ended sandbox is %v", out)
	}
	c.refuses(t, "sandbox_job_status", `{"job_id":"job-first","sandbox_id":"sbx-1"}`, "Error: there is no sandbox or computer sbx-1 (any more); see sandbox_list, or create another (404 NOT_FOUND)")
}

// TestFileLimits checks files and listings at their limits, and one beyond.
func TestFileLimits(t *testing.T) {
	c := newClient(newImaginary())
	if out := c.ok(t, "file_read", fmt.Sprintf(`{"sandbox_id":"one","path":"/%d"}`, maxRead)); out["size"] != float64(maxRead) {
		t.Errorf("read %v bytes", out["size"])
	}
	c.refuses(t, "file_read", fmt.Sprintf(`{"sandbox_id":"one","path":"/%d"}`, maxRead+1),
		"Error: /5242881 is larger than 5242880 bytes; read a part of it with sandbox_exec, such as head -c 65536 (413 PAYLOAD_TOO_LARGE)")
	content := strings.Repeat("x", maxWrite)
	if needs.Soak() { // it takes seconds under the race detector, as what follows, which is one byte more
		if out := c.ok(t, "file_write", `{"sandbox_id":"one","path":"/f","content":"`+content+`"}`); out["size_bytes"] != float64(maxWrite) {
			t.Errorf("wrote %v bytes", out["size_bytes"])
		}
	}
	c.refuses(t, "file_write", `{"sandbox_id":"one","path":"/f","content":"x`+content+`"}`,
		"Error: content has 8388609 bytes and may have 8388608; write it in parts with sandbox_exec (413 PAYLOAD_TOO_LARGE)")
	svc := newImaginary()
	svc.fill = "\x01"
	c = newClient(svc)
	if out := c.ok(t, "file_read", `{"sandbox_id":"one","path":"/1000"}`); out["content"] != strings.Repeat("\x01", 1000) {
		t.Errorf("read %.20q", out["content"])
	}
	c.refuses(t, "file_read", fmt.Sprintf(`{"sandbox_id":"one","path":"/%d"}`, maxRead), "Error: /5242880 is not text; read it with encoding base64 (413 PAYLOAD_TOO_LARGE)")
	c.ok(t, "file_read", fmt.Sprintf(`{"sandbox_id":"one","path":"/%d","encoding":"base64"}`, maxRead))
	svc.path = strings.Repeat("p", 4000)
	if out := c.ok(t, "file_list", `{"sandbox_id":"one","path":"/5000"}`); len(out["entries"].([]any)) != 1000 || out["truncated"] != true {
		t.Errorf("of long paths %d are listed", len(out["entries"].([]any)))
	}
	c = newClient(newImaginary())
	for n, truncated := range map[int]any{0: nil, 1000: nil, maxEntries: nil, maxEntries + 1: true} {
		out := c.ok(t, "file_list", fmt.Sprintf(`{"sandbox_id":"one","path":"/%d"}`, n))
		if got := len(out["entries"].([]any)); got != min(n, maxEntries) || out["truncated"] != truncated {
			t.Errorf("of %d entries %d are listed, truncated %v", n, got, out["truncated"])
		}
	}
}

// TestSnapshotNames checks that snapshot names are arbitrary text, separate for each
// sandbox.
func TestSnapshotNames(t *testing.T) {
	svc := newImaginary()
	svc.taken["taken"] = true
	c := newClient(svc)
	for args, want := range map[string][2]string{
		`{}`:                                 {"", ""},
		`{"name":"clean"}`:                   {"clean", ""},
		`{"name":"clean-2","comment":"why"}`: {"clean-2", "why"},
		`{"name":"Any Name"}`:                {"", "Any Name"},
		`{"name":"Any Name","comment":"two\nlines"}`: {"", "Any Name\ntwo\nlines"},
		`{"name":"taken"}`:                           {"", "taken"},
		`{"comment":"why"}`:                          {"", "\nwhy"},
		`{"name":"snap-1"}`:                          {"", "snap-1"},
	} {
		args = strings.Replace(strings.Replace(args, "{", `{"sandbox_id":"one",`, 1), ",}", "}", 1)
		out := c.ok(t, "snapshot_create", args)
		made := svc.snapshots[0]
		if got := [2]string{made.Name, made.Label}; got != want {
			t.Errorf("%s is kept as %q", args, got)
		}
		var asked struct{ Name, Comment string }
		if err := json.Unmarshal([]byte(args), &asked); err != nil || out["name"] != asked.Name || out["comment"] != asked.Comment {
			t.Errorf("%s is told as %v, %v", args, out, err)
		}
	}
}

func TestComputerActions(t *testing.T) {
	at := func(n int) *int { return &n }
	svc := newImaginary()
	svc.box.Desktop = &sandbox.Desktop{Width: 1280, Height: 800}
	c := newClient(svc)
	for args, want := range map[string]sandbox.Input{
		`"action":"click","x":0,"y":0`:                                          {Type: sandbox.InputClick, X: at(0), Y: at(0), Button: "left", Count: 1},
		`"action":"click","x":1279,"y":799,"button":"right"`:                    {Type: sandbox.InputClick, X: at(1279), Y: at(799), Button: "right", Count: 1},
		`"action":"double_click","x":5,"y":6,"text":"x"`:                        {Type: sandbox.InputClick, X: at(5), Y: at(6), Button: "left", Count: 2},
		`"action":"type","text":"Grüße 🙂\n"`:                                    {Type: sandbox.InputText, Text: "Grüße 🙂\n"},
		`"action":"type","text":"abc","delay":20`:                               {Type: sandbox.InputText, Text: "abc", DurationMS: 20},
		`"action":"type","text":"` + strings.Repeat("x", 60) + `","delay":1000`: {Type: sandbox.InputText, Text: strings.Repeat("x", 60), DurationMS: 1000},
		`"action":"key","key":"ctrl+shift+t"`:                                   {Type: sandbox.InputKey, Keys: []string{"ctrl+shift+t"}},
		`"action":"key","key":"Enter"`:                                          {Type: sandbox.InputKey, Keys: []string{"Enter"}},
		`"action":"scroll"`:                                                     {Type: sandbox.InputScroll, DY: 3},
		`"action":"scroll","direction":"up","clicks":100,"x":1,"y":2`:           {Type: sandbox.InputScroll, DY: -100, X: at(1), Y: at(2)},
		`"action":"scroll","direction":"left","amount":1`:                       {Type: sandbox.InputScroll, DX: -1},
		`"action":"scroll","direction":"right"`:                                 {Type: sandbox.InputScroll, DX: 3},
	} {
		svc.inputs = nil
		if out := c.ok(t, "computer_action", `{"computer_id":"one",`+args+`}`); out["success"] != true {
			t.Errorf("%s: %v", args, out)
		}
		if diff := cmp.Diff([]sandbox.Input{want}, svc.inputs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	svc.inputs = nil
	c.refuses(t, "computer_action", `{"computer_id":"one","action":"click","x":1280,"y":0}`, "Error: x 1280, y 0 is not on the screen, which has 1280 x 800 pixels (422 VALIDATION_ERROR)")
	c.refuses(t, "computer_action", `{"computer_id":"one","action":"scroll","x":0,"y":800}`, "Error: x 0, y 800 is not on the screen, which has 1280 x 800 pixels (422 VALIDATION_ERROR)")
	if len(svc.inputs) != 0 {
		t.Errorf("done was %+v", svc.inputs)
	}
	res := c.ask(t, "computer_screenshot", `{"computerId":"one"}`)
	if img, ok := res.Content[0].(*mcp.ImageContent); !ok || img.MIMEType != "image/png" || string(img.Data) != "PNG png" || res.StructuredContent != nil {
		t.Errorf("a screenshot is %+v", res)
	}
	svc.box.Desktop = nil
	for tool, more := range map[string]string{"computer_action": `,"action":"click","x":1,"y":1`, "computer_stop": ""} {
		c.refuses(t, tool, `{"id":"one"`+more+`}`, "Error: one is a sandbox without a desktop, not a computer; computer_create makes one (404 NOT_FOUND)")
	}
}

func TestCreateComputers(t *testing.T) {
	svc := newImaginary()
	c := newClient(svc)
	c.refuses(t, "computer_create", `{}`, "Error: this server has no desktop template, so no computers; ask its operator for one (422 VALIDATION_ERROR)")
	c.refuses(t, "computer_create", `{"template":"host"}`, "Error: template host has no desktop; choose ubuntu-desktop (422 VALIDATION_ERROR)")
	c.refuses(t, "computer_create", `{"template":"windows-11"}`, "Error: template windows-11 is not available: it needs an image of Windows, which this server does not have; use ubuntu-desktop (422 VALIDATION_ERROR)")
	c.refuses(t, "computer_create", `{"template":"beos"}`, "Error: unknown template beos: there is no template beos (422 VALIDATION_ERROR)")
	svc.templates["desktop"] = sandbox.Template{Name: "desktop", State: sandbox.TemplateReady, Desktop: &sandbox.Desktop{Width: 1280, Height: 800}}
	for _, name := range []string{"", `"template":"ubuntu-desktop"`, `"template_type":"miosa-desktop"`, `"template":"desktop","size":"large"`} {
		out := c.ok(t, "computer_create", "{"+name+"}")
		if note, _ := out["note"].(string); strings.Contains(note, "which is a Debian") != (out["template"] == "ubuntu-desktop") {
			t.Errorf("%s: the note is %q", name, note)
		}
		if out["status"] != "running" || out["width"] != 1280.0 || out["size"] == nil || svc.created[len(svc.created)-1].Template != "desktop" {
			t.Errorf("%s: %v", name, out)
		}
	}
	// An operator's template under the product's name takes precedence.
	svc.templates["ubuntu-desktop"] = sandbox.Template{Name: "ubuntu-desktop", State: sandbox.TemplateFailed}
	if c.ok(t, "computer_create", `{}`); svc.created[len(svc.created)-1].Template != "desktop" {
		t.Errorf("it is made as %+v", svc.created)
	}
	svc.templates["ubuntu-desktop"] = sandbox.Template{Name: "ubuntu-desktop", State: sandbox.TemplateReady, Desktop: &sandbox.Desktop{}}
	if out := c.ok(t, "computer_create", `{"size":"large"}`); svc.created[len(svc.created)-1].Template != "ubuntu-desktop" || out["note"] != nil {
		t.Errorf("it is made as %+v", svc.created)
	}
	if got := svc.created[len(svc.created)-1]; got.Resources.VCPUs != 4 || got.OnTimeout != sandbox.ActionPause || *got.IdleTimeoutSeconds != computerIdle || got.Metadata[computerTag] != "large" {
		t.Errorf("it is made as %+v", got)
	}
	if _, active := mustSession(t, c).active(); active != "sbx-7" {
		t.Errorf("the active computer is %q", active)
	}
}

// TestSizesOnASmallMachine checks that a size larger than the machine still makes a
// sandbox, and that the result says how much it has.
func TestSizesOnASmallMachine(t *testing.T) {
	svc := newImaginary()
	svc.processors = 2
	svc.templates["desktop"] = sandbox.Template{Name: "desktop", State: sandbox.TemplateReady, Desktop: &sandbox.Desktop{Width: 1280, Height: 800}}
	c := newClient(svc)
	for tool, sizes := range map[string]map[string]bool{
		"sandbox_create": {"small": false, "medium": true}, "computer_create": {"medium": false, "large": true},
	} {
		for size, noted := range sizes {
			out := c.ok(t, tool, `{"size":"`+size+`"}`)
			if note, _ := out["note"].(string); strings.Contains(note, "the size has 4 vCPUs") != noted {
				t.Errorf("%s of size %s: %v", tool, size, out)
			}
		}
	}
	// Sandbox tools show a computer's size as computer tools do.
	if got := machineOf(&sandbox.Sandbox{Metadata: map[string]string{computerTag: "large"}}); got.Size != "large" {
		t.Errorf("a large computer has size %q", got.Size)
	}
}

// TestListAllSnapshots checks that without an active sandbox the snapshots of all are
// listed, so that those of one that has ended are found without its id.
func TestListAllSnapshots(t *testing.T) {
	svc := newImaginary()
	svc.snapshots = []sandbox.Snapshot{{ID: "snap-1", SandboxID: "sbx-gone"}}
	c := newClient(svc)
	if out := c.ok(t, "snapshot_list", `{}`); len(out["snapshots"].([]any)) != 1 || svc.listed[0].Sandbox != "" {
		t.Errorf("%v, asked for %+v", out, svc.listed)
	}
	c.ok(t, "sandbox_create", `{}`)
	if c.ok(t, "snapshot_list", `{}`); svc.listed[1].Sandbox != "sbx-2" {
		t.Errorf("asked for %+v", svc.listed)
	}
}

func mustSession(t *testing.T, c *client) *session {
	t.Helper()
	s, err := sessionOf(&dialect.Call{Session: func() *dialect.Session { return c.session }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
