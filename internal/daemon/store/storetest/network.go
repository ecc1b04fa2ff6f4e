package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// policy returns a policy with every field set.
func policy() *sandbox.NetworkPolicy {
	return &sandbox.NetworkPolicy{
		Preset:   sandbox.NetworkPackages,
		Rules:    []sandbox.NetworkRule{{Action: sandbox.NetworkAllow, To: "*.example.com", Protocol: "tcp", Ports: []string{"443", "8000-8999"}}},
		AllowOut: []string{"a.example"}, DenyOut: []string{"0.0.0.0/0"}, Placeholders: sandbox.PlaceholderBlock,
		MaxConnections: 3, ConnectionsPerSecond: 4, BytesPerSecond: 5,
	}
}

func bindings() []store.Binding {
	return []store.Binding{
		{Env: "TOKEN", SecretID: "sec-a", Secret: "a", Placeholder: "cove-1"},
		{Env: "OTHER", SecretID: "sec-b", Secret: "b", Placeholder: "cove-2"},
	}
}

func testBoundTo(t *testing.T, open Opener) {
	s := open(t)
	bound := func(id string, created time.Duration, secrets ...string) store.Record {
		r := plain(id, "red", created)
		for _, s := range secrets {
			r.Bindings = append(r.Bindings, store.Binding{Env: "E" + s, SecretID: s})
		}
		return r
	}
	add(t, s, bound("1", 0), bound("2", 1, "a"), bound("3", 2, "b", "a"), bound("4", 3, "aa"))
	got, _, err := s.ListSandboxes(t.Context(), store.SandboxFilter{SecretID: "a"}, sandbox.Page{})
	must(t, err)
	wantSame(t, ids(got), []string{"3", "2"})
}

func secret(id, team, name string, created time.Duration) store.SecretRecord {
	return store.SecretRecord{
		Secret: sandbox.Secret{ID: id, Team: team, Name: name, Hosts: []string{"h"}, Version: 1, CreatedAt: epoch.Add(created)},
		Sealed: []byte{0, 1, 255},
	}
}

func testSecrets(t *testing.T, open Opener) {
	s := open(t)
	want := store.SecretRecord{
		Secret: sandbox.Secret{
			ID: "sec-a", Team: "red", Name: "x", Provider: "p", Hosts: []string{"a.example", "*.b.example"},
			Auth:     sandbox.SecretAuth{Type: "header", Name: "X-Key", Prefix: "Bearer ", User: "u", Body: true},
			Metadata: map[string]string{"owner": "us"},
			Version:  7, CreatedAt: epoch, RotatedAt: at(time.Second), LastUsedAt: at(time.Minute),
		},
		Sealed: []byte("sealed"),
	}
	small := secret("sec-b", "blue", "x", 0)
	for _, r := range []store.SecretRecord{want, small} {
		must(t, s.CreateSecret(t.Context(), r, 0))
	}
	must(t, s.Close())
	s = open(t)
	for _, w := range []store.SecretRecord{want, small} {
		got, err := s.Secret(t.Context(), w.ID)
		must(t, err)
		wantSame(t, got, w)
		got, err = s.SecretByName(t.Context(), w.Team, w.Name)
		must(t, err)
		wantSame(t, got, w)
	}
	wantCode(t, s.CreateSecret(t.Context(), secret("sec-c", "red", "x", 0), 0), sandbox.CodeConflict)
	wantCode(t, s.CreateSecret(t.Context(), secret("sec-a", "red", "y", 0), 0), sandbox.CodeConflict)
	_, err := s.SecretByName(t.Context(), "green", "x")
	wantCode(t, err, sandbox.CodeNotFound)

	boom := sandbox.Errorf(sandbox.CodeTooLarge, "boom")
	_, err = s.UpdateSecret(t.Context(), "sec-a", func(r *store.SecretRecord) error { r.Version = 99; return boom })
	wantCode(t, err, sandbox.CodeTooLarge)
	want.Version, want.Sealed, want.RotatedAt = 8, []byte("new"), at(time.Hour)
	got, err := s.UpdateSecret(t.Context(), "sec-a", func(r *store.SecretRecord) error {
		r.Version++
		r.Sealed, r.RotatedAt = []byte("new"), at(time.Hour)
		return nil
	})
	must(t, err)
	wantSame(t, got, want)
	must(t, s.TouchSecret(t.Context(), "sec-a", epoch)) // not back
	got, err = s.Secret(t.Context(), "sec-a")
	must(t, err)
	wantSame(t, got, want)
	must(t, s.TouchSecret(t.Context(), "sec-a", epoch.Add(time.Hour)))
	got, err = s.Secret(t.Context(), "sec-a")
	must(t, err)
	wantSame(t, got.LastUsedAt, at(time.Hour))

	must(t, s.DeleteSecret(t.Context(), "sec-a"))
	must(t, s.DeleteSecret(t.Context(), "sec-a"))
	_, err = s.Secret(t.Context(), "sec-a")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.UpdateSecret(t.Context(), "sec-a", func(*store.SecretRecord) error { return nil })
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, s.CreateSecret(t.Context(), secret("sec-d", "red", "x", 0), 0))
}

func testSecretQuota(t *testing.T, open Opener) {
	s := open(t)
	must(t, s.CreateSecret(t.Context(), secret("1", "blue", "a", 0), 1))
	must(t, s.CreateSecret(t.Context(), secret("2", "red", "a", 0), 1))
	wantCode(t, s.CreateSecret(t.Context(), secret("3", "red", "b", 0), 1), sandbox.CodeQuotaExceeded)
}

func testSecretPages(t *testing.T, open Opener) {
	s := open(t)
	for i := range 5 {
		must(t, s.CreateSecret(t.Context(), secret(fmt.Sprint(i), "red", fmt.Sprint("n", i), time.Duration(i)), 0))
	}
	must(t, s.CreateSecret(t.Context(), secret("blue", "blue", "n", 9), 0))
	var got []string
	p := sandbox.Page{Limit: 2}
	for {
		page, next, err := s.ListSecrets(t.Context(), "red", p)
		must(t, err)
		for _, r := range page {
			got = append(got, r.ID)
		}
		if next == "" {
			break
		}
		p.Cursor = next
	}
	wantSame(t, got, []string{"4", "3", "2", "1", "0"})
	all, _, err := s.ListSecrets(t.Context(), "", sandbox.Page{})
	must(t, err)
	wantSame(t, len(all), 6)
}

// putPreview adds a preview of a port.
func putPreview(t *testing.T, s store.Store, sandboxID string, port int, expires *time.Time) store.PreviewRecord {
	t.Helper()
	r, err := s.ChangePreview(t.Context(), sandboxID, port, epoch, 0, func(r *store.PreviewRecord) error {
		r.ID, r.Team, r.Access, r.CreatedAt, r.ExpiresAt = fmt.Sprint("prv-", sandboxID, port), "red", sandbox.PreviewPublic, epoch, expires
		return nil
	})
	must(t, err)
	return r
}

func previewPorts(t *testing.T, s store.Store, team, sandboxID string, now time.Time) []int {
	t.Helper()
	all, next, err := s.ListPreviews(t.Context(), team, "", sandboxID, now, sandbox.Page{})
	must(t, err)
	if next != "" {
		t.Errorf("a page of %d previews is not the last", len(all))
	}
	var ports []int
	for _, r := range all {
		ports = append(ports, r.Port)
	}
	return ports
}

func testPreviews(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0), plain("b", "red", 1))
	want := store.PreviewRecord{
		Preview: sandbox.Preview{
			ID: "prv-1", SandboxID: "a", Port: 80, Access: sandbox.PreviewPrivate, Wake: true, CreatedAt: epoch, ExpiresAt: at(time.Hour),
		},
		Team: "red", KeyHash: []byte{1, 0, 2}, Generation: 3,
	}
	got, err := s.ChangePreview(t.Context(), "a", 80, epoch, 0, func(r *store.PreviewRecord) error {
		if r.ID != "" {
			t.Errorf("a new preview has the id %s", r.ID)
		}
		*r = want
		r.SandboxID, r.Port, r.URL = "other", 1, "http://x"
		return nil
	})
	must(t, err)
	wantSame(t, got, want)
	must(t, s.Close())
	s = open(t)
	got, err = s.Preview(t.Context(), "a", 80)
	must(t, err)
	wantSame(t, got, want)
	boom := sandbox.Errorf(sandbox.CodeTooLarge, "boom")
	_, err = s.ChangePreview(t.Context(), "a", 80, epoch, 0, func(*store.PreviewRecord) error { return boom })
	wantCode(t, err, sandbox.CodeTooLarge)
	want.Generation, want.KeyHash = 4, nil
	got, err = s.ChangePreview(t.Context(), "a", 80, epoch, 0, func(r *store.PreviewRecord) error {
		r.Generation++
		r.KeyHash = nil
		return nil
	})
	must(t, err)
	wantSame(t, got, want)

	putPreview(t, s, "b", 9, nil)
	putPreview(t, s, "b", 7, nil)
	wantSame(t, previewPorts(t, s, "red", "b", epoch), []int{7, 9})
	wantSame(t, previewPorts(t, s, "red", "", epoch), []int{80, 7, 9})
	wantSame(t, previewPorts(t, s, "blue", "", epoch), []int(nil))
	wantSame(t, previewPorts(t, s, "blue", "b", epoch), []int(nil))
	_, err = s.Preview(t.Context(), "b", 80)
	wantCode(t, err, sandbox.CodeNotFound)
	must(t, s.DeletePreview(t.Context(), "b", 9))
	must(t, s.DeletePreview(t.Context(), "b", 9))
	wantSame(t, previewPorts(t, s, "red", "b", epoch), []int{7})

	change(t, s, "b", func(r *store.Record) { r.State, r.EndedAt = sandbox.StateKilled, at(0) })
	wantSame(t, previewPorts(t, s, "red", "", epoch), []int{80})
	wantSame(t, previewPorts(t, s, "red", "b", epoch), []int{7})
	_, err = s.DeleteEndedSandboxes(t.Context(), epoch.Add(time.Hour))
	must(t, err)
	must(t, s.DeleteSandbox(t.Context(), "a"))
	for _, c := range []struct {
		id   string
		port int
	}{{"a", 80}, {"b", 7}} {
		_, err = s.Preview(t.Context(), c.id, c.port)
		wantCode(t, err, sandbox.CodeNotFound)
	}
}

// testPreviewPages deletes and makes previews between two pages.
func testPreviewPages(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0), plain("b", "red", 1), plain("c", "blue", 2))
	for _, id := range []string{"b", "a"} {
		for _, port := range []int{443, 80, 9} {
			putPreview(t, s, id, port, nil)
		}
	}
	for limit, want := range map[int][]string{
		1: {"a9", "a80", "a443", "b9", "b80", "b443"}, 2: {"a9", "a80", "a443", "b9", "b80", "b443"}, 6: {"a9", "a80", "a443", "b9", "b80", "b443"},
	} {
		var got []string
		p := sandbox.Page{Limit: limit}
		for {
			part, next, err := s.ListPreviews(t.Context(), "red", "", "", epoch, p)
			must(t, err)
			for _, r := range part {
				got = append(got, fmt.Sprint(r.SandboxID, r.Port))
			}
			if p.Cursor = next; next == "" || len(got) > len(want) {
				break
			}
		}
		wantSame(t, got, want)
	}
	part, next, err := s.ListPreviews(t.Context(), "red", "", "", epoch, sandbox.Page{Limit: 2})
	must(t, err)
	if len(part) != 2 {
		t.Fatalf("a part of 2 has %d", len(part))
	}
	must(t, s.DeletePreview(t.Context(), "a", 80))
	must(t, s.DeletePreview(t.Context(), "a", 443))
	putPreview(t, s, "a", 7, nil)
	part, next, err = s.ListPreviews(t.Context(), "red", "", "", epoch, sandbox.Page{Limit: 2, Cursor: next})
	must(t, err)
	wantSame(t, []string{part[0].ID, part[1].ID}, []string{"prv-b9", "prv-b80"})
	_, _, err = s.ListSandboxes(t.Context(), store.SandboxFilter{}, sandbox.Page{Cursor: next})
	wantCode(t, err, sandbox.CodeInvalid)
}

func testPreviewsExpire(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0))
	putPreview(t, s, "a", 1, at(time.Minute))
	putPreview(t, s, "a", 2, at(time.Hour))
	wantSame(t, previewPorts(t, s, "red", "a", epoch.Add(time.Minute)), []int{2})
	r, err := s.ChangePreview(t.Context(), "a", 1, epoch.Add(time.Minute), 2, func(r *store.PreviewRecord) error {
		if r.ID != "" {
			t.Errorf("an expired preview is changed")
		}
		r.ID, r.Team, r.CreatedAt = "prv-new", "red", epoch
		return nil
	})
	must(t, err)
	wantSame(t, r.ID, "prv-new")
}

// testPreviewsHadKeys ends previews. The store knows of those that had a key until their
// sandbox is gone, and they take no room of others.
func testPreviewsHadKeys(t *testing.T, open Opener) {
	s := open(t)
	add(t, s, plain("a", "red", 0))
	private := func(port int, expires *time.Time) func(*store.PreviewRecord) error {
		return func(r *store.PreviewRecord) error {
			r.ID, r.Team, r.Access, r.CreatedAt, r.ExpiresAt = fmt.Sprintf("prv-%d-%d", port, r.Generation), "red", sandbox.PreviewPrivate, epoch, expires
			r.KeyHash, r.Generation = []byte{1}, r.Generation+1
			return nil
		}
	}
	later := epoch.Add(time.Hour)
	for port, expires := range map[int]*time.Time{1: at(time.Minute), 2: nil} {
		_, err := s.ChangePreview(t.Context(), "a", port, epoch, 2, private(port, expires))
		must(t, err)
	}
	must(t, s.DeletePreview(t.Context(), "a", 2))
	putPreview(t, s, "a", 3, at(time.Minute))
	putPreview(t, s, "a", 4, nil)
	must(t, s.DeletePreview(t.Context(), "a", 4))
	for _, port := range []int{5, 6} { // no more than two are open
		_, err := s.ChangePreview(t.Context(), "a", port, later, 2, private(port, nil))
		must(t, err)
	}
	wantSame(t, previewPorts(t, s, "red", "a", later), []int{5, 6})
	for port, want := range map[int]sandbox.Code{1: "", 2: "", 3: sandbox.CodeNotFound, 4: sandbox.CodeNotFound} {
		r, err := s.Preview(t.Context(), "a", port)
		if sandbox.CodeOf(err) != want || err == nil && (r.Generation != 1 || r.ExpiresAt == nil || r.ExpiresAt.After(later)) {
			t.Errorf("the preview of port %d is %+v, %v", port, r, err)
		}
	}
	must(t, s.DeletePreview(t.Context(), "a", 5))
	got, err := s.ChangePreview(t.Context(), "a", 2, later, 2, private(2, nil))
	must(t, err)
	wantSame(t, got.ID, "prv-2-1")
	wantSame(t, got.Generation, int64(2))
	must(t, s.DeleteSandbox(t.Context(), "a"))
	_, err = s.Preview(t.Context(), "a", 1)
	wantCode(t, err, sandbox.CodeNotFound)
}

func testPreviewQuota(t *testing.T, open Opener) {
	s := open(t)
	putPreview(t, s, "b", 1, nil)
	nothing := func(r *store.PreviewRecord) error {
		r.ID = fmt.Sprint("prv-", r.SandboxID, time.Now().UnixNano())
		r.CreatedAt = epoch
		return nil
	}
	for port := range 3 {
		_, err := s.ChangePreview(t.Context(), "a", port+1, epoch, 3, nothing)
		must(t, err)
	}
	_, err := s.ChangePreview(t.Context(), "a", 9, epoch, 3, nothing)
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	_, err = s.ChangePreview(t.Context(), "a", 2, epoch, 3, nothing)
	must(t, err)
}
