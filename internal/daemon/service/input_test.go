package service

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const badUTF8 = "bad \xff text"

// TestBadInput gives every verb wrong input. Each refusal names what is wrong,
// in one short sentence, and nothing changes.
func TestBadInput(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	ctx := asRed(t)
	long := strings.Repeat("x", 1<<20)
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprint("k", i)] = "v"
	}
	create := func(req sandbox.CreateRequest) func() error {
		return func() error { _, err := w.Create(ctx, req); return err }
	}
	update := func(req sandbox.UpdateRequest) func() error {
		return func() error { _, err := w.Update(ctx, "x", req); return err }
	}
	exec := func(req sandbox.ExecRequest) func() error {
		return func() error { _, err := w.Exec(ctx, "x", req, nil); return err }
	}
	shell := func(f func(*sandbox.ExecRequest)) func() error {
		req := sandbox.ExecRequest{Shell: "true"}
		f(&req)
		return exec(req)
	}
	stat := func(p string) func() error {
		return func() error { _, err := w.StatFile(ctx, "x", p); return err }
	}
	list := func(req sandbox.ListRequest) func() error {
		return func() error { _, err := w.List(ctx, req); return err }
	}
	write := func(req sandbox.WriteFileRequest) func() error {
		return func() error { _, err := w.WriteFile(ctx, "x", req, nil); return err }
	}
	files := func(req sandbox.ListFilesRequest) func() error {
		return func() error { _, err := w.ListFiles(ctx, "x", req); return err }
	}
	edit := func(req sandbox.EditFileRequest) func() error {
		return func() error { _, err := w.EditFile(ctx, "x", req); return err }
	}
	key := func(req sandbox.CreateKeyRequest) func() error {
		return func() error { _, err := w.CreateKey(ctx, req); return err }
	}
	build := func(req sandbox.BuildTemplateRequest) func() error {
		return func() error { _, err := w.BuildTemplate(ctx, req, nil); return err }
	}
	get := func(ref string) func() error {
		return func() error { _, err := w.Get(ctx, ref); return err }
	}
	res := func(r sandbox.Resources) func() error { return create(sandbox.CreateRequest{Resources: r}) }
	const invalid, tooLarge, notFound = sandbox.CodeInvalid, sandbox.CodeTooLarge, sandbox.CodeNotFound

	for _, c := range []struct {
		says string // what the message names
		code sandbox.Code
		call func() error
	}{
		{"name", invalid, create(sandbox.CreateRequest{Name: "Upper"})},
		{"name", invalid, create(sandbox.CreateRequest{Name: "-x"})},
		{"name", invalid, create(sandbox.CreateRequest{Name: "x."})},
		{"name", invalid, create(sandbox.CreateRequest{Name: "a/b"})},
		{"name", invalid, create(sandbox.CreateRequest{Name: "a\n"})},
		{"name", invalid, create(sandbox.CreateRequest{Name: strings.Repeat("x", 64)})},
		{"name", invalid, create(sandbox.CreateRequest{Name: long})},
		{"name", invalid, create(sandbox.CreateRequest{Name: badUTF8})},
		{"like an id", invalid, create(sandbox.CreateRequest{Name: "sbx-mine"})},
		{"taken", sandbox.CodeConflict, create(sandbox.CreateRequest{Name: "x"})},
		{"namespace", invalid, create(sandbox.CreateRequest{Namespace: "A B"})},
		{"template", invalid, create(sandbox.CreateRequest{Template: "../../etc"})},
		{"template", invalid, create(sandbox.CreateRequest{Template: long})},
		{"template", notFound, create(sandbox.CreateRequest{Template: "none"})},
		{"not built", sandbox.CodeConflict, create(sandbox.CreateRequest{Template: "unbuilt"})},
		{"metadata", invalid, create(sandbox.CreateRequest{Metadata: many})},
		{"metadata key", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{"": "v"}})},
		{"metadata key", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{badUTF8: "v"}})},
		{"metadata key", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{strings.Repeat("k", 129): "v"}})},
		{"metadata value", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{"k": badUTF8}})},
		{"metadata value", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{"k": "a\x00b"}})},
		{"metadata value", invalid, create(sandbox.CreateRequest{Metadata: map[string]string{"k": long}})},
		{"resources.vcpus", invalid, res(sandbox.Resources{VCPUs: -1})},
		{"resources.vcpus", invalid, res(sandbox.Resources{VCPUs: 65})},
		{"resources.memory_mib", invalid, res(sandbox.Resources{MemoryMiB: -1})},
		{"resources.memory_mib", invalid, res(sandbox.Resources{MemoryMiB: 63})},
		{"resources.memory_mib", invalid, res(sandbox.Resources{MemoryMiB: 1 << 62})},
		{"resources.disk_mib", invalid, res(sandbox.Resources{DiskMiB: 1})},
		{"resources.disk_mib", invalid, res(sandbox.Resources{DiskMiB: -1 << 63})},
		{"resources.max_pids", invalid, res(sandbox.Resources{MaxPIDs: 15})},
		{"resources.max_pids", invalid, res(sandbox.Resources{MaxPIDs: 1 << 40})},
		{"env", invalid, create(sandbox.CreateRequest{Env: many})},
		{"env name", invalid, create(sandbox.CreateRequest{Env: map[string]string{"": "v"}})},
		{"env name", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A=B": "v"}})},
		{"env name", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A B": "v"}})},
		{"env name", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A\u00a0": "v"}})},
		{"env", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A\x00": "v"}})},
		{"env value", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A": badUTF8}})},
		{"env", invalid, create(sandbox.CreateRequest{Env: map[string]string{"A": long}})},
		{"user", invalid, create(sandbox.CreateRequest{User: "a b"})},
		{"user", invalid, create(sandbox.CreateRequest{User: "4294967295"})},
		{"user", invalid, create(sandbox.CreateRequest{User: "0:4294967296"})},
		{"user", invalid, create(sandbox.CreateRequest{User: "-1"})},
		{"workdir", invalid, create(sandbox.CreateRequest{WorkDir: "relative"})},
		{"workdir", invalid, create(sandbox.CreateRequest{WorkDir: "/a/../b"})},
		{"workdir", invalid, create(sandbox.CreateRequest{WorkDir: "/a\x00"})},
		{"lifetime_seconds", invalid, create(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(-1))})},
		{"lifetime_seconds", invalid, create(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(1 << 62))})},
		{"checkpoint_interval_seconds", invalid, create(sandbox.CreateRequest{CheckpointIntervalSeconds: ptr(int64(59))})},
		{"checkpoint_interval_seconds", invalid, update(sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(86401))})},
		{"paused_lifetime_seconds", invalid, create(sandbox.CreateRequest{PausedLifetimeSeconds: -1})},
		{"paused_lifetime_seconds", invalid, update(sandbox.UpdateRequest{PausedLifetimeSeconds: ptr(int64(-1))})},
		{"idle_timeout_seconds", invalid, create(sandbox.CreateRequest{IdleTimeoutSeconds: ptr(int64(-5))})},
		{"on_timeout", invalid, create(sandbox.CreateRequest{OnTimeout: "explode"})},

		{"name", invalid, update(sandbox.UpdateRequest{Name: ptr("A")})},
		{"vcpus", invalid, update(sandbox.UpdateRequest{VCPUs: ptr(0)})},
		{"memory_mib", invalid, update(sandbox.UpdateRequest{MemoryMiB: ptr(int64(0))})},
		{"max_pids", invalid, update(sandbox.UpdateRequest{MaxPIDs: ptr(int64(-3))})},
		{"metadata", invalid, update(sandbox.UpdateRequest{Metadata: many})},
		{"env", invalid, update(sandbox.UpdateRequest{Env: many})},
		{"lifetime_seconds", invalid, update(sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(-1))})},
		{"idle_timeout_seconds", invalid, update(sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(-1))})},
		{"on_timeout", invalid, update(sandbox.UpdateRequest{OnTimeout: ptr(sandbox.TimeoutAction(""))})},

		{"exactly one", invalid, exec(sandbox.ExecRequest{})},
		{"exactly one", invalid, exec(sandbox.ExecRequest{Shell: "a", Command: []string{"b"}})},
		{"command[0]", invalid, exec(sandbox.ExecRequest{Command: []string{""}})},
		{"command[1]", invalid, exec(sandbox.ExecRequest{Command: []string{"echo", badUTF8}})},
		{"command[1]", invalid, exec(sandbox.ExecRequest{Command: []string{"echo", "a\x00b"}})},
		{"command[1]", tooLarge, exec(sandbox.ExecRequest{Command: []string{"echo", long}})},
		{"command", tooLarge, exec(sandbox.ExecRequest{Command: append([]string{"echo"}, strings.Split(strings.Repeat("y", 1<<20), "")...)})},
		{"command[1]", tooLarge, exec(sandbox.ExecRequest{Command: []string{"echo", strings.Repeat("x", 100<<20)}})},
		{"not found", notFound, exec(sandbox.ExecRequest{Command: []string{"no-such-program"}})},
		{"shell", invalid, exec(sandbox.ExecRequest{Shell: badUTF8})},
		{"shell", tooLarge, exec(sandbox.ExecRequest{Shell: long})},
		{"env", invalid, shell(func(r *sandbox.ExecRequest) { r.Env = map[string]string{"=": ""} })},
		{"workdir", invalid, shell(func(r *sandbox.ExecRequest) { r.WorkDir = "a\x00b" })},
		{"workdir", invalid, shell(func(r *sandbox.ExecRequest) { r.WorkDir = strings.Repeat("/x", 3000) })},
		{"user", invalid, shell(func(r *sandbox.ExecRequest) { r.User = "root; rm" })},
		{"timeout_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.TimeoutMS = -1 })},
		{"timeout_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.TimeoutMS, r.DetachAfterMS = -1, 600_001 })},
		{"timeout_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.TimeoutMS = 600_001 })},
		{"timeout_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.TimeoutMS = 1 << 62 })},
		{"timeout_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.Background, r.TimeoutMS = true, -2 })},
		{"detach_after_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.DetachAfterMS = -1 })},
		{"detach_after_ms", invalid, shell(func(r *sandbox.ExecRequest) { r.Background, r.DetachAfterMS = true, 5 })},
		{"stdin", tooLarge, shell(func(r *sandbox.ExecRequest) { r.Stdin = make([]byte, 8<<20+1) })},
		{"terminal", invalid, shell(func(r *sandbox.ExecRequest) { r.Terminal = &sandbox.TerminalSize{} })},
		{"keep_bytes", invalid, shell(func(r *sandbox.ExecRequest) { r.KeepBytes = -1 })},
		{"keep_bytes", invalid, shell(func(r *sandbox.ExecRequest) { r.KeepBytes = 16<<20 + 1 })},

		{"no sandbox", invalid, get("")},
		{"there is no sandbox", notFound, get("none")},
		{"there is no sandbox", notFound, get("sbx-none")},
		{"there is no sandbox", notFound, get(long)},
		{"there is no sandbox", notFound, get(badUTF8)},
		{"there is no sandbox", notFound, get("x\x00")},
		{"there is no sandbox", notFound, get("' OR '1'='1")},
		{"there is no sandbox", notFound, get("../x")},
		{"there is no job", notFound, func() error { _, err := w.GetJob(ctx, "x", "../1"); return err }},
		{"job", notFound, func() error { _, err := w.GetJob(ctx, "x", "job-none"); return err }},
		{"stream", invalid, func() error {
			_, err := w.ReadOutput(ctx, "x", "job-1", sandbox.OutputRequest{Stream: "stdlog"})
			return err
		}},
		{"offset", invalid, func() error {
			_, err := w.ReadOutput(ctx, "x", "job-1", sandbox.OutputRequest{Stream: "stdout", Offset: -1})
			return err
		}},
		{"limit", invalid, func() error {
			_, err := w.ReadOutput(ctx, "x", "job-1", sandbox.OutputRequest{Stream: "stdout", Limit: 1<<20 + 1})
			return err
		}},
		{"offset", invalid, func() error {
			_, err := w.Attach(ctx, "x", "job-1", sandbox.AttachRequest{StderrOffset: -1}, nil)
			return err
		}},
		{"detach_after_ms", invalid, func() error {
			_, err := w.Attach(ctx, "x", "job-1", sandbox.AttachRequest{DetachAfterMS: -1}, nil)
			return err
		}},
		{"max_bytes", invalid, func() error {
			_, err := w.Attach(ctx, "x", "job-1", sandbox.AttachRequest{MaxBytes: -1}, nil)
			return err
		}},
		{"last_bytes", invalid, func() error {
			_, err := w.Attach(ctx, "x", "job-1", sandbox.AttachRequest{LastBytes: 256<<20 + 1}, nil)
			return err
		}},
		{"input", tooLarge, func() error { return w.WriteInput(ctx, "x", "job-1", make([]byte, 8<<20+1), false) }},
		{"terminal", invalid, func() error { return w.ResizeTerminal(ctx, "x", "job-1", sandbox.TerminalSize{}) }},
		{"kill_after_ms", invalid, func() error { _, err := w.SignalJob(ctx, "x", "job-1", "TERM", -1); return err }},

		{"path", invalid, stat("")},
		{"path", invalid, stat("a\x00b")},
		{"path", invalid, stat(badUTF8)},
		{"path", invalid, stat(long)},
		{"mode", invalid, write(sandbox.WriteFileRequest{Path: "f", Mode: "0999"})},
		{"mode", invalid, write(sandbox.WriteFileRequest{Path: "f", Mode: "rwx"})},
		{"mode", invalid, write(sandbox.WriteFileRequest{Path: "f", Mode: "0"})},
		{"mode", invalid, write(sandbox.WriteFileRequest{Path: "f", Mode: "77777"})},
		{"owner", invalid, write(sandbox.WriteFileRequest{Path: "f", Owner: "a:b:c"})},
		{"old_text", invalid, edit(sandbox.EditFileRequest{Path: "f"})},
		{"new_text", invalid, edit(sandbox.EditFileRequest{Path: "f", OldText: "x", NewText: badUTF8})},
		{"old_text", tooLarge, edit(sandbox.EditFileRequest{Path: "f", OldText: "x", NewText: strings.Repeat("x", 8<<20)})},
		{"depth", invalid, files(sandbox.ListFilesRequest{Path: "/", Depth: 33})},
		{"depth", invalid, files(sandbox.ListFilesRequest{Path: "/", Depth: -1})},
		{"limit", invalid, files(sandbox.ListFilesRequest{Path: "/", Page: sandbox.Page{Limit: 1001}})},
		{"cursor", invalid, files(sandbox.ListFilesRequest{Path: "/", Page: sandbox.Page{Cursor: "x"}})},
		{"cursor", invalid, files(sandbox.ListFilesRequest{Path: "/", Page: sandbox.Page{Cursor: long}})},
		{"offset", invalid, func() error {
			_, err := w.ReadFile(ctx, "x", sandbox.ReadFileRequest{Path: "f", Offset: -1})
			return err
		}},
		{"max_bytes", invalid, func() error { _, err := w.ArchiveDir(ctx, "x", "/", -1); return err }},
		{"to", invalid, func() error { _, err := w.MoveFile(ctx, "x", sandbox.MoveFileRequest{From: "f"}); return err }},
		{"changes", invalid, func() error { return w.WatchFiles(ctx, "x", sandbox.WatchRequest{Path: "."}, nil) }},

		{"state", invalid, list(sandbox.ListRequest{States: []sandbox.State{"undead"}})},
		{"namespace", invalid, list(sandbox.ListRequest{Namespace: "%"})},
		{"name", invalid, list(sandbox.ListRequest{Name: "%"})},
		{"template", invalid, list(sandbox.ListRequest{Template: "%"})},
		{"metadata", invalid, list(sandbox.ListRequest{Metadata: map[string]string{"": ""}})},
		{"limit", invalid, list(sandbox.ListRequest{Page: sandbox.Page{Limit: -1}})},
		{"cursor", invalid, list(sandbox.ListRequest{Page: sandbox.Page{Cursor: "!"}})},

		{"name", invalid, key(sandbox.CreateKeyRequest{})},
		{"name", invalid, key(sandbox.CreateKeyRequest{Name: badUTF8})},
		{"name", invalid, key(sandbox.CreateKeyRequest{Name: long})},
		{"team", invalid, key(sandbox.CreateKeyRequest{Name: "k", Team: "A B"})},
		{"scope", invalid, key(sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{"root"}})},
		{"expires_in_seconds", invalid, key(sandbox.CreateKeyRequest{Name: "k", ExpiresInSeconds: -1})},
		{"key", notFound, func() error { _, err := w.RevokeKey(ctx, "key-none"); return err }},
		{"template", invalid, func() error { _, err := w.GetTemplate(ctx, "a b"); return err }},
		{"template", notFound, func() error { _, err := w.GetTemplate(ctx, "none"); return err }},
		{"name", invalid, build(sandbox.BuildTemplateRequest{Name: "../x"})},
		{"package", invalid, build(sandbox.BuildTemplateRequest{Name: "t", Packages: []string{"-o Dpkg::x"}})},
		{"packages", invalid, build(sandbox.BuildTemplateRequest{Name: "t", Packages: make([]string, 501)})},
		{"cursor", invalid, func() error { _, err := w.ListKeys(ctx, sandbox.Page{Cursor: "zz"}); return err }},
		{"cursor", invalid, func() error {
			_, err := w.Audit(ctx, sandbox.AuditRequest{Page: sandbox.Page{Cursor: "zz"}})
			return err
		}},
	} {
		err := c.call()
		wantCode(t, err, c.code)
		m := err.Error()
		if !strings.Contains(m, c.says) || len(m) > 400 || strings.ContainsAny(m, "\n\x00") || strings.Contains(m, "\xff") {
			t.Errorf("message %q, want one short line that says %q", m, c.says)
		}
	}
	if got := w.get(sbx.ID); got.Name != "x" || got.State != sandbox.StateRunning {
		t.Errorf("changed to %+v", got)
	}
	w.agree()
}

func FuzzFileCursor(f *testing.F) {
	f.Add("")
	f.Add(store.Place{Text: "/a/b"}.Cursor(fileListing))
	f.Add(store.Place{Text: "/a/../b"}.Cursor(fileListing))
	f.Add(store.Place{Text: "/a/b"}.Cursor("jobs"))
	f.Add("ZjEgLi4vLi4")
	f.Fuzz(func(t *testing.T, s string) {
		_, p, err := fileStart(sandbox.Page{Cursor: s})
		if err != nil {
			wantCode(t, err, sandbox.CodeInvalid)
			return
		}
		if s == "" {
			return
		}
		if !path.IsAbs(p) || strings.Contains(p, "/../") {
			t.Fatalf("%q gives the path %q", s, p)
		}
		if _, again, err := fileStart(sandbox.Page{Cursor: store.Place{Text: p}.Cursor(fileListing)}); err != nil || again != p {
			t.Fatalf("%q gives %q, which comes back as %q, %v", s, p, again, err)
		}
	})
}
