package service

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/sandbox"
)

func TestKeysOpenDoors(t *testing.T) {
	w := newHarness(t)
	a := &auth.Keys{Store: w.store}
	admin := sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
	k, err := w.CreateKey(admin, sandbox.CreateKeyRequest{Name: "ci", Team: "red", ExpiresInSeconds: 3600})
	must(t, err)
	if !strings.HasPrefix(k.Secret, k.Hint) || !strings.HasPrefix(k.ID, "key-") || k.ExpiresAt == nil || slices.Contains(k.Scopes, sandbox.ScopeAdmin) || len(k.Scopes) != len(sandbox.Scopes())-1 {
		t.Errorf("made %+v", k)
	}
	caller, err := a.Authenticate(t.Context(), k.Secret)
	must(t, err)
	if caller.Team != "red" || caller.KeyID != k.ID {
		t.Errorf("the key is %+v", caller)
	}
	if _, err := w.Create(sandbox.WithCaller(t.Context(), caller), sandbox.CreateRequest{Name: "by-key"}); err != nil {
		t.Error(err)
	}
	w.get("by-key")
	list, err := w.ListKeys(admin, sandbox.Page{})
	must(t, err)
	if len(list.Items) != 1 || list.Items[0].LastUsedAt == nil {
		t.Errorf("keys are %+v", list.Items)
	}
	revoked, err := w.RevokeKey(admin, k.ID)
	must(t, err)
	if revoked.RevokedAt == nil {
		t.Errorf("revoked %+v", revoked)
	}
	_, err = a.Authenticate(t.Context(), k.Secret)
	wantCode(t, err, sandbox.CodeUnauthenticated)
}

// TestKeysOfOtherTeams uses the admin key of one team to get into another.
func TestKeysOfOtherTeams(t *testing.T) {
	w := newHarness(t)
	blue := as(t.Context(), "blue")
	k, err := w.CreateKey(asRed(t), sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{sandbox.ScopeAdmin, sandbox.ScopeAdmin}})
	must(t, err)
	if k.Team != "red" || len(k.Scopes) != 1 {
		t.Errorf("made %+v", k)
	}
	_, err = w.CreateKey(blue, sandbox.CreateKeyRequest{Name: "k", Team: "red"})
	wantCode(t, err, sandbox.CodeForbidden)
	list, err := w.ListKeys(blue, sandbox.Page{})
	must(t, err)
	if len(list.Items) != 0 {
		t.Errorf("another team sees %+v", list.Items)
	}
	_, foreign := w.RevokeKey(blue, k.ID)
	wantCode(t, foreign, sandbox.CodeNotFound)
	_, unknown := w.RevokeKey(blue, "key-none")
	if strings.ReplaceAll(foreign.Error(), k.ID, "key-none") != unknown.Error() {
		t.Errorf("a foreign key gives %q, an unknown one %q", foreign, unknown)
	}
}

func TestTemplates(t *testing.T) {
	w := newHarness(t)
	list, err := w.ListTemplates(asRed(t), sandbox.Page{})
	must(t, err)
	if len(list.Items) != 3 {
		t.Errorf("templates are %+v", list.Items)
	}
	boom := errors.New("boom")
	_, err = w.BuildTemplate(asRed(t), sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"git", "g++", "python3.11"}}, func(sandbox.BuildEvent) error { return boom })
	if err != boom {
		t.Errorf("with a sink that fails: %v", err)
	}
	_, err = w.BuildTemplate(asRed(t), sandbox.BuildTemplateRequest{Name: "mine"}, nil)
	must(t, err)
	got, err := w.GetTemplate(asRed(t), "mine")
	must(t, err)
	if got.State != sandbox.TemplateReady {
		t.Errorf("built %+v", got)
	}
}

// TestAudit checks that every change is recorded, also if it fails, and that no secret
// and no content gets into the record.
func TestAudit(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	const secret = "S3CRET"
	sbx, err := w.Create(ctx, sandbox.CreateRequest{Name: "x", Env: map[string]string{"TOKEN": secret}, Metadata: map[string]string{"note": secret}})
	must(t, err)
	_, err = w.Create(ctx, sandbox.CreateRequest{Name: "x"})
	wantCode(t, err, sandbox.CodeConflict)
	_, err = w.Update(ctx, "x", sandbox.UpdateRequest{Env: map[string]string{"TOKEN": secret}, Name: ptr("y")})
	must(t, err)
	job, err := w.Exec(ctx, "y", sandbox.ExecRequest{Command: []string{"echo", secret}, Env: map[string]string{"A": secret}, Stdin: []byte(secret)}, nil)
	must(t, err)
	_, err = w.Exec(ctx, "y", sandbox.ExecRequest{Shell: "echo " + secret}, nil)
	must(t, err)
	wantCode(t, w.WriteInput(ctx, "y", job.ID, []byte(secret), false), sandbox.CodeConflict)
	_, err = w.WriteFile(ctx, "y", sandbox.WriteFileRequest{Path: "file"}, strings.NewReader(secret))
	must(t, err)
	_, err = w.EditFile(ctx, "y", sandbox.EditFileRequest{Path: "file", OldText: secret, NewText: secret + "2"})
	must(t, err)
	must(t, w.DeleteFile(ctx, "y", "file", false))
	_, err = w.StatFile(ctx, "y", "file") // reading is not recorded
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.Exec(as(t.Context(), "red", sandbox.ScopeSandboxesRead), "y", sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeForbidden)
	_, err = w.Kill(ctx, "y")
	must(t, err)
	k, err := w.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "k"})
	must(t, err)

	want := []string{
		"sandbox.create  template host", "sandbox.create conflict template host", "sandbox.update  changed name, env",
		"job.start  " + job.ID + " echo", "job.start  JOB shell", "job.input conflict " + job.ID + " 6 bytes",
		"file.write  file", "file.edit  file", "file.delete  file", "job.start forbidden ", "sandbox.kill  ", "key.create  " + k.ID + " of team red",
	}
	var got []string
	req := sandbox.AuditRequest{Page: sandbox.Page{Limit: 5}}
	for {
		page, err := w.Audit(ctx, req)
		must(t, err)
		for _, e := range page.Items {
			if strings.Contains(fmt.Sprint(e), secret) || strings.Contains(fmt.Sprint(e), k.Secret) {
				t.Errorf("a secret shows in %+v", e)
			}
			if strings.HasSuffix(e.Detail, " shell") {
				e.Detail = "JOB shell"
			}
			got = append(got, fmt.Sprintf("%s %s %s", e.Action, e.Code, e.Detail))
			if e.Team != "red" || e.KeyID != "key-red" || e.Time.IsZero() {
				t.Errorf("event %+v", e)
			}
		}
		if req.Cursor = page.NextCursor; req.Cursor == "" {
			break
		}
	}
	slices.Reverse(got)
	if !slices.Equal(got, want) {
		t.Errorf("recorded:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	one, err := w.Audit(as(t.Context(), "red", sandbox.ScopeSandboxesRead), sandbox.AuditRequest{SandboxID: sbx.ID})
	must(t, err)
	if n := len(one.Items); n != 9 {
		t.Errorf("%d events of the sandbox, want 9", n)
	}
	// Events outlive the sandbox's record.
	must(t, w.store.DeleteSandbox(t.Context(), sbx.ID))
	one, err = w.Audit(ctx, sandbox.AuditRequest{SandboxID: sbx.ID})
	must(t, err)
	if n := len(one.Items); n != 9 {
		t.Errorf("%d events of the sandbox after its record is gone, want 9", n)
	}
}

func TestAuditSurvives(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.shell(sbx.ID, "true")
	must(t, w.state.Kill(sbx.ID, "boom"))
	w.waitState(sbx.ID, sandbox.StateFailed)
	w.restart()
	events, err := w.Audit(asRed(t), sandbox.AuditRequest{SandboxID: sbx.ID})
	must(t, err)
	var got []string
	for _, e := range events.Items {
		got = append(got, e.KeyID+" "+e.Action)
	}
	if want := []string{"system sandbox.fail", "key-red job.start", "key-red sandbox.create"}; !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}

func TestListPages(t *testing.T) {
	w := newHarness(t)
	var want []string
	for i := range 5 {
		want = append(want, w.create(sandbox.CreateRequest{Name: fmt.Sprint("n", i)}).ID)
	}
	slices.Reverse(want)
	_, err := w.Kill(asRed(t), "n2")
	must(t, err)
	ids := func(req sandbox.ListRequest) (got []string) {
		for {
			list, err := w.List(asRed(t), req)
			must(t, err)
			for _, s := range list.Items {
				got = append(got, s.ID)
			}
			if req.Cursor = list.NextCursor; req.Cursor == "" {
				return got
			}
		}
	}
	if got := ids(sandbox.ListRequest{Page: sandbox.Page{Limit: 2}, States: states}); !slices.Equal(got, want) {
		t.Errorf("all: %v, want %v", got, want)
	}
	if got := ids(sandbox.ListRequest{Namespace: "*"}); !slices.Equal(got, slices.Delete(slices.Clone(want), 2, 3)) {
		t.Errorf("living: %v", got)
	}
	if got := ids(sandbox.ListRequest{Name: "n3", Template: "host"}); !slices.Equal(got, want[1:2]) {
		t.Errorf("one name: %v", got)
	}
	if got := ids(sandbox.ListRequest{States: []sandbox.State{sandbox.StateKilled, sandbox.StateKilled}}); !slices.Equal(got, want[2:3]) {
		t.Errorf("killed: %v", got)
	}
}
