package storetest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func testKeys(t *testing.T, open Opener) {
	s := open(t)
	key := func(id, team string, created time.Duration) sandbox.Key {
		return sandbox.Key{ID: id, Name: "n " + id, Team: team, Hint: "cove_ab", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}, CreatedAt: epoch.Add(created), ExpiresAt: at(time.Hour)}
	}
	a, b, c := key("key-a", "red", 1), key("key-b", "red", 2), key("key-c", "blue", 3)
	for i, k := range []sandbox.Key{a, b, c} {
		must(t, s.CreateKey(t.Context(), k, []byte{byte(i)}))
	}
	wantCode(t, s.CreateKey(t.Context(), key("key-d", "red", 0), []byte{0}), sandbox.CodeConflict)
	must(t, s.Close())
	s = open(t)

	got, hash, err := s.KeyByHash(t.Context(), []byte{1})
	must(t, err)
	wantSame(t, got, b)
	wantSame(t, hash, []byte{1})
	_, _, err = s.KeyByHash(t.Context(), []byte{9})
	wantCode(t, err, sandbox.CodeNotFound)
	_, _, err = s.KeyByHash(t.Context(), nil)
	wantCode(t, err, sandbox.CodeNotFound)

	got, err = s.KeyByID(t.Context(), "key-b")
	must(t, err)
	wantSame(t, got, b)
	_, err = s.KeyByID(t.Context(), "key-x")
	wantCode(t, err, sandbox.CodeNotFound)

	page, next, err := s.ListKeys(t.Context(), "red", sandbox.Page{Limit: 1})
	must(t, err)
	wantSame(t, page, []sandbox.Key{b})
	page, next, err = s.ListKeys(t.Context(), "red", sandbox.Page{Limit: 1, Cursor: next})
	must(t, err)
	wantSame(t, page, []sandbox.Key{a})
	wantSame(t, next, "")
	page, _, err = s.ListKeys(t.Context(), "", sandbox.Page{})
	must(t, err)
	wantSame(t, page, []sandbox.Key{c, b, a})

	for _, d := range []time.Duration{time.Minute, time.Second} {
		must(t, s.TouchKey(t.Context(), "key-a", epoch.Add(d)))
	}
	_, err = s.RevokeKey(t.Context(), "blue", "key-a", epoch)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.RevokeKey(t.Context(), "", "key-none", epoch)
	wantCode(t, err, sandbox.CodeNotFound)
	for _, d := range []time.Duration{time.Minute, time.Hour} {
		got, err = s.RevokeKey(t.Context(), "red", "key-a", epoch.Add(d))
		must(t, err)
		wantSame(t, got.RevokedAt, at(time.Minute))
	}
	_, err = s.RevokeKey(t.Context(), "", "key-c", epoch)
	must(t, err)
	got, _, err = s.KeyByHash(t.Context(), []byte{0})
	must(t, err)
	a.RevokedAt, a.LastUsedAt = at(time.Minute), at(time.Minute)
	wantSame(t, got, a)
}

func event(i int, team, sbx string) sandbox.AuditEvent {
	return sandbox.AuditEvent{Time: epoch.Add(time.Duration(i) * time.Second), Team: team, KeyID: "key-a", Action: "sandbox.kill", SandboxID: sbx, Detail: fmt.Sprint("n", i), Code: sandbox.CodeConflict}
}

func testAudit(t *testing.T, open Opener) {
	s := open(t)
	must(t, s.AppendAudit(t.Context(), nil))
	must(t, s.AppendAudit(t.Context(), []sandbox.AuditEvent{event(0, "red", "sbx-a"), event(1, "blue", "sbx-b")}))
	must(t, s.AppendAudit(t.Context(), []sandbox.AuditEvent{event(2, "red", ""), event(3, "red", "sbx-a")}))
	must(t, s.Close())
	s = open(t)
	details := func(f store.AuditFilter, p sandbox.Page) ([]string, string) {
		events, next, err := s.ListAudit(t.Context(), f, p)
		must(t, err)
		var all []string
		for _, e := range events {
			all = append(all, e.Detail)
		}
		return all, next
	}
	got, _ := details(store.AuditFilter{}, sandbox.Page{})
	wantSame(t, got, []string{"n3", "n2", "n1", "n0"})
	got, _ = details(store.AuditFilter{Team: "blue"}, sandbox.Page{})
	wantSame(t, got, []string{"n1"})
	got, _ = details(store.AuditFilter{Team: "red", SandboxID: "sbx-a"}, sandbox.Page{})
	wantSame(t, got, []string{"n3", "n0"})
	got, _ = details(store.AuditFilter{Team: "red", SandboxID: "sbx-b"}, sandbox.Page{})
	wantSame(t, got, []string(nil))
	got, next := details(store.AuditFilter{Team: "red"}, sandbox.Page{Limit: 2})
	wantSame(t, got, []string{"n3", "n2"})
	must(t, s.AppendAudit(t.Context(), []sandbox.AuditEvent{event(4, "red", "")}))
	got, next = details(store.AuditFilter{Team: "red"}, sandbox.Page{Limit: 2, Cursor: next})
	wantSame(t, got, []string{"n0"})
	wantSame(t, next, "")
	events, _, err := s.ListAudit(t.Context(), store.AuditFilter{Team: "blue"}, sandbox.Page{})
	must(t, err)
	want := event(1, "blue", "sbx-b")
	want.ID = events[0].ID
	wantSame(t, events, []sandbox.AuditEvent{want})
}

func testAuditTrim(t *testing.T, open Opener) {
	s := open(t)
	for i := range 10 {
		must(t, s.AppendAudit(t.Context(), []sandbox.AuditEvent{event(i, "red", "")}))
	}
	n, err := s.TrimAudit(t.Context(), epoch.Add(2*time.Second), 100)
	must(t, err)
	wantSame(t, n, 2)
	n, err = s.TrimAudit(t.Context(), epoch, 3)
	must(t, err)
	wantSame(t, n, 5)
	events, _, err := s.ListAudit(t.Context(), store.AuditFilter{}, sandbox.Page{})
	must(t, err)
	if len(events) != 3 || events[0].Detail != "n9" {
		t.Fatalf("left after the trim: %v, want the newest three", events)
	}
	n, err = s.TrimAudit(t.Context(), epoch, 0)
	must(t, err)
	wantSame(t, n, 3)
}

func testTemplates(t *testing.T, open Opener) {
	s := open(t)
	a := store.Template{Name: "a", Source: "debian", State: sandbox.TemplateBuilding, UpdatedAt: epoch}
	b := store.Template{
		Name: "b", Source: "debian", Digest: "sha256:1", State: sandbox.TemplateReady, Reason: "r", SizeBytes: 7, BuiltAt: at(1),
		Definition: json.RawMessage(`{"packages":["git"]}`), UpdatedAt: epoch,
	}
	must(t, s.PutTemplate(t.Context(), b))
	must(t, s.PutTemplate(t.Context(), a))
	a.State, a.Reason, a.UpdatedAt = sandbox.TemplateFailed, "no network", epoch.Add(1)
	must(t, s.PutTemplate(t.Context(), a))
	must(t, s.Close())
	s = open(t)
	all, err := s.ListTemplates(t.Context())
	must(t, err)
	wantSame(t, all, []store.Template{a, b})
	got, err := s.Template(t.Context(), "b")
	must(t, err)
	wantSame(t, got, b)
	must(t, s.DeleteTemplate(t.Context(), "b"))
	must(t, s.DeleteTemplate(t.Context(), "b"))
	_, err = s.Template(t.Context(), "b")
	wantCode(t, err, sandbox.CodeNotFound)
}
