package rest_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// broken is a provider of two templates, one of which fails to build.
type broken struct{ *faketemplates.Provider }

func newBroken() broken {
	s := faketemplates.New("/",
		sandbox.Template{Name: "broken", Source: "debian", State: sandbox.TemplateAvailable},
		sandbox.Template{Name: "host", Source: "host", State: sandbox.TemplateReady, Digest: "sha256-1"},
	)
	s.OnBase = func(_ context.Context, spec *sandbox.TemplateSpec, _ func(string, float64, string)) error {
		if spec.Description == "broken" {
			return sandbox.Errorf(sandbox.CodeUnavailable, "the mirror does not answer; try again")
		}
		return nil
	}
	return broken{s}
}

func (b broken) Plan(ctx context.Context, req sandbox.BuildTemplateRequest) (*image.Plan, error) {
	p, err := b.Provider.Plan(ctx, req)
	if req.Name == "broken" {
		p.Spec.Description = "broken"
	}
	return p, err
}

// newService returns a real service over an engine in memory.
func newService(t *testing.T) *service.Service {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "cove.db")
	sqlitetest.New(t, path)
	st, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	state := memory.NewState(dir)
	eng := memory.New(state)
	svc, err := service.New(service.Config{
		Store: st, Engine: eng, Templates: newBroken(), Quota: store.Quota{Sandboxes: 3}, BuildDir: filepath.Join(dir, "builds"),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(svc.Close(), eng.Close(), state.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return svc
}

// asLocal lets every request of a handler be the local user's.
func asLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), sandbox.LocalCaller())))
	})
}

// remote returns a client of a service.
func remote(t *testing.T, svc sandbox.Service) *client.Client {
	t.Helper()
	srv := httptest.NewServer(asLocal(rest.New(rest.Config{Service: svc})))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{URL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// note is the result of a step of the contract.
type note struct{ Step, Value, Error string }

// volatile is what differs from one run to the next.
var volatile = regexp.MustCompile(`(sbx|key|job|bld|sn[a-z]*)-[0-9a-z]{8,}|cove_[0-9A-Z]{4,}…?|\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-][0-9:]+)|"(duration_ms|size_bytes|pid|cpu_seconds|memory_bytes|private_bytes|disk_bytes|processes|network_in_bytes|network_out_bytes|id|uid|gid)":[0-9.]+|/tmp/[^" ]*/`)

func normal(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return volatile.ReplaceAllString(string(data), "*")
}

// conversation calls verbs of a service and records their answers.
func conversation(ctx context.Context, s sandbox.Service) []note {
	var notes []note
	step := func(name string, v any, err error) {
		n := note{Step: name, Value: normal(v)}
		if err != nil {
			e, _ := errors.AsType[*sandbox.Error](err)
			if e == nil {
				e = sandbox.Errorf("no domain error", "%s", err)
			}
			n.Value = ""
			n.Error = volatile.ReplaceAllString(fmt.Sprintf("%s: %s (retry %v)", e.Code, e.Message, e.RetryAfter > 0), "*")
		}
		notes = append(notes, n)
	}
	zero, hour := int64(0), int64(3600)
	sb, err := s.Create(ctx, sandbox.CreateRequest{
		Name: "work", Namespace: "ns", Metadata: map[string]string{"a": "1", "100%= b": "ü&"}, Env: map[string]string{"GREETING": "hej"},
		Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 256}, LifetimeSeconds: &zero, IdleTimeoutSeconds: &hour, OnTimeout: sandbox.ActionKill,
	})
	step("create", sb, err)
	_, err = s.Create(ctx, sandbox.CreateRequest{Name: "work"})
	step("create: name taken", nil, err)
	_, err = s.Create(ctx, sandbox.CreateRequest{Template: "none"})
	step("create: no template", nil, err)
	_, err = s.Create(ctx, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: -1}})
	step("create: negative", nil, err)
	got, err := s.Get(ctx, "work")
	step("get", got, err)
	for _, name := range []string{"nobody", "sbx-0000000000000000", "a/b", "a?b", "ü", "a b", "%2e"} {
		_, err = s.Get(ctx, name)
		step("get "+name, nil, err)
	}
	list, err := s.List(ctx, sandbox.ListRequest{Namespace: "ns", Metadata: map[string]string{"100%= b": "ü&"}, States: []sandbox.State{sandbox.StateRunning, sandbox.StateFailed}})
	step("list", list, err)
	list, err = s.List(ctx, sandbox.ListRequest{Metadata: map[string]string{"a": "2"}})
	step("list: none", list, err)
	_, err = s.List(ctx, sandbox.ListRequest{Page: sandbox.Page{Limit: -1}})
	step("list: negative", nil, err)
	_, err = s.List(ctx, sandbox.ListRequest{Page: sandbox.Page{Cursor: "bad cursor"}})
	step("list: cursor", nil, err)
	mem := int64(512)
	sb, err = s.Update(ctx, "work", sandbox.UpdateRequest{MemoryMiB: &mem, Metadata: map[string]string{}, LifetimeSeconds: &hour})
	step("update", sb, err)
	step("update: metadata is gone", len(sb.Metadata), nil)
	sb, err = s.Update(ctx, "work", sandbox.UpdateRequest{Env: map[string]string{}})
	step("update: env is gone", sb, err)

	events, job, err := run(ctx, s, sandbox.ExecRequest{Shell: "echo out; echo err >&2; exit 3", Env: map[string]string{"X": "1"}})
	step("exec", job, err)
	step("exec: events", events, nil)
	_, job, err = run(ctx, s, sandbox.ExecRequest{Command: []string{"cat"}, Stdin: []byte{0, 0xff, 'x'}})
	step("exec: stdin", job, err)
	_, job, err = run(ctx, s, sandbox.ExecRequest{Command: []string{"sleep", "60"}, TimeoutMS: 50})
	step("exec: timeout", job.EndCause, err)
	_, _, err = run(ctx, s, sandbox.ExecRequest{Command: []string{"/no/such/program"}})
	step("exec: no program", nil, err)
	_, _, err = run(ctx, s, sandbox.ExecRequest{})
	step("exec: nothing", nil, err)
	_, _, err = run(ctx, s, sandbox.ExecRequest{Command: []string{"true"}, WorkDir: "/no/such/dir"})
	step("exec: no directory", nil, err)
	broken := errors.New("sink is full")
	_, err = s.Exec(ctx, "work", sandbox.ExecRequest{Shell: "echo x; sleep 60"}, func(ev sandbox.JobEvent) error {
		if len(ev.Data) > 0 {
			return broken
		}
		return nil
	})
	step("exec: sink fails", errors.Is(err, broken), nil)

	back, err := s.Exec(ctx, "work", sandbox.ExecRequest{Command: []string{"cat"}, Background: true, OpenStdin: true}, nil)
	step("background", back, err)
	step("input", nil, s.WriteInput(ctx, "work", back.ID, []byte("line\n"), true))
	for _, req := range []sandbox.AttachRequest{{}, {StdoutOffset: 1}, {LastBytes: 3, MaxBytes: 2}} {
		var attached bytes.Buffer
		done, err := s.Attach(ctx, "work", back.ID, req, func(ev sandbox.JobEvent) error {
			attached.Write(ev.Data)
			return nil
		})
		step("attach", done, err)
		step("attach: output", attached.String(), nil)
	}
	out, err := s.ReadOutput(ctx, "work", back.ID, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: 2, Limit: 2})
	step("output", out, err)
	_, err = s.ReadOutput(ctx, "work", back.ID, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: -1})
	step("output: negative", nil, err)
	_, err = s.GetJob(ctx, "work", "job-none")
	step("job: none", nil, err)
	jobs, err := s.ListJobs(ctx, "work", sandbox.Page{})
	step("jobs", len(jobs.Items), err)
	step("resize: no terminal", nil, s.ResizeTerminal(ctx, "work", back.ID, sandbox.TerminalSize{Cols: 1, Rows: 1}))
	_, err = s.SignalJob(ctx, "work", back.ID, "NOSUCH", 0)
	step("signal: none", nil, err)
	notes = append(notes, files(ctx, s)...)
	notes = append(notes, times(ctx, s)...)
	notes = append(notes, ending(ctx, s)...)
	return notes
}

// files is the part of the conversation about files.
func files(ctx context.Context, s sandbox.Service) []note {
	var notes []note
	step := func(name string, v any, err error) {
		n := note{Step: name, Value: normal(v)}
		if err != nil {
			n = note{Step: name, Error: volatile.ReplaceAllString(string(sandbox.CodeOf(err))+": "+err.Error(), "*")}
		}
		notes = append(notes, n)
	}
	info, err := s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/ü&x?.txt", Mode: "0600", MakeParents: true}, strings.NewReader("one two"))
	step("write", info, err)
	_, err = s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/ü&x?.txt", Exclusive: true}, strings.NewReader("x"))
	step("write: exclusive", nil, err)
	_, err = s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/no/parents"}, strings.NewReader("x"))
	step("write: no parents", nil, err)
	_, err = s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/y", Mode: "0"}, strings.NewReader("x"))
	step("write: odd mode", nil, err)
	broken := errors.New("reader is broken")
	_, err = s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/broken"}, io.MultiReader(strings.NewReader("half"), failingReader{broken}))
	step("write: broken reader", errors.Is(err, broken), nil)
	_, err = s.StatFile(ctx, "work", "dir/broken")
	step("write: broken reader wrote nothing", nil, err)
	info, err = s.WriteFile(ctx, "work", sandbox.WriteFileRequest{Path: "dir/ü&x?.txt", Append: true}, strings.NewReader(" three"))
	step("append", info, err)
	info, err = s.StatFile(ctx, "work", "dir/ü&x?.txt")
	step("stat", info, err)
	for _, path := range []string{"", "a\x00b", "no/such", "\xff", strings.Repeat("x", 5000)} {
		_, err = s.StatFile(ctx, "work", path)
		step(fmt.Sprintf("stat %.10q", path), nil, err)
	}
	for _, r := range []sandbox.ReadFileRequest{{}, {Offset: 4}, {Offset: 4, Limit: 3}, {Offset: 100}, {Offset: -1}, {Limit: -1}} {
		r.Path = "dir/ü&x?.txt"
		content, info, err := readAll(ctx, s, r)
		step(fmt.Sprintf("read %d+%d", r.Offset, r.Limit), []any{content, info.Name, info.Size}, err)
	}
	_, _, err = readAll(ctx, s, sandbox.ReadFileRequest{Path: "dir"})
	step("read: directory", nil, err)
	edit, err := s.EditFile(ctx, "work", sandbox.EditFileRequest{Path: "dir/ü&x?.txt", OldText: "two", NewText: "<2>"})
	step("edit", edit, err)
	_, err = s.EditFile(ctx, "work", sandbox.EditFileRequest{Path: "dir/ü&x?.txt", OldText: "none"})
	step("edit: nothing", nil, err)
	info, err = s.MakeDir(ctx, "work", sandbox.MakeDirRequest{Path: "dir/sub/deep", Mode: "0700"})
	step("mkdir", info, err)
	info, err = s.MakeSymlink(ctx, "work", sandbox.MakeSymlinkRequest{Path: "dir/new/link", Target: "../nowhere", MakeParents: true})
	step("symlink", info, err)
	_, err = s.MakeSymlink(ctx, "work", sandbox.MakeSymlinkRequest{Path: "dir/new/link", Target: "x"})
	step("symlink: taken", nil, err)
	info, err = s.MoveFile(ctx, "work", sandbox.MoveFileRequest{From: "dir/ü&x?.txt", To: "dir/sub/z.txt"})
	step("move", info, err)
	list, err := s.ListFiles(ctx, "work", sandbox.ListFilesRequest{Path: "dir", Depth: 3})
	step("list", list, err)
	list, err = s.ListFiles(ctx, "work", sandbox.ListFilesRequest{Path: "dir", Depth: 3, Page: sandbox.Page{Limit: 1}})
	step("list: page", len(list.Items), err)
	names, err := archived(ctx, s, "dir", 0)
	step("archive", names, err)
	_, err = archived(ctx, s, "dir", 10)
	step("archive: too large", nil, err)
	_, err = archived(ctx, s, "none", 0)
	step("archive: none", nil, err)
	step("delete: not empty", nil, s.DeleteFile(ctx, "work", "dir", false))
	step("delete", nil, s.DeleteFile(ctx, "work", "dir", true))
	step("delete: none", nil, s.DeleteFile(ctx, "work", "dir", true))
	step("watch: none", nil, s.WatchFiles(ctx, "work", sandbox.WatchRequest{Path: "none"}, nil))
	step("watch", watched(ctx, s), nil)
	return notes
}

// times is the part about kept states. It records content of a sandbox only if that is
// the same at any time.
func times(ctx context.Context, s sandbox.Service) []note {
	var notes []note
	step := func(name string, v any, err error) {
		n := note{Step: name, Value: normal(v)}
		if err != nil {
			n = note{Step: name, Error: volatile.ReplaceAllString(string(sandbox.CodeOf(err))+": "+err.Error(), "*")}
		}
		notes = append(notes, n)
	}
	for _, name := range []string{"nobody", "work"} {
		paused, err := s.Pause(ctx, name)
		step("pause "+name, paused, err)
		resumed, err := s.Resume(ctx, name, sandbox.ResumeRequest{})
		step("resume "+name, resumed, err)
		for _, kind := range []sandbox.SnapshotKind{"", sandbox.SnapshotFiles, "half"} {
			kept, err := s.CreateSnapshot(ctx, name, sandbox.CreateSnapshotRequest{Name: "kept" + string(kind), Kind: kind})
			step(fmt.Sprintf("snapshot %s %q", name, kind), kept, err)
		}
		list, err := s.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: name})
		step("snapshots "+name, list, err)
		diff, err := s.Diff(ctx, name, sandbox.DiffRequest{Against: "kept", Paths: []string{"/none"}})
		step("diff "+name, diff, err)
		_, err = s.Diff(ctx, name, sandbox.DiffRequest{Paths: []string{"relative"}, Limit: -1})
		step("diff: wrong "+name, nil, err)
		back, err := s.RestoreSnapshot(ctx, name, sandbox.RestoreRequest{Snapshot: "kept"})
		step("restore "+name, back, err)
		_, err = s.RestoreSnapshot(ctx, name, sandbox.RestoreRequest{Snapshot: "kept", Step: -1})
		step("restore: both "+name, nil, err)
		_, err = s.Fork(ctx, name, sandbox.ForkRequest{Count: -1})
		step("fork: negative "+name, nil, err)
		children, err := s.Fork(ctx, name, sandbox.ForkRequest{Name: "child", Env: map[string]string{"A": "1"}, Metadata: map[string]string{"b": "2"}})
		step("fork "+name, children, err)
		merged, err := s.Merge(ctx, name, sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles, KillWinner: true})
		step("merge "+name, merged, err)
		_, err = s.Merge(ctx, name, sandbox.MergeRequest{Winner: "nobody", Kind: "half"})
		step("merge: nobody "+name, nil, err)
		var events []sandbox.TryEvent
		tried, err := s.Try(ctx, name, sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "echo $X; exit 3", Env: map[string]string{"X": "1"}}}, NoDiff: true},
			func(ev sandbox.TryEvent) error {
				events = append(events, ev)
				return nil
			})
		step("try "+name, tried, err)
		step("try: events "+name, events, nil)
		_, err = s.Try(ctx, name, sandbox.TryRequest{}, nil)
		step("try: nothing "+name, nil, err)
	}
	for _, name := range []string{"kept", "keptfiles", "none"} {
		_, err := s.GetSnapshot(ctx, name)
		step("snapshot "+name, err == nil, err)
		_, err = s.DeleteSnapshot(ctx, name)
		step("delete snapshot "+name, err == nil, err)
	}
	if _, err := s.Get(ctx, "child"); err == nil {
		_, err = s.Kill(ctx, "child")
		step("kill child", nil, err)
	}
	return notes
}

// ending is the part about templates, keys, audit, and the end.
func ending(ctx context.Context, s sandbox.Service) []note {
	var notes []note
	step := func(name string, v any, err error) {
		n := note{Step: name, Value: normal(v)}
		if err != nil {
			n = note{Step: name, Error: volatile.ReplaceAllString(string(sandbox.CodeOf(err))+": "+err.Error(), "*")}
		}
		notes = append(notes, n)
	}
	templates, err := s.ListTemplates(ctx, sandbox.Page{})
	step("templates", templates, err)
	_, err = s.GetTemplate(ctx, "none")
	step("template: none", nil, err)
	for _, name := range []string{"host", "broken", "no name"} {
		var events []sandbox.BuildEvent
		built, err := s.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: name}, func(ev sandbox.BuildEvent) error {
			events = append(events, ev)
			return nil
		})
		step("build "+name, built, err)
		step("build: events", events, nil)
	}
	notes = append(notes, builds(ctx, s)...)
	key, err := s.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}, ExpiresInSeconds: 60})
	step("key", key, err)
	_, err = s.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{"all"}})
	step("key: no scope", nil, err)
	keys, err := s.ListKeys(ctx, sandbox.Page{Limit: 10})
	step("keys", keys, err)
	revoked, err := s.RevokeKey(ctx, key.ID)
	step("revoke", revoked, err)
	_, err = s.RevokeKey(ctx, "key-none")
	step("revoke: none", nil, err)
	stats, err := s.Stats(ctx, "work")
	step("stats", stats.MemoryMaxBytes, err)
	audit, err := s.Audit(ctx, sandbox.AuditRequest{Page: sandbox.Page{Limit: 3}})
	step("audit", audit.Items, err)
	for i := range 3 {
		_, err = s.Create(ctx, sandbox.CreateRequest{})
		step(fmt.Sprintf("create more %d", i), err == nil, err)
	}
	killed, err := s.Kill(ctx, "work")
	step("kill", killed, err)
	_, err = s.Exec(ctx, killed.ID, sandbox.ExecRequest{Command: []string{"true"}}, nil)
	step("exec: killed", nil, err)
	_, err = s.StatFile(ctx, killed.ID, "/")
	step("stat: killed", nil, err)
	killed, err = s.Kill(ctx, killed.ID)
	step("kill again", killed, err)
	return notes
}

func run(ctx context.Context, s sandbox.Service, req sandbox.ExecRequest) (map[sandbox.Stream]string, *sandbox.Job, error) {
	output := map[sandbox.Stream]string{}
	job, err := s.Exec(ctx, "work", req, func(ev sandbox.JobEvent) error {
		if ev.Job != nil {
			output["jobs"] += string(ev.Job.State) + " "
			return nil
		}
		output[ev.Stream] += fmt.Sprintf("%d%q", ev.Offset, ev.Data)
		return nil
	})
	if job == nil {
		job = &sandbox.Job{}
	}
	return output, job, err
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func readAll(ctx context.Context, s sandbox.Service, req sandbox.ReadFileRequest) (string, sandbox.FileInfo, error) {
	f, err := s.ReadFile(ctx, "work", req)
	if err != nil {
		return "", sandbox.FileInfo{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return string(data), f.Info, err
}

func archived(ctx context.Context, s sandbox.Service, path string, maxBytes int64) ([]string, error) {
	r, err := s.ArchiveDir(ctx, "work", path, maxBytes)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names, nil
}

// watched watches until a file has appeared, and then cancels.
func watched(ctx context.Context, s sandbox.Service) any {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var first []sandbox.WatchKind
	err := s.WatchFiles(ctx, "work", sandbox.WatchRequest{Path: "."}, func(ev sandbox.WatchEvent) error {
		first = append(first, ev.Kind)
		if ev.Kind == sandbox.WatchReady {
			_, err := s.MakeDir(ctx, "work", sandbox.MakeDirRequest{Path: "new"})
			return err
		}
		cancel()
		return nil
	})
	return []any{first[:2], err}
}

func TestContract(t *testing.T) {
	direct := conversation(sandbox.WithCaller(t.Context(), sandbox.LocalCaller()), newService(t))
	c := remote(t, newService(t))
	far := conversation(t.Context(), c)
	if len(direct) < 80 {
		t.Errorf("the conversation has only %d steps", len(direct))
	}
	if diff := cmp.Diff(direct, far); diff != "" {
		t.Errorf("the client differs from the service (-service +client):\n%s", diff)
	}
	for _, n := range direct {
		t.Logf("%-28s %.160s%s", n.Step, n.Value, n.Error)
	}
}
