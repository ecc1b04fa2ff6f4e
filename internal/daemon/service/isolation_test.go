package service

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/sandbox"
)

// onSandbox calls each verb that takes a sandbox, with one argument of that
// kind.
var onSandbox = map[string]func(ctx context.Context, s sandbox.Service, ref string) error{
	"Get": func(ctx context.Context, s sandbox.Service, ref string) error { _, err := s.Get(ctx, ref); return err },
	"Update": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Update(ctx, ref, sandbox.UpdateRequest{Metadata: map[string]string{"evil": "1"}})
		return err
	},
	"Kill": func(ctx context.Context, s sandbox.Service, ref string) error { _, err := s.Kill(ctx, ref); return err },
	"Stats": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Stats(ctx, ref)
		return err
	},
	"Audit": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Audit(ctx, sandbox.AuditRequest{SandboxID: ref})
		return err
	},
	"Exec": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Exec(ctx, ref, sandbox.ExecRequest{Shell: "true"}, nil)
		return err
	},
	"Attach": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Attach(ctx, ref, "job-1", sandbox.AttachRequest{}, nil)
		return err
	},
	"GetJob": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.GetJob(ctx, ref, "job-1")
		return err
	},
	"ListJobs": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ListJobs(ctx, ref, sandbox.Page{})
		return err
	},
	"ReadOutput": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ReadOutput(ctx, ref, "job-1", sandbox.OutputRequest{Stream: sandbox.Stdout})
		return err
	},
	"WriteInput": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.WriteInput(ctx, ref, "job-1", []byte("x"), false)
	},
	"ResizeTerminal": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.ResizeTerminal(ctx, ref, "job-1", sandbox.TerminalSize{Cols: 1, Rows: 1})
	},
	"SignalJob": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.SignalJob(ctx, ref, "job-1", "KILL", 0)
		return err
	},
	"StatFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.StatFile(ctx, ref, "file")
		return err
	},
	"ListFiles": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ListFiles(ctx, ref, sandbox.ListFilesRequest{Path: "."})
		return err
	},
	"ReadFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		r, err := s.ReadFile(ctx, ref, sandbox.ReadFileRequest{Path: "file"})
		if err == nil {
			_ = r.Close()
		}
		return err
	},
	"WriteFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.WriteFile(ctx, ref, sandbox.WriteFileRequest{Path: "evil"}, strings.NewReader("x"))
		return err
	},
	"EditFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.EditFile(ctx, ref, sandbox.EditFileRequest{Path: "file", OldText: "good", NewText: "evil"})
		return err
	},
	"MakeDir": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.MakeDir(ctx, ref, sandbox.MakeDirRequest{Path: "evil"})
		return err
	},
	"MakeSymlink": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.MakeSymlink(ctx, ref, sandbox.MakeSymlinkRequest{Path: "evil", Target: "file"})
		return err
	},
	"MoveFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.MoveFile(ctx, ref, sandbox.MoveFileRequest{From: "file", To: "evil"})
		return err
	},
	"DeleteFile": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.DeleteFile(ctx, ref, "file", true)
	},
	"ArchiveDir": func(ctx context.Context, s sandbox.Service, ref string) error {
		r, err := s.ArchiveDir(ctx, ref, ".", 0)
		if err == nil {
			_ = r.Close()
		}
		return err
	},
	"WatchFiles": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.WatchFiles(ctx, ref, sandbox.WatchRequest{Path: "."}, func(sandbox.WatchEvent) error { return io.EOF })
	},
	"Pause": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Pause(ctx, ref)
		return err
	},
	"Resume": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Resume(ctx, ref, sandbox.ResumeRequest{})
		return err
	},
	"Fork": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Fork(ctx, ref, sandbox.ForkRequest{})
		return err
	},
	"CreateSnapshot": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.CreateSnapshot(ctx, ref, sandbox.CreateSnapshotRequest{})
		return err
	},
	"ListSnapshots": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: ref})
		return err
	},
	"RestoreSnapshot": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.RestoreSnapshot(ctx, ref, sandbox.RestoreRequest{Step: -1})
		return err
	},
	"Diff": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Diff(ctx, ref, sandbox.DiffRequest{})
		return err
	},
	"Merge": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Merge(ctx, ref, sandbox.MergeRequest{Winner: ref})
		return err
	},
	"Try": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Try(ctx, ref, sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "true"}}}, nil)
		return err
	},
	"GetScreen": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.GetScreen(ctx, ref)
		return err
	},
	"Screenshot": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.Screenshot(ctx, ref, sandbox.ScreenshotRequest{})
		return err
	},
	"SendInput": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.SendInput(ctx, ref, []sandbox.Input{{Type: sandbox.InputClick}})
		return err
	},
	"GetClipboard": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.GetClipboard(ctx, ref)
		return err
	},
	"SetClipboard": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.SetClipboard(ctx, ref, "evil")
	},
	"ListWindows": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ListWindows(ctx, ref)
		return err
	},
	"ControlWindow": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ControlWindow(ctx, ref, sandbox.WindowRequest{ID: 1, Action: sandbox.WindowClose})
		return err
	},
	"OpenURL": func(ctx context.Context, s sandbox.Service, ref string) error {
		return s.OpenURL(ctx, ref, "https://evil.test")
	},
	"ViewComputer": func(ctx context.Context, s sandbox.Service, ref string) error {
		_, err := s.ViewComputer(ctx, ref, sandbox.ViewRequest{Control: true})
		return err
	},
}

// onSnapshot calls each verb that takes a snapshot, with one argument of that
// kind; own is a sandbox of the caller.
var onSnapshot = map[string]func(ctx context.Context, s sandbox.Service, own, ref string) error{
	"GetSnapshot": func(ctx context.Context, s sandbox.Service, _, ref string) error {
		_, err := s.GetSnapshot(ctx, ref)
		return err
	},
	"DeleteSnapshot": func(ctx context.Context, s sandbox.Service, _, ref string) error {
		_, err := s.DeleteSnapshot(ctx, ref)
		return err
	},
	"Create": func(ctx context.Context, s sandbox.Service, _, ref string) error {
		_, err := s.Create(ctx, sandbox.CreateRequest{Snapshot: ref})
		return err
	},
	"RestoreSnapshot": func(ctx context.Context, s sandbox.Service, own, ref string) error {
		_, err := s.RestoreSnapshot(ctx, own, sandbox.RestoreRequest{Snapshot: ref})
		return err
	},
	"Diff": func(ctx context.Context, s sandbox.Service, own, ref string) error {
		_, err := s.Diff(ctx, ref, sandbox.DiffRequest{Against: own})
		return err
	},
	"Diff against": func(ctx context.Context, s sandbox.Service, own, ref string) error {
		_, err := s.Diff(ctx, own, sandbox.DiffRequest{Against: ref})
		return err
	},
}

// notOnSandbox calls the other verbs. What these show of other teams has separate
// tests.
var notOnSandbox = map[string]func(ctx context.Context, s sandbox.Service) error{
	"Create": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.Create(ctx, sandbox.CreateRequest{})
		return err
	},
	"List": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.List(ctx, sandbox.ListRequest{})
		return err
	},
	"ListTemplates": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListTemplates(ctx, sandbox.Page{})
		return err
	},
	"GetTemplate": func(ctx context.Context, s sandbox.Service) error { _, err := s.GetTemplate(ctx, "host"); return err },
	"BuildTemplate": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "mine"}, nil)
		return err
	},
	"StartBuild": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "started"})
		return err
	},
	"GetBuild": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.GetBuild(ctx, "bld-none")
		return err
	},
	"ListBuilds": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListBuilds(ctx, sandbox.ListBuildsRequest{})
		return err
	},
	"FollowBuild": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.FollowBuild(ctx, "bld-none", func(sandbox.BuildEvent) error { return nil })
		return err
	},
	"CancelBuild": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CancelBuild(ctx, "bld-none")
		return err
	},
	"LinkUpload": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: "x", SizeBytes: 1})
		return err
	},
	"UploadArchive": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.UploadArchive(ctx, strings.NewReader("x"))
		return err
	},
	"AliasTemplate": func(ctx context.Context, s sandbox.Service) error {
		return s.AliasTemplate(ctx, "other", "host")
	},
	"DeleteTemplate": func(ctx context.Context, s sandbox.Service) error {
		return s.DeleteTemplate(ctx, "no-such-template")
	},
	"CreateKey": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k"})
		return err
	},
	"ListKeys": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.ListKeys(ctx, sandbox.Page{})
		return err
	},
	"RevokeKey": func(ctx context.Context, s sandbox.Service) error { _, err := s.RevokeKey(ctx, "key-none"); return err },
	"ListNodes": func(ctx context.Context, s sandbox.Service) error { _, err := s.ListNodes(ctx); return err },
	"CreateJoinToken": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CreateJoinToken(ctx)
		return err
	},
	"DrainNode": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.DrainNode(ctx, "none", sandbox.DrainRequest{})
		return err
	},
	"UndrainNode": func(ctx context.Context, s sandbox.Service) error { _, err := s.UndrainNode(ctx, "none"); return err },
	"RemoveNode":  func(ctx context.Context, s sandbox.Service) error { return s.RemoveNode(ctx, "none") },
	"GetSnapshot": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.GetSnapshot(ctx, "no-such-name")
		return err
	},
	"DeleteSnapshot": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.DeleteSnapshot(ctx, "no-such-name")
		return err
	},
}

// scopeOf says which scope each verb needs. A key with only that scope may call it; a
// key with all others except admin may not.
var scopeOf = map[string]sandbox.Scope{
	"Create": sandbox.ScopeSandboxesWrite, "Get": sandbox.ScopeSandboxesRead, "List": sandbox.ScopeSandboxesRead,
	"Update": sandbox.ScopeSandboxesWrite, "Kill": sandbox.ScopeSandboxesWrite, "Stats": sandbox.ScopeSandboxesRead, "Audit": sandbox.ScopeSandboxesRead,
	"Exec": sandbox.ScopeSandboxesWrite, "Attach": sandbox.ScopeSandboxesRead, "GetJob": sandbox.ScopeSandboxesRead,
	"ListJobs": sandbox.ScopeSandboxesRead, "ReadOutput": sandbox.ScopeSandboxesRead, "WriteInput": sandbox.ScopeSandboxesWrite,
	"ResizeTerminal": sandbox.ScopeSandboxesWrite, "SignalJob": sandbox.ScopeSandboxesWrite,
	"StatFile": sandbox.ScopeSandboxesRead, "ListFiles": sandbox.ScopeSandboxesRead, "ReadFile": sandbox.ScopeSandboxesRead,
	"WriteFile": sandbox.ScopeFilesWrite, "EditFile": sandbox.ScopeFilesWrite, "MakeDir": sandbox.ScopeFilesWrite,
	"MakeSymlink": sandbox.ScopeFilesWrite, "MoveFile": sandbox.ScopeFilesWrite, "DeleteFile": sandbox.ScopeFilesWrite, "ArchiveDir": sandbox.ScopeSandboxesRead, "WatchFiles": sandbox.ScopeSandboxesRead,
	"ListTemplates": sandbox.ScopeSandboxesRead, "GetTemplate": sandbox.ScopeSandboxesRead, "BuildTemplate": sandbox.ScopeTemplatesWrite,
	"StartBuild": sandbox.ScopeTemplatesWrite, "GetBuild": sandbox.ScopeSandboxesRead, "ListBuilds": sandbox.ScopeSandboxesRead,
	"FollowBuild": sandbox.ScopeSandboxesRead, "CancelBuild": sandbox.ScopeTemplatesWrite,
	"UploadArchive": sandbox.ScopeTemplatesWrite, "LinkUpload": sandbox.ScopeTemplatesWrite, "AliasTemplate": sandbox.ScopeTemplatesWrite, "DeleteTemplate": sandbox.ScopeTemplatesWrite,
	"Pause": sandbox.ScopeSandboxesWrite, "Resume": sandbox.ScopeSandboxesWrite, "Fork": sandbox.ScopeSandboxesWrite,
	"CreateSnapshot": sandbox.ScopeSandboxesWrite, "GetSnapshot": sandbox.ScopeSandboxesRead, "ListSnapshots": sandbox.ScopeSandboxesRead,
	"RestoreSnapshot": sandbox.ScopeSandboxesWrite, "DeleteSnapshot": sandbox.ScopeSandboxesWrite, "Diff": sandbox.ScopeSandboxesRead,
	"Merge": sandbox.ScopeSandboxesWrite, "Try": sandbox.ScopeSandboxesWrite,
	"GetScreen": sandbox.ScopeSandboxesRead, "Screenshot": sandbox.ScopeSandboxesRead, "SendInput": sandbox.ScopeComputersWrite,
	"GetClipboard": sandbox.ScopeSandboxesRead, "SetClipboard": sandbox.ScopeComputersWrite, "ListWindows": sandbox.ScopeSandboxesRead,
	"ControlWindow": sandbox.ScopeComputersWrite, "OpenURL": sandbox.ScopeComputersWrite, "ViewComputer": sandbox.ScopeComputersWrite,
	"ListNodes": sandbox.ScopeAdmin, "CreateJoinToken": sandbox.ScopeAdmin, "DrainNode": sandbox.ScopeAdmin, "UndrainNode": sandbox.ScopeAdmin, "RemoveNode": sandbox.ScopeAdmin,
	"CreateKey": sandbox.ScopeAdmin, "ListKeys": sandbox.ScopeAdmin, "RevokeKey": sandbox.ScopeAdmin,
}

func verbs() []string {
	var all []string
	for m := range reflect.TypeFor[sandbox.Service]().Methods() {
		all = append(all, m.Name)
	}
	return all
}

// strangers are callers who must not see anything that the team red has in the
// namespace "vault".
func strangers(t testing.TB) map[string]context.Context {
	return map[string]context.Context{"team": as(t.Context(), "blue"), "namespace": inNamespace(asRed(t), "blue")}
}

// inNamespace returns a context whose caller is in a namespace.
func inNamespace(ctx context.Context, namespace string) context.Context {
	c, _ := sandbox.CallerOf(ctx)
	c.Namespace = namespace
	return sandbox.WithCaller(ctx, c)
}

// TestIsolation calls every verb on a sandbox of another team, and of another
// namespace, by id and by name, and compares with what a sandbox that does not
// exist gives.
func TestIsolation(t *testing.T) {
	for name, stranger := range strangers(t) {
		t.Run(name, func(t *testing.T) { testIsolation(t, stranger) })
	}
}

func testIsolation(t *testing.T, blue context.Context) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "treasure", Namespace: "vault"})
	w.shell(sbx.ID, "echo good > file")
	before := w.get(sbx.ID)
	files := w.shell(sbx.ID, "ls; cat file")
	absent := ids.Sandbox + strings.Repeat("a", len(sbx.ID)-len(ids.Sandbox))
	for _, verb := range verbs() {
		t.Run(verb, func(t *testing.T) {
			call := onSandbox[verb]
			if call == nil {
				if notOnSandbox[verb] == nil && onSnapshot[verb] == nil {
					t.Fatal("nothing tests this verb's isolation")
				}
				return
			}
			for ref, none := range map[string]string{sbx.ID: absent, "treasure": "no-such-name"} {
				unknown := call(blue, w, none)
				wantCode(t, unknown, sandbox.CodeNotFound)
				err := call(blue, w, ref)
				wantCode(t, err, sandbox.CodeNotFound)
				if got, want := strings.ReplaceAll(err.Error(), ref, none), unknown.Error(); got != want {
					t.Errorf("a foreign sandbox gives %q, one that does not exist %q", got, want)
				}
			}
		})
	}
	if got := w.shell(sbx.ID, "ls; cat file"); got != files {
		t.Errorf("files changed from %q to %q", files, got)
	}
	after := w.get(sbx.ID)
	after.LastActiveAt = before.LastActiveAt
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	list, err := w.List(blue, sandbox.ListRequest{States: states})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("a stranger sees %v", list.Items)
	}
	noteworthy(t, w, blue, func(e *sandbox.AuditEvent) bool { return e.Team == "blue" && e.SandboxID == "" })
	// The name is free for a stranger.
	if _, err := w.Create(blue, sandbox.CreateRequest{Name: "treasure"}); err != nil {
		t.Error(err)
	}
}

// noteworthy checks all audit events that a stranger can read. A caller in a namespace
// cannot read the whole team's.
func noteworthy(t *testing.T, w *harness, stranger context.Context, good func(*sandbox.AuditEvent) bool) {
	t.Helper()
	events, err := w.Audit(stranger, sandbox.AuditRequest{})
	if c, _ := sandbox.CallerOf(stranger); c.Namespace != "" {
		wantCode(t, err, sandbox.CodeForbidden)
		return
	}
	must(t, err)
	for _, e := range events.Items {
		if !good(&e) {
			t.Errorf("a stranger's record has %+v", e)
		}
	}
}

// TestIsolationOfSnapshots calls every verb that takes a snapshot with one of
// another team, and of another namespace, by id and by name, and compares with
// what one that does not exist gives. A foreign winner and subject are tried too.
func TestIsolationOfSnapshots(t *testing.T) {
	for name, stranger := range strangers(t) {
		t.Run(name, func(t *testing.T) { testIsolationOfSnapshots(t, stranger) })
	}
}

func testIsolationOfSnapshots(t *testing.T, blue context.Context) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "theirs", Namespace: "vault"})
	snap, err := w.CreateSnapshot(asRed(t), sbx.ID, sandbox.CreateSnapshotRequest{Name: "treasure"})
	must(t, err)
	own, err := w.Create(blue, sandbox.CreateRequest{})
	must(t, err)
	absent := ids.Snapshot + strings.Repeat("a", len(snap.ID)-len(ids.Snapshot))
	for verb, call := range onSnapshot {
		for ref, none := range map[string]string{snap.ID: absent, "treasure": "no-such-name"} {
			unknown := call(blue, w, own.ID, none)
			wantCode(t, unknown, sandbox.CodeNotFound)
			err := call(blue, w, own.ID, ref)
			wantCode(t, err, sandbox.CodeNotFound)
			if got, want := strings.ReplaceAll(err.Error(), ref, none), unknown.Error(); got != want {
				t.Errorf("%s of %s: %q, want %q", verb, ref, got, want)
			}
		}
	}
	for _, ref := range []string{sbx.ID, "theirs"} {
		_, err := w.Merge(blue, own.ID, sandbox.MergeRequest{Winner: ref})
		wantCode(t, err, sandbox.CodeNotFound)
		_, err = w.Diff(blue, own.ID, sandbox.DiffRequest{Against: ref})
		wantCode(t, err, sandbox.CodeNotFound)
	}
	list, err := w.ListSnapshots(blue, sandbox.ListSnapshotsRequest{Automatic: true})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("a stranger sees %+v", list.Items)
	}
	noteworthy(t, w, blue, func(e *sandbox.AuditEvent) bool {
		return e.Team == "blue" && (e.SandboxID == "" || e.SandboxID == own.ID) && !strings.Contains(e.Detail, snap.ID)
	})
	// The name is free for a stranger.
	mine, err := w.CreateSnapshot(blue, own.ID, sandbox.CreateSnapshotRequest{Name: "treasure"})
	must(t, err)
	if got, err := w.GetSnapshot(inNamespace(asRed(t), "vault"), "treasure"); err != nil || got.ID != snap.ID || got.ID == mine.ID {
		t.Errorf("the snapshot is %+v, %v", got, err)
	}
	w.agree()
}

// TestUnsupported calls the verbs of [sandbox.Snapshots] with an engine that keeps no
// state.
func TestUnsupported(t *testing.T) {
	w := bareHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.create(sandbox.CreateRequest{Name: "y"})
	ctx := asRed(t)
	for name, call := range map[string]func() error{
		"pause":    func() error { _, err := w.Pause(ctx, "x"); return err },
		"fork":     func() error { _, err := w.Fork(ctx, "x", sandbox.ForkRequest{}); return err },
		"snapshot": func() error { _, err := w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{}); return err },
		"restore":  func() error { _, err := w.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Step: -1}); return err },
		"diff":     func() error { _, err := w.Diff(ctx, "x", sandbox.DiffRequest{}); return err },
		"merge":    func() error { _, err := w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "y"}); return err },
		"try": func() error {
			_, err := w.Try(ctx, "x", sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "true"}}}, nil)
			return err
		},
		"create from": func() error { _, err := w.Create(ctx, sandbox.CreateRequest{Snapshot: "s"}); return err },
		"history":     func() error { _, err := w.Create(ctx, sandbox.CreateRequest{History: 1}); return err },
		"set history": func() error { _, err := w.Update(ctx, "x", sandbox.UpdateRequest{History: ptr(1)}); return err },
		"on timeout": func() error {
			_, err := w.Create(ctx, sandbox.CreateRequest{OnTimeout: sandbox.ActionPause})
			return err
		},
		"set on timeout": func() error {
			_, err := w.Update(ctx, "x", sandbox.UpdateRequest{OnTimeout: ptr(sandbox.ActionPause)})
			return err
		},
	} {
		if err := call(); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Calls that change nothing still work.
	_, err := w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	_, err = w.Update(ctx, "x", sandbox.UpdateRequest{History: ptr(0), OnTimeout: ptr(sandbox.ActionKill)})
	must(t, err)
	if list, err := w.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{}); err != nil || len(list.Items) != 0 {
		t.Errorf("snapshots are %+v, %v", list, err)
	}
	w.agree()
}

// TestScopes calls every verb with the scope it needs, with all others, and
// with no identity.
func TestScopes(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	for _, verb := range verbs() {
		t.Run(verb, func(t *testing.T) {
			if forAnybody[verb] {
				return
			}
			call := notOnSandbox[verb]
			if f := onSandbox[verb]; f != nil {
				call = func(ctx context.Context, s sandbox.Service) error { return f(ctx, s, "no-such-name") }
			}
			need, ok := scopeOf[verb]
			if !ok || call == nil {
				t.Fatal("nothing says which scope this verb needs")
			}
			var others []sandbox.Scope
			for _, s := range sandbox.Scopes() {
				implies := s == sandbox.ScopeAdmin || s == sandbox.ScopeSandboxesWrite && need == sandbox.ScopeSandboxesRead
				if s != need && !implies {
					others = append(others, s)
				}
			}
			err := call(as(t.Context(), "red", others...), w)
			wantCode(t, err, sandbox.CodeForbidden)
			if !strings.Contains(err.Error(), string(need)) {
				t.Errorf("the refusal %q does not name the scope %q", err, need)
			}
			if need == sandbox.ScopeSandboxesRead {
				if err := call(as(t.Context(), "red", sandbox.ScopeSandboxesWrite), w); sandbox.CodeOf(err) == sandbox.CodeForbidden {
					t.Errorf("who may write may not read: %v", err)
				}
			}
			err = call(as(t.Context(), "red", need), w)
			if c := sandbox.CodeOf(err); c == sandbox.CodeForbidden || c == sandbox.CodeInternal {
				t.Errorf("with the scope: %v", err)
			}
			wantCode(t, call(t.Context(), w), sandbox.CodeUnauthenticated)
			wantCode(t, call(sandbox.WithCaller(t.Context(), sandbox.Caller{}), w), sandbox.CodeUnauthenticated)
		})
	}
	// The whole team's record needs more than one sandbox's.
	_, err := w.Audit(as(t.Context(), "red", sandbox.ScopeSandboxesRead), sandbox.AuditRequest{})
	wantCode(t, err, sandbox.CodeForbidden)
}
