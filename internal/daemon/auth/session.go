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
	// SessionIdle is how long an unused session lasts.
	SessionIdle = 12 * time.Hour
	// SessionLifetime is the maximum lifetime of a session.
	SessionLifetime = 7 * 24 * time.Hour

	// maxSessions bounds the sessions of one key.
	maxSessions = 100
	tokenBytes  = 32
	// maxClient bounds the stored part of a browser's User-Agent, in bytes.
	maxClient = 200
	// recheckTime is how often the session or key of a long-running request is checked
	// again.
	recheckTime = 15 * time.Second
)

// SessionStore is the part of the store that [Sessions] needs.
type SessionStore interface {
	// CreateSession adds a session whose token has this hash. If its key then has more than
	// most sessions, the least recently used ones are removed.
	CreateSession(ctx context.Context, s sandbox.ConsoleSession, hash []byte, most int) error
	// SessionByHash returns a session, even an expired one, or not_found.
	SessionByHash(ctx context.Context, hash []byte) (sandbox.ConsoleSession, error)
	// TouchSession moves LastUsedAt forward, and sets ExpiresAt.
	TouchSession(ctx context.Context, id string, at, expires time.Time) error
}

// People decides what people who have signed in by single sign-on may do. It is safe for
// concurrent use.
type People interface {
	// CallerOf returns what a person may do now, from what was known about them at sign-in.
	// The error for a person with no rights is unauthenticated.
	CallerOf(p *sandbox.Person) (sandbox.Caller, error)
	// SessionLifetime returns the maximum lifetime of a person's session.
	SessionLifetime() time.Duration
}

// Sessions are browser sign-ins to the console. A session has the rights that the key it
// was started with has at the time of each request, and ends with the key; a person's
// session has the rights that [People] returns at each request. A session is proved by a
// cookie, of which the store has only a hash. Sessions is safe for concurrent use.
type Sessions struct {
	store  SessionStore
	keys   *Keys
	people People
	tries  *LoginLimiter
}

// NewSessions returns the sessions in a store. If people is nil, the sessions of people are
// not valid.
func NewSessions(store SessionStore, keys *Keys, people People) *Sessions {
	return &Sessions{store: store, keys: keys, people: people, tries: newLoginLimiter("sessions")}
}

// Session is a valid session and its owner.
type Session struct {
	sandbox.ConsoleSession
	// Caller has the key's present scopes.
	Caller sandbox.Caller
	// KeyName is the name of the key or of the person; empty for the user who runs the
	// daemon.
	KeyName string
	hash    []byte
}

// Begin starts a session for a caller. client is the browser's User-Agent. The returned
// token goes into the cookie.
func (s *Sessions) Begin(ctx context.Context, caller sandbox.Caller, client string) (Secret, *Session, error) {
	return s.begin(ctx, sandbox.ConsoleSession{KeyID: caller.KeyID, Team: caller.Team}, client)
}

// BeginPerson starts a session for a person who has signed in by single sign-on, if they
// have any rights.
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
	found, err := s.withOwner(ctx, made, hash)
	return token, found, err
}

// newToken returns 256 random bits.
func newToken() Secret {
	b := make([]byte, tokenBytes)
	rand.Read(b)
	return NewSecret(base64.RawURLEncoding.EncodeToString(b))
}

// expiryOf returns when a session ends if it is not used again after used.
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

// Of returns the session that a request's cookie belongs to, or nil without a cookie. The
// error for a cookie without a valid session is unauthenticated. The caller must have
// checked [FromOwnPage].
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

// byHash returns a valid session, or not_found if the store has none.
func (s *Sessions) byHash(ctx context.Context, hash []byte) (*Session, error) {
	found, err := s.store.SessionByHash(ctx, hash)
	if err != nil {
		return nil, err
	}
	if !time.Now().Before(found.ExpiresAt) {
		return nil, errOver()
	}
	return s.withOwner(ctx, found, hash)
}

// withOwner returns a session with its owner and their current rights.
func (s *Sessions) withOwner(ctx context.Context, found sandbox.ConsoleSession, hash []byte) (*Session, error) {
	if found.Person != nil {
		return s.withPerson(found, hash)
	}
	if own := sandbox.LocalCaller(); found.KeyID == own.KeyID {
		return &Session{ConsoleSession: found, Caller: own, hash: hash}, nil
	}
	key, err := s.keys.validKey(ctx, found.KeyID)
	if err != nil {
		return nil, err
	}
	if key.ExpiresAt != nil && key.ExpiresAt.Before(found.ExpiresAt) {
		found.ExpiresAt = *key.ExpiresAt
	}
	return &Session{ConsoleSession: found, Caller: callerOf(&key), KeyName: key.Name, hash: hash}, nil
}

// withPerson returns the session of a person who signed in by single sign-on, with
// what they may do now: the server's rules may have changed since.
func (s *Sessions) withPerson(found sandbox.ConsoleSession, hash []byte) (*Session, error) {
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

// touch records that a session and its key were used.
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

// check returns a function that checks whether a session is still valid. A long-running
// request does not count as use of the session.
func (s *Sessions) check(of *Session) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.byHash(ctx, of.hash)
		return err
	}
}

// watch returns a context for a long-running request, such as a terminal. It ends soon
// after check reports that the request's credential is no longer valid.
func watch(ctx context.Context, check func(context.Context) error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var timer *time.Timer
	armed := make(chan struct{})
	timer = time.AfterFunc(recheckTime, func() {
		<-armed
		switch sandbox.CodeOf(check(ctx)) {
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
