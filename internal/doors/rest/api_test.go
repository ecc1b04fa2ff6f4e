package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing is a service whose verbs all fail alike. Nothing else raises every
// code at will.
type failing struct {
	sandbox.Service
	err error
}

func (f failing) Create(context.Context, sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return nil, f.err
}
func (f failing) Get(context.Context, string) (*sandbox.Sandbox, error) { return nil, f.err }
func (f failing) List(context.Context, sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return nil, f.err
}
func (f failing) Update(context.Context, string, sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	return nil, f.err
}
func (f failing) Kill(context.Context, string) (*sandbox.Sandbox, error) { return nil, f.err }
func (f failing) Stats(context.Context, string) (*sandbox.Stats, error)  { return nil, f.err }
func (f failing) Audit(context.Context, sandbox.AuditRequest) (*sandbox.List[sandbox.AuditEvent], error) {
	return nil, f.err
}
func (f failing) Exec(context.Context, string, sandbox.ExecRequest, sandbox.JobSink) (*sandbox.Job, error) {
	return nil, f.err
}
func (f failing) Attach(context.Context, string, string, sandbox.AttachRequest, sandbox.JobSink) (*sandbox.Job, error) {
	return nil, f.err
}
func (f failing) GetJob(context.Context, string, string) (*sandbox.Job, error) { return nil, f.err }
func (f failing) ListJobs(context.Context, string, sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return nil, f.err
}
func (f failing) ReadOutput(context.Context, string, string, sandbox.OutputRequest) (*sandbox.Output, error) {
	return nil, f.err
}
func (f failing) WriteInput(context.Context, string, string, []byte, bool) error { return f.err }
func (f failing) ResizeTerminal(context.Context, string, string, sandbox.TerminalSize) error {
	return f.err
}
func (f failing) SignalJob(context.Context, string, string, string, int64) (*sandbox.Job, error) {
	return nil, f.err
}
func (f failing) StatFile(context.Context, string, string) (*sandbox.FileInfo, error) {
	return nil, f.err
}
func (f failing) ListFiles(context.Context, string, sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	return nil, f.err
}
func (f failing) ReadFile(context.Context, string, sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	return nil, f.err
}
func (f failing) WriteFile(context.Context, string, sandbox.WriteFileRequest, io.Reader) (*sandbox.FileInfo, error) {
	return nil, f.err
}
func (f failing) EditFile(context.Context, string, sandbox.EditFileRequest) (*sandbox.EditFileResult, error) {
	return nil, f.err
}
func (f failing) MakeDir(context.Context, string, sandbox.MakeDirRequest) (*sandbox.FileInfo, error) {
	return nil, f.err
}
func (f failing) MakeSymlink(context.Context, string, sandbox.MakeSymlinkRequest) (*sandbox.FileInfo, error) {
	return nil, f.err
}
func (f failing) MoveFile(context.Context, string, sandbox.MoveFileRequest) (*sandbox.FileInfo, error) {
	return nil, f.err
}
func (f failing) DeleteFile(context.Context, string, string, bool) error { return f.err }
func (f failing) ArchiveDir(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, f.err
}
func (f failing) WatchFiles(context.Context, string, sandbox.WatchRequest, func(sandbox.WatchEvent) error) error {
	return f.err
}
func (f failing) ListTemplates(context.Context, sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return nil, f.err
}
func (f failing) GetTemplate(context.Context, string) (*sandbox.Template, error) { return nil, f.err }
func (f failing) BuildTemplate(context.Context, sandbox.BuildTemplateRequest, func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	return nil, f.err
}
func (f failing) CreateKey(context.Context, sandbox.CreateKeyRequest) (*sandbox.NewKey, error) {
	return nil, f.err
}
func (f failing) ListKeys(context.Context, sandbox.Page) (*sandbox.List[sandbox.Key], error) {
	return nil, f.err
}
func (f failing) Pause(context.Context, string) (*sandbox.Sandbox, error) { return nil, f.err }
func (f failing) Resume(context.Context, string, sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return nil, f.err
}
func (f failing) Fork(context.Context, string, sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return nil, f.err
}
func (f failing) CreateSnapshot(context.Context, string, sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return nil, f.err
}
func (f failing) GetSnapshot(context.Context, string) (*sandbox.Snapshot, error) { return nil, f.err }
func (f failing) ListSnapshots(context.Context, sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return nil, f.err
}
func (f failing) RestoreSnapshot(context.Context, string, sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return nil, f.err
}
func (f failing) DeleteSnapshot(context.Context, string) (*sandbox.Snapshot, error) {
	return nil, f.err
}
func (f failing) Diff(context.Context, string, sandbox.DiffRequest) (*sandbox.Diff, error) {
	return nil, f.err
}
func (f failing) Merge(context.Context, string, sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return nil, f.err
}
func (f failing) Try(context.Context, string, sandbox.TryRequest, func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return nil, f.err
}
func (f failing) ListOrphans(context.Context, sandbox.Page) (*sandbox.List[sandbox.Orphan], error) {
	return nil, f.err
}
func (f failing) RecoverOrphan(context.Context, string) (*sandbox.Recovered, error) {
	return nil, f.err
}
func (f failing) CheckMachine(context.Context) (*sandbox.MachineReport, error) { return nil, f.err }
func (f failing) ListApprovals(context.Context, sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return nil, f.err
}
func (f failing) GetApproval(context.Context, string) (*sandbox.Approval, error) { return nil, f.err }
func (f failing) AnswerApproval(context.Context, string, sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	return nil, f.err
}
func (f failing) RevokeKey(context.Context, string) (*sandbox.Key, error) { return nil, f.err }

// verbs calls each verb of a service once.
func verbs(ctx context.Context, s sandbox.Service) map[string]error {
	out := map[string]error{}
	note := func(name string) func(any, error) { return func(_ any, err error) { out[name] = err } }
	note("Create")(s.Create(ctx, sandbox.CreateRequest{}))
	note("Get")(s.Get(ctx, "x"))
	note("List")(s.List(ctx, sandbox.ListRequest{}))
	note("Update")(s.Update(ctx, "x", sandbox.UpdateRequest{}))
	note("Kill")(s.Kill(ctx, "x"))
	note("Stats")(s.Stats(ctx, "x"))
	note("Audit")(s.Audit(ctx, sandbox.AuditRequest{}))
	note("Pause")(s.Pause(ctx, "x"))
	note("Resume")(s.Resume(ctx, "x", sandbox.ResumeRequest{}))
	note("Fork")(s.Fork(ctx, "x", sandbox.ForkRequest{}))
	note("CreateSnapshot")(s.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{}))
	note("GetSnapshot")(s.GetSnapshot(ctx, "p"))
	note("ListSnapshots")(s.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{}))
	note("RestoreSnapshot")(s.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Snapshot: "p"}))
	note("DeleteSnapshot")(s.DeleteSnapshot(ctx, "p"))
	note("Diff")(s.Diff(ctx, "x", sandbox.DiffRequest{}))
	note("Merge")(s.Merge(ctx, "x", sandbox.MergeRequest{Winner: "y"}))
	note("Try")(s.Try(ctx, "x", sandbox.TryRequest{}, nil))
	note("Exec")(s.Exec(ctx, "x", sandbox.ExecRequest{}, nil))
	note("Attach")(s.Attach(ctx, "x", "j", sandbox.AttachRequest{}, nil))
	note("GetJob")(s.GetJob(ctx, "x", "j"))
	note("ListJobs")(s.ListJobs(ctx, "x", sandbox.Page{}))
	note("ReadOutput")(s.ReadOutput(ctx, "x", "j", sandbox.OutputRequest{Stream: sandbox.Stdout}))
	out["WriteInput"] = s.WriteInput(ctx, "x", "j", []byte("x"), true)
	out["ResizeTerminal"] = s.ResizeTerminal(ctx, "x", "j", sandbox.TerminalSize{Cols: 1, Rows: 1})
	note("SignalJob")(s.SignalJob(ctx, "x", "j", "TERM", 0))
	note("StatFile")(s.StatFile(ctx, "x", "f"))
	note("ListFiles")(s.ListFiles(ctx, "x", sandbox.ListFilesRequest{Path: "f"}))
	note("ReadFile")(s.ReadFile(ctx, "x", sandbox.ReadFileRequest{Path: "f"}))
	note("WriteFile")(s.WriteFile(ctx, "x", sandbox.WriteFileRequest{Path: "f"}, strings.NewReader("content")))
	note("EditFile")(s.EditFile(ctx, "x", sandbox.EditFileRequest{Path: "f"}))
	note("MakeDir")(s.MakeDir(ctx, "x", sandbox.MakeDirRequest{Path: "f"}))
	note("MakeSymlink")(s.MakeSymlink(ctx, "x", sandbox.MakeSymlinkRequest{}))
	note("MoveFile")(s.MoveFile(ctx, "x", sandbox.MoveFileRequest{From: "f", To: "g"}))
	out["DeleteFile"] = s.DeleteFile(ctx, "x", "f", true)
	note("ArchiveDir")(s.ArchiveDir(ctx, "x", "f", 0))
	out["WatchFiles"] = s.WatchFiles(ctx, "x", sandbox.WatchRequest{Path: "f"}, func(sandbox.WatchEvent) error { return nil })
	note("ListTemplates")(s.ListTemplates(ctx, sandbox.Page{}))
	note("GetTemplate")(s.GetTemplate(ctx, "t"))
	note("BuildTemplate")(s.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "t"}, nil))
	note("CreateKey")(s.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k"}))
	note("ListKeys")(s.ListKeys(ctx, sandbox.Page{}))
	note("ListOrphans")(s.ListOrphans(ctx, sandbox.Page{}))
	note("RecoverOrphan")(s.RecoverOrphan(ctx, "o"))
	note("CheckMachine")(s.CheckMachine(ctx))
	note("ListApprovals")(s.ListApprovals(ctx, sandbox.ListApprovalsRequest{}))
	note("GetApproval")(s.GetApproval(ctx, "a"))
	note("AnswerApproval")(s.AnswerApproval(ctx, "a", sandbox.AnswerApprovalRequest{}))
	note("RevokeKey")(s.RevokeKey(ctx, "k"))
	return out
}

// serve starts the interface over a service and returns its URL and a client.
func serve(t *testing.T, svc sandbox.Service) (string, *client.Client) {
	t.Helper()
	srv := httptest.NewServer(rest.New(rest.Config{Service: svc, Version: "1.2.3"}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{URL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return srv.URL, c
}

func TestErrorsAreTheSameOnBothSides(t *testing.T) {
	for _, code := range []sandbox.Code{
		sandbox.CodeInvalid, sandbox.CodeUnauthenticated, sandbox.CodeForbidden, sandbox.CodeNotFound,
		sandbox.CodeConflict, sandbox.CodeNotRunning, sandbox.CodeQuotaExceeded, sandbox.CodeTooLarge,
		sandbox.CodeTimeout, sandbox.CodeCancelled, sandbox.CodeUnsupported, sandbox.CodeUnavailable, sandbox.CodeInternal,
	} {
		t.Run(string(code), func(t *testing.T) {
			want := sandbox.Wrap(code, errors.New("secret cause"), "it is <so> & \"so\" ünd söme")
			want.RetryAfter = 61500 * time.Millisecond // longer than a client repeats a call
			_, c := serve(t, failing{err: want})
			got := verbs(t.Context(), c)
			if len(got) != 49 {
				t.Errorf("%d verbs were called, want 49", len(got))
			}
			for verb, err := range got {
				e, ok := errors.AsType[*sandbox.Error](err)
				if !ok || e.Code != code || e.Message != want.Message || e.RetryAfter != want.RetryAfter {
					t.Errorf("%s: got %#v, want code %s, the message and a retry after 61.5s", verb, err, code)
				}
				if ok && strings.Contains(e.Detail(), "secret") {
					t.Errorf("%s tells the cause: %s", verb, e.Detail())
				}
			}
		})
	}
}

func TestUnknownErrorsTellNothing(t *testing.T) {
	_, c := serve(t, failing{err: fmt.Errorf("open /secret/path: %w", os.ErrPermission)})
	for verb, err := range verbs(t.Context(), c) {
		if sandbox.CodeOf(err) != sandbox.CodeInternal || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an internal error without its cause", verb, err)
		}
	}
}

func TestProblems(t *testing.T) {
	quota := sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many")
	quota.RetryAfter = 1500 * time.Millisecond
	for _, c := range []struct {
		err    error
		status int
		header map[string]string
	}{
		{sandbox.Errorf(sandbox.CodeInvalid, "m"), 400, nil},
		{sandbox.Errorf(sandbox.CodeUnauthenticated, "m"), 401, map[string]string{"WWW-Authenticate": `Bearer realm="cove"`}},
		{sandbox.Errorf(sandbox.CodeForbidden, "m"), 403, nil},
		{sandbox.Errorf(sandbox.CodeNotFound, "m"), 404, nil},
		{sandbox.Errorf(sandbox.CodeConflict, "m"), 409, nil},
		{sandbox.Errorf(sandbox.CodeNotRunning, "m"), 409, nil},
		{quota, 429, map[string]string{"Retry-After": "2"}},
		{sandbox.Errorf(sandbox.CodeTooLarge, "m"), 413, nil},
		{sandbox.Errorf(sandbox.CodeTimeout, "m"), 504, nil},
		{sandbox.Errorf(sandbox.CodeCancelled, "m"), 499, nil},
		{sandbox.Errorf(sandbox.CodeUnsupported, "m"), 501, nil},
		{sandbox.Errorf(sandbox.CodeUnavailable, "m"), 503, nil},
		{errors.New("m"), 500, nil},
		{sandbox.Errorf("no_such_code", "m"), 500, nil},
	} {
		url, _ := serve(t, failing{err: c.err})
		// A verb that answers with a value, one with a stream, one with bytes.
		for _, path := range []string{"/v1/sandboxes/x", "/v1/sandboxes/x/files/watch?path=p", "/v1/sandboxes/x/files/content?path=p"} {
			resp, body := fetch(t, http.MethodGet, url+path, "", "")
			if resp.StatusCode != c.status || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%v on %s: got %s of type %s, want %d and a problem", c.err, path, resp.Status, resp.Header.Get("Content-Type"), c.status)
			}
			for name, want := range c.header {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%v on %s: header %s is %q, want %q", c.err, path, name, got, want)
				}
			}
			var p rest.Problem
			if err := json.Unmarshal(body, &p); err != nil || p.Status != c.status || p.Type != "about:blank" || p.Title == "" {
				t.Errorf("%v on %s: problem %s", c.err, path, body)
			}
		}
	}
}

func fetch(t *testing.T, method, url, contentType, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return resp, data
}

func TestRefused(t *testing.T) {
	// No verb may be reached: all would panic.
	url, _ := serve(t, nil)
	const js = "application/json"
	for _, c := range []struct {
		name, method, path, contentType, body string
		status                                int
		says                                  string
	}{
		{"unknown member", "POST", "/v1/sandboxes", js, `{"nmae":"x"}`, 400, "nmae"},
		{"unknown member within", "POST", "/v1/sandboxes", js, `{"resources":{"cpus":2}}`, 400, "cpus"},
		{"member in other case", "POST", "/v1/sandboxes", js, `{"Name":"x"}`, 400, "Name"},
		{"wrong type", "POST", "/v1/sandboxes", js, `{"resources":{"vcpus":"2"}}`, 400, "vcpus"},
		{"fraction", "POST", "/v1/sandboxes", js, `{"resources":{"vcpus":1.5}}`, 400, "vcpus"},
		{"huge number", "POST", "/v1/sandboxes", js, `{"resources":{"memory_mib":1e30}}`, 400, ""},
		{"not UTF-8", "POST", "/v1/sandboxes", js, "{\"name\":\"\xff\"}", 400, "UTF-8"},
		{"two values", "POST", "/v1/sandboxes", js, `{} {}`, 400, "more than one"},
		{"no JSON", "POST", "/v1/sandboxes", js, `{`, 400, ""},
		{"no body", "POST", "/v1/sandboxes", js, ``, 400, "required"},
		{"a form", "POST", "/v1/sandboxes", "application/x-www-form-urlencoded", `name=x`, 415, "Content-Type: application/json"},
		{"plain text", "POST", "/v1/sandboxes", "text/plain", `{}`, 415, "Content-Type: application/json"},
		{"too large", "POST", "/v1/sandboxes", js, `{"name":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "too large"},
		{"unknown parameter", "GET", "/v1/sandboxes?stat=running", "", "", 400, "stat"},
		{"parameter twice", "GET", "/v1/sandboxes?name=a&name=b", "", "", 400, "once"},
		{"malformed query", "GET", "/v1/sandboxes?name=%zz", "", "", 400, "malformed"},
		{"number in words", "GET", "/v1/sandboxes?limit=ten", "", "", 400, "limit"},
		{"metadata without value", "GET", "/v1/sandboxes?metadata=a", "", "", 400, "key=value"},
		{"metadata key malformed", "GET", "/v1/sandboxes?metadata=100%25%3D1", "", "", 400, "%25"},
		{"metadata twice", "GET", "/v1/sandboxes?metadata=a%3D1&metadata=a%3D2", "", "", 400, "twice"},
		{"unknown path", "GET", "/v1/nothing", "", "", 404, "no such path"},
		{"unknown method", "PUT", "/v1/sandboxes", js, "{}", 405, "GET, HEAD, POST"},
		{"unknown upload parameter", "PUT", "/v1/sandboxes/x/files/content?path=p&perm=0600", "application/octet-stream", "x", 400, "perm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := fetch(t, c.method, url+c.path, c.contentType, c.body)
			var p rest.Problem
			if err := json.Unmarshal(body, &p); err != nil {
				t.Fatalf("%s: %s", resp.Status, body)
			}
			if resp.StatusCode != c.status || p.Status != c.status || !strings.Contains(p.Detail, c.says) {
				t.Errorf("got %s %q, want %d that says %q", resp.Status, p.Detail, c.status, c.says)
			}
			if len(p.Detail) > 500 {
				t.Errorf("the detail has %d bytes", len(p.Detail))
			}
		})
	}
}

func TestServerItself(t *testing.T) {
	url, c := serve(t, nil)
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if v, err := c.Version(t.Context()); err != nil || v != "1.2.3" {
		t.Errorf("version %q, %v", v, err)
	}
	want, err := rest.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	resp, body := fetch(t, http.MethodGet, url+"/v1/openapi.yaml", "", "")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/yaml" || !bytes.Equal(body, want) {
		t.Errorf("description: %s %s, %d bytes; want those of the file", resp.Status, resp.Header.Get("Content-Type"), len(body))
	}
	for name, version := range map[string]string{"openapi.json": "3.1.0", "openapi-3.0.json": "3.0.3", "openapi-3.0.yaml": "3.0.3"} {
		resp, body := fetch(t, http.MethodGet, url+"/v1/"+name, "", "")
		if resp.StatusCode != 200 || !bytes.Contains(body[:min(len(body), 1<<20)], []byte(version)) || !bytes.Contains(body, []byte("Kill ends")) && !bytes.Contains(body, []byte("Ends a sandbox")) {
			t.Errorf("%s: %s, %d bytes", name, resp.Status, len(body))
		}
	}
	for path, want := range map[string]bool{"/healthz": true, "/v1/version": true, "/v1/versions": false, "/v1/sandboxes": false} {
		if got := rest.Open(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)); got != want {
			t.Errorf("%s is open: %v, want %v", path, got, want)
		}
	}
}

func TestOpenAPIFileIsCurrent(t *testing.T) {
	want, err := rest.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("api/openapi.yaml is not current; run: go run ./internal/doors/rest/gen api/openapi.yaml\n%.2000s", diff)
	}
}
