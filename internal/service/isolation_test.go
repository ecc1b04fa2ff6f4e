package service

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		_, err := s.ListJobs(ctx, ref)
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
		_, err := s.MakeDir(ctx, ref, "evil", "")
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
}

// notOnSandbox calls the other verbs; those of sandboxes and keys have tests
// of their own for what they show of other teams.
var notOnSandbox = map[string]func(ctx context.Context, s sandbox.Service) error{
	"Create": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.Create(ctx, sandbox.CreateRequest{})
		return err
	},
	"List": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.List(ctx, sandbox.ListRequest{})
		return err
	},
	"ListTemplates": func(ctx context.Context, s sandbox.Service) error { _, err := s.ListTemplates(ctx); return err },
	"GetTemplate":   func(ctx context.Context, s sandbox.Service) error { _, err := s.GetTemplate(ctx, "host"); return err },
	"BuildTemplate": func(ctx context.Context, s sandbox.Service) error {
		_, err := s.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "mine"}, nil)
		return err
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
}

// scopeOf says which scope each verb needs. A key with that scope only may
// call it, a key with all others but admin may not.
var scopeOf = map[string]sandbox.Scope{
	"Create": sandbox.ScopeSandboxesWrite, "Get": sandbox.ScopeSandboxesRead, "List": sandbox.ScopeSandboxesRead,
	"Update": sandbox.ScopeSandboxesWrite, "Kill": sandbox.ScopeSandboxesWrite, "Stats": sandbox.ScopeSandboxesRead, "Audit": sandbox.ScopeSandboxesRead,
	"Exec": sandbox.ScopeSandboxesWrite, "Attach": sandbox.ScopeSandboxesRead, "GetJob": sandbox.ScopeSandboxesRead,
	"ListJobs": sandbox.ScopeSandboxesRead, "ReadOutput": sandbox.ScopeSandboxesRead, "WriteInput": sandbox.ScopeSandboxesWrite,
	"ResizeTerminal": sandbox.ScopeSandboxesWrite, "SignalJob": sandbox.ScopeSandboxesWrite,
	"StatFile": sandbox.ScopeSandboxesRead, "ListFiles": sandbox.ScopeSandboxesRead, "ReadFile": sandbox.ScopeSandboxesRead,
	"WriteFile": sandbox.ScopeFilesWrite, "EditFile": sandbox.ScopeFilesWrite, "MakeDir": sandbox.ScopeFilesWrite,
	"MoveFile": sandbox.ScopeFilesWrite, "DeleteFile": sandbox.ScopeFilesWrite, "ArchiveDir": sandbox.ScopeSandboxesRead, "WatchFiles": sandbox.ScopeSandboxesRead,
	"ListTemplates": sandbox.ScopeSandboxesRead, "GetTemplate": sandbox.ScopeSandboxesRead, "BuildTemplate": sandbox.ScopeTemplatesWrite,
	"CreateKey": sandbox.ScopeAdmin, "ListKeys": sandbox.ScopeAdmin, "RevokeKey": sandbox.ScopeAdmin,
}

func verbs() []string {
	var all []string
	for m := range reflect.TypeFor[sandbox.Service]().Methods() {
		all = append(all, m.Name)
	}
	return all
}

// TestTeamIsolation calls every verb on another team's sandbox, by id and by
// name, and compares with what a sandbox that does not exist gives.
func TestTeamIsolation(t *testing.T) {
	w := newWorld(t)
	sbx := w.create(sandbox.CreateRequest{Name: "treasure"})
	w.shell(sbx.ID, "echo good > file")
	before := w.get(sbx.ID)
	files := w.shell(sbx.ID, "ls; cat file")
	blue := as(t.Context(), "blue")
	absent := idPrefix + strings.Repeat("a", len(sbx.ID)-len(idPrefix))
	for _, verb := range verbs() {
		t.Run(verb, func(t *testing.T) {
			call := onSandbox[verb]
			if call == nil {
				if notOnSandbox[verb] == nil {
					t.Fatal("nothing tests this verb's isolation")
				}
				return
			}
			unknown := call(blue, w, absent)
			wantCode(t, unknown, sandbox.CodeNotFound)
			for _, ref := range []string{sbx.ID, "treasure"} {
				err := call(blue, w, ref)
				wantCode(t, err, sandbox.CodeNotFound)
				if got, want := strings.ReplaceAll(err.Error(), ref, absent), unknown.Error(); got != want {
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
		t.Errorf("another team sees %v", list.Items)
	}
	events, err := w.Audit(blue, sandbox.AuditRequest{})
	must(t, err)
	for _, e := range events.Items {
		if e.Team != "blue" || e.SandboxID != "" {
			t.Errorf("another team's record has %+v", e)
		}
	}
	// The name is free for the other team.
	if _, err := w.Create(blue, sandbox.CreateRequest{Name: "treasure"}); err != nil {
		t.Error(err)
	}
}

// TestScopes calls every verb with the scope it needs, with all others, and
// with no identity.
func TestScopes(t *testing.T) {
	w := newWorld(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	for _, verb := range verbs() {
		t.Run(verb, func(t *testing.T) {
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
				if s != need && s != sandbox.ScopeAdmin {
					others = append(others, s)
				}
			}
			err := call(as(t.Context(), "red", others...), w)
			wantCode(t, err, sandbox.CodeForbidden)
			if !strings.Contains(err.Error(), string(need)) {
				t.Errorf("the refusal %q does not name the scope %q", err, need)
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
