package storetest

import (
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

func session(id, key, team string, created time.Duration) sandbox.ConsoleSession {
	return sandbox.ConsoleSession{
		ID: id, KeyID: key, Team: team, Client: "browser of " + id,
		CreatedAt: epoch.Add(created), LastUsedAt: epoch.Add(created), ExpiresAt: epoch.Add(created + time.Hour),
	}
}

func testSessions(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	a, b, c, d := session("a", "key-1", "red", 1), session("b", "key-1", "red", 2), session("c", "key-2", "red", 3), session("d", "key-3", "blue", 4)
	c.Person = &sandbox.Person{Issuer: "https://login.example", Subject: "1", Email: "c@example.com", Claims: []sandbox.Claim{{Name: "groups", Value: "red"}}}
	for i, r := range []sandbox.ConsoleSession{a, b, c, d} {
		must(t, s.CreateSession(ctx, r, []byte{byte(i)}, 10))
	}
	wantCode(t, s.CreateSession(ctx, session("e", "key-1", "red", 0), []byte{0}, 10), sandbox.CodeConflict)
	must(t, s.Close())
	s = open(t)

	got, err := s.SessionByHash(ctx, []byte{1})
	must(t, err)
	wantSame(t, got, b)
	_, err = s.SessionByHash(ctx, []byte{9})
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.SessionByHash(ctx, nil)
	wantCode(t, err, sandbox.CodeNotFound)

	list := func(team, key string, now time.Duration, p sandbox.Page, want ...sandbox.ConsoleSession) string {
		t.Helper()
		got, next, err := s.ListSessions(ctx, team, key, epoch.Add(now), p)
		must(t, err)
		wantSame(t, got, want)
		return next
	}
	next := list("red", "", 0, sandbox.Page{Limit: 2}, c, b)
	list("red", "", 0, sandbox.Page{Limit: 2, Cursor: next}, a)
	list("red", "key-1", 0, sandbox.Page{}, b, a)
	list("blue", "key-1", 0, sandbox.Page{})
	list("red", "", time.Hour+2, sandbox.Page{}, c)

	// A later use counts, an earlier one does not.
	must(t, s.TouchSession(ctx, "a", epoch.Add(time.Minute), epoch.Add(2*time.Hour)))
	must(t, s.TouchSession(ctx, "a", epoch.Add(time.Second), epoch.Add(3*time.Hour)))
	a.LastUsedAt, a.ExpiresAt = epoch.Add(time.Minute), epoch.Add(2*time.Hour)
	list("red", "", time.Hour+3, sandbox.Page{}, a)

	wantCode(t, s.DeleteSession(ctx, "blue", "", "a"), sandbox.CodeNotFound)
	wantCode(t, s.DeleteSession(ctx, "red", "key-2", "a"), sandbox.CodeNotFound)
	must(t, s.DeleteSession(ctx, "red", "key-2", "c"))
	wantCode(t, s.DeleteSession(ctx, "red", "", "c"), sandbox.CodeNotFound)

	n, err := s.TrimSessions(ctx, epoch.Add(time.Hour+2))
	must(t, err)
	wantSame(t, n, 1)
	list("red", "", 0, sandbox.Page{}, a)
}

func testSessionsOfKey(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	for i, id := range []string{"a", "b", "c"} {
		must(t, s.CreateSession(ctx, session(id, "key-1", "red", time.Duration(i)), []byte(id), 3))
	}
	other := session("o", "key-2", "red", 0)
	must(t, s.CreateSession(ctx, other, []byte("o"), 3))
	must(t, s.TouchSession(ctx, "a", epoch.Add(time.Minute), epoch.Add(time.Hour)))
	// The least lately used of the key make room.
	must(t, s.CreateSession(ctx, session("d", "key-1", "red", 3), []byte("d"), 2))
	ids := func() (all []string) {
		got, _, err := s.ListSessions(ctx, "red", "", epoch, sandbox.Page{})
		must(t, err)
		for _, r := range got {
			all = append(all, r.ID)
		}
		return all
	}
	wantSame(t, ids(), []string{"d", "o", "a"})

	// A key that is revoked has no sessions any more.
	must(t, s.CreateKey(ctx, sandbox.Key{ID: "key-1", Team: "red", CreatedAt: epoch}, []byte("key")))
	_, err := s.RevokeKey(ctx, "red", "key-1", epoch)
	must(t, err)
	wantSame(t, ids(), []string{"o"})
}
