package auth

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// sessionTable is a SessionStore in memory.
type sessionTable struct {
	all     map[string]sandbox.ConsoleSession // by hash
	touched int
	err     error

	mu sync.Mutex // guards all while a request runs concurrently with the test
}

func (s *sessionTable) CreateSession(_ context.Context, made sandbox.ConsoleSession, hash []byte, _ int) error {
	s.all[string(hash)] = made
	return s.err
}

func (s *sessionTable) SessionByHash(_ context.Context, hash []byte) (sandbox.ConsoleSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[string(hash)]
	if s.err == nil && !ok {
		return found, sandbox.Errorf(sandbox.CodeNotFound, "no such session")
	}
	return found, s.err
}

func (s *sessionTable) TouchSession(_ context.Context, id string, at, expires time.Time) error {
	s.touched++
	for hash, found := range s.all {
		if found.ID == id {
			found.LastUsedAt, found.ExpiresAt = at, expires
			s.all[hash] = found
		}
	}
	return s.err
}

// signedIn returns sessions, one of which belongs to key, and its cookie.
func signedIn(t *testing.T, key *sandbox.Key) (*Sessions, *sessionTable, *keyTable, *http.Cookie) {
	t.Helper()
	table := &sessionTable{all: map[string]sandbox.ConsoleSession{}}
	keys := &keyTable{keys: map[string]*sandbox.Key{"hash": key}}
	s := NewSessions(table, &Keys{Store: keys}, nil)
	token, _, err := s.Begin(t.Context(), callerOf(key), strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	SetSessionCookie(w, false, token, time.Now().Add(time.Hour))
	return s, table, keys, w.Result().Cookies()[0]
}

// ask returns the error code for a session's cookie, or "" if the session is valid.
func ask(s *Sessions, cookie *http.Cookie) sandbox.Code {
	r := httptest.NewRequest("GET", "/", nil)
	r.AddCookie(cookie)
	_, err := s.Of(r)
	return sandbox.CodeOf(err)
}

func redKey() *sandbox.Key {
	return &sandbox.Key{ID: "key-red", Name: "red's", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}
}

func TestSessionTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, table, keys, cookie := signedIn(t, redKey())
		for _, found := range table.all {
			if len(found.Client) > maxClient+len("…") {
				t.Errorf("%d bytes are kept of a browser's name", len(found.Client))
			}
		}
		// Used now and then, it lasts a week and no longer.
		began := time.Now()
		for ask(s, cookie) == "" {
			if ask(s, cookie); time.Since(began) > 30*24*time.Hour {
				t.Fatal("a session in use lasts for a month")
			}
			time.Sleep(SessionIdle - time.Second)
		}
		if got := time.Since(began); got < SessionLifetime || got >= SessionLifetime+SessionIdle {
			t.Errorf("a session in use lasted %v", got)
		}
		if got := len(keys.touched); got != table.touched || got == 0 {
			t.Errorf("%d uses were noted of the key, %d of the session", got, table.touched)
		}

		s, _, _, cookie = signedIn(t, redKey())
		time.Sleep(SessionIdle)
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("a session that was not used for %v: %q", SessionIdle, got)
		}
	})
}

func TestSessionUseIsRecordedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, table, _, cookie := signedIn(t, redKey())
		for range 8 {
			time.Sleep(touchEvery / 4)
			if got := ask(s, cookie); got != "" {
				t.Error(got)
			}
		}
		if table.touched != 2 {
			t.Errorf("noted %d times in two minutes", table.touched)
		}
	})
}

// TestSessionFollowsItsKey checks that a session always has the current rights of its key.
func TestSessionFollowsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := redKey()
		soon := time.Now().Add(time.Hour)
		key.ExpiresAt = &soon
		s, table, keys, cookie := signedIn(t, key)
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(cookie)
		found, err := s.Of(r)
		if err != nil || !found.ExpiresAt.Equal(soon) || found.KeyName != "red's" {
			t.Fatalf("%+v, %v", found, err)
		}
		key.Scopes = []sandbox.Scope{sandbox.ScopeSecretsWrite}
		if found, err = s.Of(r); err != nil || !slices.Equal(found.Caller.Scopes, key.Scopes) {
			t.Errorf("with other scopes of the key: %+v, %v", found, err)
		}
		time.Sleep(time.Hour)
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("of an expired key: %q", got)
		}
		key.ExpiresAt, key.RevokedAt = nil, &soon
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("of a revoked key: %q", got)
		}
		key.RevokedAt = nil
		if got := ask(s, cookie); got != "" {
			t.Fatal(got)
		}
		delete(keys.keys, "hash")
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("of a key that is gone: %q", got)
		}
		table.err = errors.New("disk on fire")
		if got := ask(s, cookie); got != sandbox.CodeInternal {
			t.Errorf("with a broken store: %q", got)
		}
	})
}

// TestLongRequestEndsWithItsSession checks that a long-running request, such as a terminal,
// ends soon after its session does.
func TestLongRequestEndsWithItsSession(t *testing.T) {
	for name, end := range map[string]func(*sessionTable, *sandbox.Key){
		"signed out":  func(s *sessionTable, _ *sandbox.Key) { clear(s.all) },
		"key revoked": func(_ *sessionTable, k *sandbox.Key) { k.RevokedAt = new(time.Now()) },
		"expired": func(s *sessionTable, _ *sandbox.Key) {
			for hash, found := range s.all {
				found.ExpiresAt = time.Now()
				s.all[hash] = found
			}
		},
		"not at all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key := redKey()
				s, table, keys, cookie := signedIn(t, key)
				ended := make(chan time.Duration, 1)
				began := time.Now()
				m := Middleware(Config{Sessions: s, Cookie: func(*http.Request) bool { return true }, Authenticator: s.keys})
				handler := m(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					select {
					case <-r.Context().Done():
						ended <- time.Since(began)
					case <-time.After(10 * time.Minute):
						ended <- 0
					}
				}))
				r := httptest.NewRequest("GET", "/v1/x", nil)
				r.AddCookie(cookie)
				r.Header.Set(ConsoleHeader, "1")
				go handler.ServeHTTP(httptest.NewRecorder(), r)
				time.Sleep(time.Minute)
				if end == nil {
					if got := <-ended; got != 0 {
						t.Errorf("ended after %v", got)
					}
					return
				}
				table.mu.Lock()
				keys.mu.Lock()
				end(table, key)
				keys.mu.Unlock()
				table.mu.Unlock()
				if got := <-ended; got < time.Minute || got > time.Minute+recheckTime {
					t.Errorf("ended after %v", got)
				}
			})
		})
	}
}

func TestLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLinks()
		use := func(token Secret, says string) {
			t.Helper()
			err := l.Use(t.Context(), token.Reveal())
			if says == "" && err == nil {
				return
			}
			if sandbox.CodeOf(err) != sandbox.CodeUnauthenticated || says == "" || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want unauthenticated that says %q", err, says)
			}
		}
		mint := func() Secret {
			t.Helper()
			token, expires, err := l.Make()
			if err != nil || time.Until(expires) != LinkLifetime {
				t.Fatalf("%v, until %v", err, expires)
			}
			return token
		}
		first, second := mint(), mint()
		use(first, "")
		use(first, "used already")
		use(NewSecret(""), "not known")
		use(NewSecret(strings.Repeat("x", 10_000)), "not known")
		time.Sleep(LinkLifetime - 1)
		use(second, "")
		third := mint()
		time.Sleep(LinkLifetime)
		use(third, "has expired")
		time.Sleep(linkMemory + 1)
		for range maxLinks {
			mint()
		}
		use(third, "not known")
		if _, _, err := l.Make(); sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
			t.Errorf("one more: %v", err)
		}
	})
}

func TestLinkWorksOnceConcurrently(t *testing.T) {
	l := NewLinks()
	token, _, err := l.Make()
	if err != nil {
		t.Fatal(err)
	}
	var used atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if l.Use(t.Context(), token.Reveal()) == nil {
				used.Add(1)
			}
		})
	}
	wg.Wait()
	if n := used.Load(); n != 1 {
		t.Errorf("the link worked %d times", n)
	}
}

// everybody is a [People] that gives everybody a team's read scope, in sessions of an hour.
type everybody struct{ team string }

func (e *everybody) CallerOf(p *sandbox.Person) (sandbox.Caller, error) {
	if e.team == "" {
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "no rule")
	}
	return sandbox.Caller{KeyID: p.Actor(), Team: e.team, Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}, nil
}

func (*everybody) SessionLifetime() time.Duration { return time.Hour }

// TestSessionOfAPerson checks that a person's session ends on time even if it is used, has
// the rights that the rules give, and does not depend on a key.
func TestSessionOfAPerson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, keys, people := &sessionTable{all: map[string]sandbox.ConsoleSession{}}, &keyTable{}, &everybody{team: "red"}
		s := NewSessions(table, &Keys{Store: keys}, people)
		begin := func() *http.Cookie {
			t.Helper()
			token, made, err := s.BeginPerson(t.Context(), &sandbox.Person{Issuer: "https://login.example", Subject: "1", Email: "ann@example.com"}, "browser")
			if err != nil || made.KeyID != "sso:ann@example.com" || made.KeyName != "ann@example.com" || made.Caller.Team != "red" {
				t.Fatalf("%+v, %v", made, err)
			}
			w := httptest.NewRecorder()
			SetSessionCookie(w, false, token, time.Now().Add(time.Hour))
			return w.Result().Cookies()[0]
		}
		cookie, began := begin(), time.Now()
		for ask(s, cookie) == "" && time.Since(began) < 2*time.Hour {
			time.Sleep(touchEvery)
		}
		if got := time.Since(began); got != time.Hour {
			t.Errorf("a session in use lasted %v", got)
		}
		if table.touched == 0 || len(keys.touched) > 0 {
			t.Errorf("%d uses were noted of the session, %d of a key", table.touched, len(keys.touched))
		}
		cookie = begin()
		people.team = "blue"
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("somebody who would be of another team: %q", got)
		}
		people.team = ""
		if got := ask(s, cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("somebody of whom no rule speaks: %q", got)
		}
		if _, _, err := s.BeginPerson(t.Context(), &sandbox.Person{}, ""); sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
			t.Errorf("a session without rights began: %v", err)
		}
		people.team = "red"
		if got := ask(NewSessions(table, &Keys{Store: keys}, nil), cookie); got != sandbox.CodeUnauthenticated {
			t.Errorf("without single sign-on: %q", got)
		}
	})
}
