package service

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// namesIn returns the names of the sandboxes that a caller sees.
func (w *harness) namesIn(ctx context.Context, namespace string) []string {
	w.t.Helper()
	list, err := w.List(ctx, sandbox.ListRequest{Namespace: namespace})
	must(w.t, err)
	var all []string
	for _, sbx := range list.Items {
		all = append(all, sbx.Namespace+"/"+sbx.Name)
	}
	return all
}

// TestNamespaces has callers in two namespaces of a team, and one of the whole team.
func TestNamespaces(t *testing.T) {
	w := newHarness(t)
	a, b, whole := inNamespace(asRed(t), "a"), inNamespace(asRed(t), "b"), asRed(t)
	made, err := w.Create(a, sandbox.CreateRequest{Name: "web"})
	must(t, err)
	_, err = w.Create(b, sandbox.CreateRequest{Name: "web"})
	must(t, err)
	w.create(sandbox.CreateRequest{Name: "plain"})

	for _, x := range []struct {
		who  context.Context
		in   string
		want []string
	}{
		{a, "", []string{"a/web"}},
		{a, "*", []string{"a/web"}},
		{inNamespace(asRed(t), "a"), "a", []string{"a/web"}},
		{b, "", []string{"b/web"}},
		{inNamespace(asRed(t), "default"), "", []string{"default/plain"}},
		{inNamespace(asRed(t), "empty"), "", nil},
		{whole, "", []string{"default/plain", "b/web", "a/web"}},
		{whole, "a", []string{"a/web"}},
	} {
		if diff := cmp.Diff(x.want, w.namesIn(x.who, x.in)); diff != "" {
			t.Errorf("in %q (-want +got):\n%s", x.in, diff)
		}
	}
	stats, err := w.ListStats(b, sandbox.StatsRequest{})
	must(t, err)
	if len(stats.Items) != 1 || stats.Items[0].Namespace != "b" {
		t.Errorf("statistics of %+v", stats.Items)
	}

	// Another namespace cannot be asked for, whether it is there or not.
	for _, other := range []string{"a", "none"} {
		_, err = w.List(b, sandbox.ListRequest{Namespace: other})
		wantCode(t, err, sandbox.CodeForbidden)
		_, err = w.ListStats(b, sandbox.StatsRequest{Namespace: other})
		wantCode(t, err, sandbox.CodeForbidden)
		_, err = w.Create(b, sandbox.CreateRequest{Namespace: other})
		wantCode(t, err, sandbox.CodeForbidden)
	}
	_, err = w.List(inNamespace(asRed(t), "Not a name"), sandbox.ListRequest{})
	wantCode(t, err, sandbox.CodeInvalid)

	// A name in two namespaces is ambiguous for a caller in none.
	_, err = w.Kill(whole, "web")
	wantCode(t, err, sandbox.CodeConflict)
	got, err := w.Get(inNamespace(asRed(t), "a"), "web")
	if err != nil || got.ID != made.ID {
		t.Errorf("in a, web is %+v, %v", got, err)
	}
	_, err = w.Kill(whole, made.ID)
	must(t, err)
	got, err = w.Get(whole, "web")
	if err != nil || got.Namespace != "b" {
		t.Errorf("of the whole team, web is %+v, %v", got, err)
	}
	w.agree()
}

// TestNamespaceIsInherited checks the namespace of everything that is made from a
// sandbox, by a caller in its namespace and by one of the whole team.
func TestNamespaceIsInherited(t *testing.T) {
	w := newHarness(t, keepVolumes(t.TempDir()))
	a, b, whole := inNamespace(asRed(t), "a"), inNamespace(asRed(t), "b"), asRed(t)
	_, err := w.CreateVolume(b, sandbox.CreateVolumeRequest{Name: "data"})
	must(t, err)
	made, err := w.Create(a, sandbox.CreateRequest{Name: "web", Mounts: []sandbox.Mount{{Target: "/data", Volume: "data"}}})
	must(t, err)
	forks, err := w.Fork(whole, "web", sandbox.ForkRequest{Name: "child"})
	must(t, err)
	if got := forks.Items[0].Namespace; got != "a" {
		t.Errorf("a fork is in %q", got)
	}
	snap, err := w.CreateSnapshot(whole, "web", sandbox.CreateSnapshotRequest{Name: "ready"})
	must(t, err)
	if snap.Namespace != "a" {
		t.Errorf("a snapshot is in %q", snap.Namespace)
	}
	_, err = w.GetSnapshot(a, "ready")
	must(t, err)
	again, err := w.Create(a, sandbox.CreateRequest{Snapshot: "ready"})
	must(t, err)
	if again.Namespace != "a" {
		t.Errorf("from a snapshot: in %q", again.Namespace)
	}
	_, err = w.CreatePreview(a, "web", sandbox.CreatePreviewRequest{Port: 80})
	must(t, err)
	for name, x := range map[string]struct {
		who  context.Context
		want int
	}{"own": {a, 1}, "another": {b, 0}, "whole": {whole, 1}} {
		list, err := w.ListPreviews(x.who, "", sandbox.Page{})
		must(t, err)
		if len(list.Items) != x.want {
			t.Errorf("%s: previews %+v", name, list.Items)
		}
	}
	// The volume belongs to the team, but the sandboxes that use it to a namespace.
	for who, want := range map[context.Context]bool{a: true, b: false} {
		vol, err := w.GetVolume(who, "data")
		must(t, err)
		list, err := w.ListVolumes(who, sandbox.Page{})
		must(t, err)
		if got := len(vol.Sandboxes) > 0; got != want || len(list.Items) != 1 || len(list.Items[0].Sandboxes) > 0 != want {
			t.Errorf("used by %v and %+v", vol.Sandboxes, list.Items)
		}
	}
	// The namespace is still known after a restart.
	w.restart()
	_, err = w.Exec(inNamespace(asRed(t), "b"), made.ID, sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.Exec(a, made.ID, sandbox.ExecRequest{Shell: "true"}, nil)
	must(t, err)
	_, err = w.Exec(inNamespace(asRed(t), "b"), made.ID, sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotFound)
	w.agree()
}

// TestWholeTeam calls verbs that concern the whole team.
func TestWholeTeam(t *testing.T) {
	w := newHarness(t)
	a := inNamespace(asRed(t), "a")
	for name, call := range map[string]func() error{
		"audit":   func() error { _, err := w.Audit(a, sandbox.AuditRequest{}); return err },
		"orphans": func() error { _, err := w.ListOrphans(a, sandbox.Page{}); return err },
		"recover": func() error { _, err := w.RecoverOrphan(a, "cp-none"); return err },
	} {
		if err := call(); sandbox.CodeOf(err) != sandbox.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	sbx, err := w.Create(a, sandbox.CreateRequest{})
	must(t, err)
	events, err := w.Audit(a, sandbox.AuditRequest{SandboxID: sbx.ID})
	must(t, err)
	if len(events.Items) == 0 {
		t.Error("nothing is told of the caller's own sandbox")
	}
}
