package mcpserver

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessionLimit bounds the number of sessions.
type sessionLimit struct {
	max, maxPerUser int

	mu       sync.Mutex
	starting int                 // guarded by mu
	sessions map[string]*tracked // by id; guarded by mu
}

// tracked is a session that counts.
type tracked struct {
	user string
	// owner may continue it: the user, in one namespace.
	owner  string
	server *mcp.Server
	active int
	last   time.Time
	// running ends each call under way.
	running map[*context.CancelFunc]struct{}
}

func newSessionLimit(cfg Config) *sessionLimit {
	return &sessionLimit{max: cfg.MaxSessions, maxPerUser: cfg.MaxSessionsPerKey, sessions: make(map[string]*tracked)}
}

// use marks a session as in use until the returned function is called.
func (b *sessionLimit) use(id string) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.sessions[id]
	if t == nil {
		return func() {}
	}
	t.active++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.active--
		t.last = time.Now()
	}
}

// track records a running call of a session until the returned function is called.
func (b *sessionLimit) track(id string, cancel context.CancelFunc) (forget func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.sessions[id]
	if t == nil {
		return func() {}
	}
	t.running[&cancel] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(t.running, &cancel)
	}
}

// owns reports whether a session is an owner's.
func (b *sessionLimit) owns(id, owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.sessions[id]
	return t != nil && t.owner == owner
}

// cancelCalls cancels the calls of a session, if it is the owner's.
func (b *sessionLimit) cancelCalls(id, owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.sessions[id]
	if t == nil || t.owner != owner {
		return
	}
	for cancel := range t.running {
		(*cancel)()
	}
}

// admit makes room for a session of a user, if necessary by ending the one that has
// been idle longest. It reports false when all are in use. The caller then calls begun
// with the id of the new session, or "" if there is none.
func (b *sessionLimit) admit(user, owner string) (begun func(server *mcp.Server, id string), ok bool) {
	b.mu.Lock()
	b.forgetEnded()
	var victims []*mcp.ServerSession
	ok = b.makeRoom(b.maxPerUser, func(t *tracked) bool { return t.user == user }, &victims) &&
		b.makeRoom(b.max-b.starting, func(*tracked) bool { return true }, &victims)
	if ok {
		b.starting++
	}
	b.mu.Unlock()
	for _, ss := range victims {
		_ = ss.Close() // ended either way
	}
	return func(server *mcp.Server, id string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.starting--
		if id != "" {
			b.sessions[id] = &tracked{
				user: user, owner: owner, server: server, last: time.Now(), running: make(map[*context.CancelFunc]struct{}),
			}
		}
	}, ok
}

// makeRoom brings the number of sessions that count below limit.
//
// Preconditions: b.mu is held.
func (b *sessionLimit) makeRoom(limit int, counts func(*tracked) bool, victims *[]*mcp.ServerSession) bool {
	n := 0
	var oldest string
	for id, t := range b.sessions {
		if !counts(t) {
			continue
		}
		n++
		if t.active == 0 && (oldest == "" || t.last.Before(b.sessions[oldest].last)) {
			oldest = id
		}
	}
	if n < limit {
		return true
	}
	if oldest == "" {
		return false
	}
	for ss := range b.sessions[oldest].server.Sessions() {
		if ss.ID() == oldest {
			*victims = append(*victims, ss)
		}
	}
	delete(b.sessions, oldest)
	return true
}

// servers returns the servers of all sessions.
func (b *sessionLimit) servers() map[*mcp.Server]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.serversLocked()
}

func (b *sessionLimit) serversLocked() map[*mcp.Server]bool {
	all := make(map[*mcp.Server]bool)
	for _, t := range b.sessions {
		all[t.server] = true
	}
	return all
}

// forgetEnded drops sessions that have ended.
//
// Preconditions: b.mu is held.
func (b *sessionLimit) forgetEnded() {
	alive := make(map[string]bool)
	for s := range b.serversLocked() {
		for ss := range s.Sessions() {
			alive[ss.ID()] = true
		}
	}
	maps.DeleteFunc(b.sessions, func(id string, _ *tracked) bool { return !alive[id] })
}
