package auth

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// SessionIdle is how long a session lasts that is not used.
	SessionIdle = 12 * time.Hour
	// SessionLifetime is how long any session lasts at most.
	SessionLifetime = 7 * 24 * time.Hour

	// maxSessions bounds the sessions of one key.
	maxSessions = 100
	tokenBytes  = 32
	// maxClient bounds what is kept of a browser's name of itself, in bytes.
	maxClient = 200
	// recheckTime is how often the session or the key of a request that lasts is looked
	// at again.
	recheckTime = 15 * time.Second
)

// SessionStore is the part of the store that [Sessions] needs.
type SessionStore interface {
	// CreateSession adds a session whose token has this hash, and removes the least
	// lately used ones of its key over most.
	CreateSession(ctx context.Context, s sandbox.ConsoleSession, hash []byte, most int) error
	// SessionByHash returns a session, also one that has expired, or not_found.
	SessionByHash(ctx context.Context, hash []byte) (sandbox.ConsoleSession, error)
	// TouchSession moves LastUsedAt forward, and ExpiresAt with it.
	TouchSession(ctx context.Context, id string, at, expires time.Time) error
}

// People tells what those may do who have signed in by single sign-on. It is safe for
// concurrent use.
type People interface {
	// CallerOf returns what a person may do now, by what was known when they signed in.
	// Somebody who may do nothing is unauthenticated.
	CallerOf(p *sandbox.Person) (sandbox.Caller, error)
	// SessionLifetime is how long a session of theirs lasts at most.
	SessionLifetime() time.Duration
}

// Sessions are sign-ins of browsers to the console. A session has the rights of the
// key that it was begun with, as they are at each request, and ends with it; that of a
// person has what [People] says at each request. What proves it is a cookie, of which
// the store has only a hash. It is safe for concurrent use.
type Sessions struct {
	store  SessionStore
	keys   *Keys
	people People
	tries  *LoginLimiter
}

// NewSessions returns the sessions that a store has. Without people, which is nil,
// sessions of a person are over.
func NewSessions(store SessionStore, keys *Keys, people People) *Sessions {
	return &Sessions{store: store, keys: keys, people: people, tries: newLoginLimiter("sessions")}
}

// Session is a session that is good, and whose it is.
type Session struct {
	sandbox.ConsoleSession
	// Caller has the key's present scopes.
	Caller sandbox.Caller
	// KeyName is the key's, or the person's; empty for the user who runs the daemon.
	KeyName string
	hash    []byte
}

// Begin begins a session of a caller. Client is what the browser says of itself. The
// token goes into the cookie.
func (s *Sessions) Begin(ctx context.Context, caller sandbox.Caller, client string) (Secret, *Session, error) {
	return s.begin(ctx, sandbox.ConsoleSession{KeyID: caller.KeyID, Team: caller.Team}, client)
}

// BeginPerson begins a session of somebody who has signed in by single sign-on, if they
// may do anything.
func (s *Sessions) BeginPerson(ctx context.Context, person *sandbox.Person, client string) (Secret, *Session, error) {
	caller, err := s.people.CallerOf(person)
	if err != nil {
		return Secret{}, nil, err
	}
	return s.begin(ctx, sandbox.ConsoleSession{KeyID: caller.KeyID, Team: caller.Team, Person: person}, client)
}

func (s *Sessions) begin(ctx context.Context, made sandbox.ConsoleSession, client string) (Secret, *Session, error) {
	token := newToken()
	hash := Hash(token.Reveal())
	now := time.Now().UTC()
	made.ID, made.Client = "session-"+strings.ToLower(rand.Text()), clip.Text(strings.ToValidUTF8(client, "�"), maxClient)
	made.CreatedAt, made.LastUsedAt = now, now
	made.ExpiresAt = s.expiryOf(&made, now)
	if err := s.store.CreateSession(ctx, made, hash, maxSessions); err != nil {
		return Secret{}, nil, err
	}
	found, err := s.stands(ctx, made, hash)
	return token, found, err
}

// newToken makes 256 random bits.
func newToken() Secret {
	b := make([]byte, tokenBytes)
	rand.Read(b)
	return NewSecret(base64.RawURLEncoding.EncodeToString(b))
}

// expiryOf returns when a session ends that is used for the last time.
func (s *Sessions) expiryOf(of *sandbox.ConsoleSession, used time.Time) time.Time {
	lifetime := SessionLifetime
	if of.Person != nil {
		lifetime = min(lifetime, s.people.SessionLifetime())
	}
	idle, last := used.Add(SessionIdle), of.CreatedAt.Add(lifetime)
	if idle.Before(last) {
		return idle
	}
	return last
}

// Of returns the session by whose cookie a request comes; without a cookie that is
// nil. A cookie of no session that is good is unauthenticated. The caller of Of has
// asked [FromOwnPage].
func (s *Sessions) Of(r *http.Request) (*Session, error) {
	var refused error
	for _, token := range sessionTokens(r) {
		found, err := s.byToken(r.Context(), token)
		if err == nil {
			s.touch(r.Context(), found)
			return found, nil
		}
		if code := sandbox.CodeOf(err); code != sandbox.CodeUnauthenticated {
			return nil, err
		}
		refused = err
	}
	return nil, refused
}

func errOver() error {
	return sandbox.Errorf(sandbox.CodeUnauthenticated, "the session is over; sign in again")
}

func (s *Sessions) byToken(ctx context.Context, token string) (*Session, error) {
	if len(token) != base64.RawURLEncoding.EncodedLen(tokenBytes) {
		return nil, errOver()
	}
	hash := Hash(token)
	if err := s.tries.allow(ctx, hash); err != nil {
		return nil, err
	}
	found, err := s.byHash(ctx, hash)
	switch sandbox.CodeOf(err) {
	case "":
		s.tries.note(hash, true)
	case sandbox.CodeNotFound:
		s.tries.note(hash, false)
		s.tries.unknown(ctx)
		return nil, errOver()
	}
	return found, err
}

// byHash returns a session that is good; not_found is one that the store does not
// have.
func (s *Sessions) byHash(ctx context.Context, hash []byte) (*Session, error) {
	found, err := s.store.SessionByHash(ctx, hash)
	if err != nil {
		return nil, err
	}
	if !time.Now().Before(found.ExpiresAt) {
		return nil, errOver()
	}
	return s.stands(ctx, found, hash)
}

// stands finds who a session stands for now.
func (s *Sessions) stands(ctx context.Context, found sandbox.ConsoleSession, hash []byte) (*Session, error) {
	if found.Person != nil {
		return s.standsForPerson(found, hash)
	}
	if own := sandbox.LocalCaller(); found.KeyID == own.KeyID {
		return &Session{ConsoleSession: found, Caller: own, hash: hash}, nil
	}
	key, err := s.keys.goodKey(ctx, found.KeyID)
	if err != nil {
		return nil, err
	}
	if key.ExpiresAt != nil && key.ExpiresAt.Before(found.ExpiresAt) {
		found.ExpiresAt = *key.ExpiresAt
	}
	return &Session{ConsoleSession: found, Caller: callerOf(&key), KeyName: key.Name, hash: hash}, nil
}

// standsForPerson finds what somebody may do now who signed in by single sign-on: the
// server's rules may be others since then.
func (s *Sessions) standsForPerson(found sandbox.ConsoleSession, hash []byte) (*Session, error) {
	if s.people == nil {
		return nil, errOver()
	}
	caller, err := s.people.CallerOf(found.Person)
	if err != nil {
		return nil, err
	}
	last := found.CreatedAt.Add(s.people.SessionLifetime())
	if caller.Team != found.Team || !time.Now().Before(last) {
		return nil, errOver()
	}
	if last.Before(found.ExpiresAt) {
		found.ExpiresAt = last
	}
	return &Session{ConsoleSession: found, Caller: caller, KeyName: found.Person.Name(), hash: hash}, nil
}

// touch notes that a session is used, and its key.
func (s *Sessions) touch(ctx context.Context, found *Session) {
	now := time.Now().UTC()
	if now.Sub(found.LastUsedAt) < touchEvery {
		return
	}
	err := s.store.TouchSession(ctx, found.ID, now, s.expiryOf(&found.ConsoleSession, now))
	if found.Person == nil && found.KeyID != sandbox.LocalCaller().KeyID && err == nil {
		err = s.keys.Store.TouchKey(ctx, found.KeyID, now)
	}
	if err != nil && s.keys.Log != nil {
		s.keys.Log.Warn("record the use of a session", "session", found.ID, "error", err)
	}
}

// look tells whether a session is still good. That a request lasts is no use of the
// session.
func (s *Sessions) look(of *Session) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.byHash(ctx, of.hash)
		return err
	}
}

// watch returns a context that ends soon after what a request came by is no longer good,
// for a request that lasts, such as a terminal. Look tells whether it is.
func watch(ctx context.Context, look func(context.Context) error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var timer *time.Timer
	armed := make(chan struct{})
	timer = time.AfterFunc(recheckTime, func() {
		<-armed
		switch sandbox.CodeOf(look(ctx)) {
		case sandbox.CodeNotFound, sandbox.CodeUnauthenticated:
			cancel()
		default:
			if ctx.Err() == nil {
				timer.Reset(recheckTime)
			}
		}
	})
	close(armed)
	return ctx, func() { cancel(); timer.Stop() }
}
