package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bound keeps the number of sessions in bounds.
type bound struct {
	max, maxPerUser int

	mu       sync.Mutex
	starting int                 // guarded by mu
	sessions map[string]*tracked // by id; guarded by mu
}

// tracked is a session in use.
type tracked struct {
	user string
	// owner may go on with it: the user, in one namespace.
	owner  string
	server *mcp.Server
	active int
	last   time.Time
	// running ends each call under way.
	running map[*context.CancelFunc]struct{}
}

func newBound(cfg Config) *bound {
	return &bound{max: cfg.MaxSessions, maxPerUser: cfg.MaxSessionsPerKey, sessions: make(map[string]*tracked)}
}

// use marks a session as in use until the returned function is called.
func (b *bound) use(id string) func() {
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

// calls takes note of a call of a session until the returned function is
// called.
func (b *bound) calls(id string, cancel context.CancelFunc) (forget func()) {
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

// cancelCalls cancels the calls of a session, if it is the owner's.
func (b *bound) cancelCalls(id, owner string) {
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

// admit makes room for a session of a user, by ending the one that was idle
// longest if need be. It reports false when all are in use. The returned
// function takes the id of the session that was begun, or "".
func (b *bound) admit(user, owner string) (begun func(server *mcp.Server, id string), ok bool) {
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

// makeRoom makes the number of sessions that count less than limit.
//
// Preconditions: b.mu is held.
func (b *bound) makeRoom(limit int, counts func(*tracked) bool, victims *[]*mcp.ServerSession) bool {
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

// servers returns those of the sessions.
func (b *bound) servers() map[*mcp.Server]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[*mcp.Server]bool)
	for _, t := range b.sessions {
		all[t.server] = true
	}
	return all
}

// forgetEnded drops sessions that have ended.
//
// Preconditions: b.mu is held.
func (b *bound) forgetEnded() {
	alive := make(map[string]bool)
	seen := make(map[*mcp.Server]bool)
	for _, t := range b.sessions {
		if seen[t.server] {
			continue
		}
		seen[t.server] = true
		for ss := range t.server.Sessions() {
			alive[ss.ID()] = true
		}
	}
	for id := range b.sessions {
		if !alive[id] {
			delete(b.sessions, id)
		}
	}
}
