package superserve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// imaginary is a service with one sandbox, which records the calls it gets.
type imaginary struct {
	sandbox.Service
	box      sandbox.Sandbox
	created  []sandbox.CreateRequest
	updated  []sandbox.UpdateRequest
	executed []sandbox.ExecRequest
	policies []sandbox.NetworkPolicy
	resumed  int
	fail     error // of Create
	secrets  []sandbox.Secret
	previews []sandbox.Preview
	events   []sandbox.NetworkEvent
	output   []byte
	job      sandbox.Job
	built    sandbox.BuildTemplateRequest
	building int // other templates
	// ready are templates of these names that are built; archive is any directory
	// as a zip file.
	ready   []sandbox.Template
	archive []byte
}

func newImaginary() *imaginary {
	return &imaginary{box: sandbox.Sandbox{ID: "sbx-1", Name: "one", State: sandbox.StateRunning, Metadata: map[string]string{"a": "b"}}}
}

func (s *imaginary) is(id string) error {
	if id != s.box.ID && id != s.box.Name {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s; list them", id)
	}
	return nil
}

func (s *imaginary) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	return new(s.box), s.is(id)
}

func (s *imaginary) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	s.created = append(s.created, req)
	if s.fail != nil {
		return nil, s.fail
	}
	if req.Name == s.box.Name {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "the name is taken")
	}
	return &sandbox.Sandbox{ID: "sbx-2", Name: req.Name, Metadata: req.Metadata, State: sandbox.StateRunning}, nil
}

func (s *imaginary) Update(_ context.Context, id string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	s.updated = append(s.updated, req)
	return &s.box, s.is(id)
}

func (s *imaginary) SetNetwork(_ context.Context, id string, p sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	if slices.Contains(p.DenyOut, "example.com") {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "deny_out takes addresses and ranges")
	}
	s.policies = append(s.policies, p)
	return &p, s.is(id)
}

func (s *imaginary) Resume(_ context.Context, id string, _ sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	s.resumed++
	s.box.State = sandbox.StateRunning
	return new(s.box), s.is(id)
}

func (s *imaginary) Exec(_ context.Context, id string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	s.executed = append(s.executed, req)
	if err := s.is(id); err != nil {
		return nil, err
	}
	for piece := range slices.Chunk(s.output, 1000) {
		if err := sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: piece}); err != nil {
			return nil, err
		}
	}
	return &s.job, nil
}

func (s *imaginary) ListSecrets(context.Context, sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return &sandbox.List[sandbox.Secret]{Items: s.secrets}, nil
}

func (s *imaginary) GetSecret(_ context.Context, name string) (*sandbox.Secret, error) {
	for _, v := range s.secrets {
		if v.Name == name {
			return &v, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no secret %s", name)
}

func (s *imaginary) AttachSecret(ctx context.Context, id, secret, env string) (*sandbox.Sandbox, error) {
	if _, err := s.GetSecret(ctx, secret); err != nil {
		return nil, err
	}
	if s.box.Secrets[env] != "" {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "%s is bound", env)
	}
	s.box.Secrets = maps.Clone(s.box.Secrets)
	if s.box.Secrets == nil {
		s.box.Secrets = make(map[string]string)
	}
	s.box.Secrets[env] = secret
	return new(s.box), s.is(id)
}

func (s *imaginary) DetachSecret(_ context.Context, id, env string) (*sandbox.Sandbox, error) {
	delete(s.box.Secrets, env)
	return new(s.box), s.is(id)
}

// ListFiles lists as many files as the path says.
func (s *imaginary) ListFiles(_ context.Context, id string, req sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	var all, from int
	_, _ = fmt.Sscanf(req.Path, "/%d", &all)
	_, _ = fmt.Sscanf(req.Cursor, "%d", &from)
	list := &sandbox.List[sandbox.FileInfo]{Items: make([]sandbox.FileInfo, min(req.Limit, all-from))}
	if next := from + len(list.Items); next < all {
		list.NextCursor = fmt.Sprint(next)
	}
	return list, s.is(id)
}

func (s *imaginary) ListPreviews(_ context.Context, id string, _ sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	return &sandbox.List[sandbox.Preview]{Items: s.previews}, s.is(id)
}

func (s *imaginary) LinkPreview(context.Context, string, int, sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	return &sandbox.PreviewLink{URL: "http://signed"}, nil
}

func (s *imaginary) CreatePreview(_ context.Context, id string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	p := sandbox.Preview{SandboxID: id, Port: req.Port, Access: req.Access, URL: "http://made"}
	s.previews = append(s.previews, p)
	return &sandbox.NewPreview{Preview: p}, nil
}

func (s *imaginary) NetworkLog(_ context.Context, id string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	list := &sandbox.List[sandbox.NetworkEvent]{}
	for _, e := range slices.Backward(s.events) {
		if e.Kind != req.Kind || req.Verdict != "" && e.Verdict != req.Verdict {
			continue
		}
		if len(list.Items) == req.Limit {
			list.NextCursor = "more"
			break
		}
		list.Items = append(list.Items, e)
	}
	return list, s.is(id)
}

func (s *imaginary) ArchiveDir(context.Context, string, string, int64) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(s.archive)), nil
}

func (s *imaginary) ListTemplates(context.Context, sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	list := &sandbox.List[sandbox.Template]{Items: []sandbox.Template{
		{Name: "code-interpreter", State: sandbox.TemplateAvailable},
		{Name: "host", State: sandbox.TemplateReady, Resources: sandbox.Resources{VCPUs: 2}},
		{Name: "mine", State: sandbox.TemplateFailed},
	}}
	for _, t := range s.ready {
		list.Items = slices.DeleteFunc(list.Items, func(old sandbox.Template) bool { return old.Name == t.Name })
		list.Items = append(list.Items, t)
	}
	for i := range s.building {
		list.Items = append(list.Items, sandbox.Template{Name: fmt.Sprint("b", i), State: sandbox.TemplateBuilding})
	}
	return list, nil
}

func (s *imaginary) StartBuild(_ context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	if req.Name == "Bad Name" {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the name is not valid")
	}
	s.built = req
	return &sandbox.Build{ID: "bld-1", Template: req.Name, State: sandbox.BuildRunning}, nil
}

// ask calls a tool and returns its structured result as JSON, or its text if
// it failed.
func ask(t *testing.T, svc sandbox.Service, tool, args string) (structured, text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // as after the answer is sent
	res, err := dialecttest.Direct(t, superserve.New(), svc)(ctx, tool, json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Content) != 1 || res.IsError != (res.StructuredContent == nil) {
		t.Fatalf("%s: want one block, and structured content unless it failed: %+v", tool, res)
	}
	text = res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		return "", text
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), text
}

// shows checks what a tool that succeeds returns.
func shows(t *testing.T, svc sandbox.Service, tool, args, structured, text string) {
	t.Helper()
	gotS, gotT := ask(t, svc, tool, args)
	if gotS != structured || gotT != text {
		t.Errorf("%s %s returns\n%s\n%s\nwant\n%s\n%s", tool, args, gotS, gotT, structured, text)
	}
}

// refuses checks the error of a tool.
func refuses(t *testing.T, svc sandbox.Service, tool, args, text string) {
	t.Helper()
	if structured, got := ask(t, svc, tool, args); structured != "" || got != text {
		t.Errorf("%s %s returns %s\n%s\nwant\n%s", tool, args, structured, got, text)
	}
}

func TestCreateRequests(t *testing.T) {
	zero := int64(0)
	idle := int64(60)
	base := sandbox.CreateRequest{Name: "two", User: "root", LifetimeSeconds: &zero, IdleTimeoutSeconds: &zero}
	with := func(change func(r *sandbox.CreateRequest)) sandbox.CreateRequest {
		r := base
		change(&r)
		return r
	}
	for args, want := range map[string]sandbox.CreateRequest{
		`{"name":"two"}`:                                                     base,
		`{"name":"two","timeout_seconds":60}`:                                with(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds, r.OnTimeout = &idle, sandbox.ActionPause }),
		`{"name":"two","auto_delete_seconds":60}`:                            with(func(r *sandbox.CreateRequest) { r.PausedLifetimeSeconds = 60 }),
		`{"name":"two","auto_delete_seconds":0}`:                             with(func(r *sandbox.CreateRequest) { r.PausedLifetimeSeconds = 1 }),
		`{"name":"two","from_template":"superserve/base","unknown":{"x":1}}`: base,
		`{"name":"two","from_template":"superserve/python-3.11"}`:            with(func(r *sandbox.CreateRequest) { r.Template = "code-interpreter" }),
		`{"name":"two","from_template":"superserve/python-ml"}`:              with(func(r *sandbox.CreateRequest) { r.Template = "code-interpreter" }),
		`{"name":"two","from_template":"superserve/node-22"}`:                with(func(r *sandbox.CreateRequest) { r.Template = "node" }),
		`{"name":"two","from_template":"mine"}`:                              with(func(r *sandbox.CreateRequest) { r.Template = "mine" }),
		`{"name":"two","from_snapshot":"snap-1"}`:                            with(func(r *sandbox.CreateRequest) { r.Snapshot, r.User = "snap-1", "" }),
		`{"name":"two","env_vars":{"A":"1"},"secrets":{"K":"s"}}`: with(func(r *sandbox.CreateRequest) {
			r.Env, r.Secrets = map[string]string{"A": "1"}, map[string]string{"K": "s"}
		}),
		`{"name":"two","allow_out":["*.pypi.org"],"deny_out":["0.0.0.0/0"]}`: with(func(r *sandbox.CreateRequest) {
			r.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen, AllowOut: []string{"*.pypi.org"}, DenyOut: []string{"0.0.0.0/0"}}
		}),
		`{"name":"two","metadata":{"run":"7"}}`: with(func(r *sandbox.CreateRequest) { r.Metadata = map[string]string{"run": "7"} }),
		`{"name":"Zwei, mit Namen"}`: with(func(r *sandbox.CreateRequest) {
			r.Name, r.Metadata = "", map[string]string{"_superserve.name": "Zwei, mit Namen"}
		}),
	} {
		t.Run(args, func(t *testing.T) {
			svc := newImaginary()
			ask(t, svc, "sandbox_create", args)
			if diff := cmp.Diff([]sandbox.CreateRequest{want}, svc.created); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNames checks that names are arbitrary text, and can be reused.
func TestNames(t *testing.T) {
	svc := newImaginary()
	shows(t, svc, "sandbox_create", `{"name":"one","metadata":{"a":"b"}}`, `{"id":"sbx-2","name":"one","status":"active","metadata":{"a":"b"}}`, "created sandbox sbx-2 (one), status active")
	if len(svc.created) != 2 || svc.created[1].Metadata["_superserve.name"] != "one" || svc.created[1].Metadata["a"] != "b" {
		t.Errorf("asked for %+v", svc.created)
	}
	svc.box.Metadata["_superserve.name"] = "a\nsbx-9  active"
	if _, text := ask(t, svc, "sandbox_info", `{"sandbox_id":"sbx-1"}`); text != `sbx-1 (a\nsbx-9  active) — active, 0 vCPU / 0 MiB` {
		t.Error(text)
	}
	refuses(t, svc, "sandbox_create", `{"name":"`+strings.Repeat("ü", 65)+`"}`, "Invalid request: name must have 1 to 64 characters (got 65)")
	refuses(t, svc, "sandbox_create", `{"metadata":{"_Superserve.name":"x"}}`, "Invalid request: metadata keys beginning with superserve. or _superserve are reserved")
	svc.box.Metadata["_superserve.name"] = "Eins"
	shows(t, svc, "sandbox_update", `{"sandbox_id":"sbx-1","metadata":{}}`, `{"id":"sbx-1"}`, "updated sbx-1")
	if got := svc.updated[0].Metadata; !maps.Equal(got, map[string]string{"_superserve.name": "Eins"}) {
		t.Errorf("tags become %v", got)
	}
}

// TestUpdates checks that only the given fields change.
func TestUpdates(t *testing.T) {
	svc := newImaginary()
	svc.box.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages, AllowOut: []string{"a.example"}, MaxConnections: 5}
	shows(t, svc, "sandbox_update", `{"sandbox_id":"one","deny_out":["10.0.0.0/8"]}`, `{"id":"sbx-1"}`, "updated sbx-1")
	want := sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages, DenyOut: []string{"10.0.0.0/8"}, MaxConnections: 5}
	if diff := cmp.Diff([]sandbox.NetworkPolicy{want}, svc.policies); diff != "" || len(svc.updated) > 0 || svc.resumed > 0 {
		t.Errorf("policy (-want +got):\n%s, other updates %v, resumed %d times", diff, svc.updated, svc.resumed)
	}
	refuses(t, svc, "sandbox_update", `{"sandbox_id":"one","metadata":{"x":"y"},"deny_out":["example.com"]}`, "Invalid request: deny_out takes addresses and ranges")
	if len(svc.updated) > 0 {
		t.Error("part of a refused update was carried out")
	}
	ask(t, svc, "sandbox_update", `{"sandbox_id":"one","timeout_seconds":30}`)
	ask(t, svc, "sandbox_update", `{"sandbox_id":"one","timeout_seconds":null}`)
	if u := svc.updated; len(u) != 2 || *u[0].IdleTimeoutSeconds != 30 || *u[0].OnTimeout != sandbox.ActionPause || *u[1].IdleTimeoutSeconds != 0 || u[1].OnTimeout != nil {
		t.Errorf("updates %+v", svc.updated)
	}
	for args, want := range map[string]int64{"60": 60, "0": 1, "null": 0} {
		shows(t, svc, "sandbox_update", `{"sandbox_id":"one","auto_delete_seconds":`+args+`}`, `{"id":"sbx-1"}`, "updated sbx-1")
		if u := svc.updated[len(svc.updated)-1]; u.PausedLifetimeSeconds == nil || *u.PausedLifetimeSeconds != want || u.IdleTimeoutSeconds != nil {
			t.Errorf("auto_delete_seconds %s: update %+v", args, u)
		}
	}
	// The given value is read back; one second is the same as none.
	for lifetime, want := range map[int64]string{0: "", 1: `,"auto_delete_seconds":0`, 60: `,"auto_delete_seconds":60`} {
		svc.box.PausedLifetimeSeconds = lifetime
		info, _ := ask(t, svc, "sandbox_info", `{"sandbox_id":"one"}`)
		if _, got, _ := strings.Cut(info, `"0001-01-01T00:00:00.000Z"`); !strings.HasPrefix(got, want+`,"network"`) {
			t.Errorf("of a paused lifetime of %d is told %s", lifetime, info)
		}
	}
	refuses(t, svc, "sandbox_update", `{"sandbox_id":"one"}`, "Invalid request: give at least one of metadata, allow_out, deny_out, auto_delete_seconds and timeout_seconds")
	refuses(t, svc, "sandbox_update", `{"sandbox_id":"two","timeout_seconds":1}`, gone("two"))
}

func gone(id string) string {
	return "Sandbox " + id + " not found. Use sandbox_list to see existing sandboxes, or sandbox_create to make one."
}

func TestSecrets(t *testing.T) {
	used := time.Date(2026, 7, 1, 12, 0, 0, 5e6, time.UTC)
	svc := newImaginary()
	shows(t, svc, "secret_list", `{"anything":1}`, `{"secrets":[]}`, "(no secrets)")
	svc.secrets = []sandbox.Secret{
		{Name: "ai", Provider: "openai", Hosts: []string{"api.openai.com"}, Auth: sandbox.SecretAuth{Type: "header", Prefix: "Bearer "}, LastUsedAt: &used},
		{Name: "mine", Hosts: []string{"a.example", "b.example"}, Auth: sandbox.SecretAuth{Type: "header", Name: "X-Key"}},
		{Name: "old", Hosts: []string{"c.example"}, Auth: sandbox.SecretAuth{Type: "query", Name: "key"}},
	}
	shows(t, svc, "secret_list", `{}`,
		`{"secrets":[{"name":"ai","authType":"bearer","hosts":["api.openai.com"],"providerShortcut":"openai","lastUsedAt":"2026-07-01T12:00:00.005Z"},{"name":"mine","authType":"api-key","hosts":["a.example","b.example"]},{"name":"old","authType":"custom","hosts":["c.example"]}]}`,
		"ai\tbearer\tapi.openai.com\nmine\tapi-key\ta.example,b.example\nold\tcustom\tc.example")
	svc.box.State = sandbox.StatePaused
	for range 2 { // it is idempotent
		shows(t, svc, "sandbox_attach_secret", `{"sandbox_id":"sbx-1","env_key":"KEY","secret_name":"ai"}`,
			`{"sandbox_id":"sbx-1","env_key":"KEY","secret_name":"ai"}`, "bound secret ai to KEY on sbx-1")
	}
	if svc.box.State != sandbox.StateRunning {
		t.Error("the sandbox was not resumed")
	}
	refuses(t, svc, "sandbox_attach_secret", `{"sandbox_id":"sbx-1","env_key":"KEY","secret_name":"mine"}`, "Sandbox is in a conflicting state: KEY is bound. Re-check with sandbox_info.")
	refuses(t, svc, "sandbox_attach_secret", `{"sandbox_id":"sbx-1","env_key":"K2","secret_name":"none"}`, "Not found: there is no secret none")
	refuses(t, svc, "sandbox_attach_secret", `{"sandbox_id":"sbx-9","env_key":"K2","secret_name":"ai"}`, gone("sbx-9"))
	info, _ := ask(t, svc, "sandbox_info", `{"sandbox_id":"sbx-1"}`)
	if !strings.Contains(info, `"secrets":[{"env_key":"KEY","secret_name":"ai","revoked":false}]`) {
		t.Error(info)
	}
	svc.secrets = nil
	if info, _ = ask(t, svc, "sandbox_info", `{"sandbox_id":"sbx-1"}`); !strings.Contains(info, `"revoked":true`) {
		t.Error(info)
	}
	for range 2 {
		shows(t, svc, "sandbox_detach_secret", `{"sandbox_id":"sbx-1","env_key":"KEY"}`, `{"sandbox_id":"sbx-1","env_key":"KEY"}`, "unbound KEY from sbx-1")
	}
	if info, _ = ask(t, svc, "sandbox_info", `{"sandbox_id":"sbx-1"}`); strings.Contains(info, "secrets") {
		t.Error(info)
	}
}

func TestPreviews(t *testing.T) {
	svc := newImaginary()
	for range 2 {
		shows(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx-1","port":8000}`, `{"sandbox_id":"sbx-1","port":8000,"url":"http://made"}`, "http://made")
	}
	if len(svc.previews) != 1 || svc.previews[0].Access != sandbox.PreviewPublic {
		t.Errorf("made %+v", svc.previews)
	}
	// A preview that its owner made private is not opened to everybody.
	svc.previews[0].Access = sandbox.PreviewPrivate
	shows(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx-1","port":8000}`, `{"sandbox_id":"sbx-1","port":8000,"url":"http://signed"}`, "http://signed")
	if len(svc.previews) != 1 {
		t.Errorf("made %+v", svc.previews)
	}
	refuses(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx_1","port":8000}`, "Invalid sandbox id: sbx_1")
	refuses(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx-1","port":1023}`, "Port must be an integer between 1024 and 65535 (got 1023).")
	refuses(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx-2","port":1024}`, gone("sbx-2"))
	for _, port := range []string{"0", "65536", "1.5", `"80"`} {
		if _, text := ask(t, svc, "sandbox_preview_url", `{"sandbox_id":"sbx-1","port":`+port+`}`); !strings.HasPrefix(text, "MCP error -32602: Input validation error: Invalid arguments for tool sandbox_preview_url: ") {
			t.Errorf("port %s: %s", port, text)
		}
	}
}
