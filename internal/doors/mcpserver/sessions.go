package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// endTimeout bounds what a dialect does when a session ends.
const endTimeout = 30 * time.Second

// sessions maps MCP sessions to the dialects' state in them, and ends the state with
// its session.
type sessions struct {
	// stateless means that a session without an id lasts for one request.
	stateless bool
	wg        sync.WaitGroup

	mu  sync.Mutex
	all map[*mcp.ServerSession]*dialect.Session // guarded by mu
}

func newSessions(stateless bool) *sessions {
	return &sessions{stateless: stateless, all: make(map[*mcp.ServerSession]*dialect.Session)}
}

// of returns the state of a session, or nil where a later request could not find it
// again. ctx carries the caller on whose behalf it will be ended.
func (s *sessions) of(ctx context.Context, ss *mcp.ServerSession) *dialect.Session {
	if s.stateless && ss.ID() == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.all[ss]; ok {
		return d
	}
	d := dialect.NewSession()
	s.all[ss] = d
	ctx = context.WithoutCancel(ctx)
	s.wg.Go(func() {
		_ = ss.Wait() // however it ended
		s.mu.Lock()
		delete(s.all, ss)
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		d.End(ctx)
	})
	return d
}

// known returns the state of a session, or nil if it has none yet.
func (s *sessions) known(ss *mcp.ServerSession) *dialect.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[ss]
}

// wait returns when all sessions have ended; the caller closes them.
func (s *sessions) wait() { s.wg.Wait() }
