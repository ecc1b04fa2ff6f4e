package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// watches has the watches of sessions and the streams on which sessions get
// notifications. A session's watch follows events for as long as there is a stream. It is
// safe for concurrent use.
type watches struct {
	// most bounds the concurrent listening requests of one caller; 0 is no bound.
	most int
	// quiet is the value of quiet for all watches.
	quiet time.Duration

	mu        sync.Mutex
	all       map[*watch]struct{}             // guarded by mu
	sessions  map[string]*watch               // by the session's id; guarded by mu
	streams   map[string]map[*stream]struct{} // by the session's id; guarded by mu
	listening map[string]int                  // requests, by caller; guarded by mu
}

// stream is a lasting connection to a client.
type stream struct {
	ctx       context.Context
	following sync.WaitGroup
}

func newWatches(most int, quiet time.Duration) *watches {
	return &watches{
		most: most, quiet: quiet, all: map[*watch]struct{}{}, sessions: map[string]*watch{},
		streams: map[string]map[*stream]struct{}{}, listening: map[string]int{},
	}
}

// open makes a session's watch send notifications on a stream, until ctx ends or end is
// called.
func (ws *watches) open(ctx context.Context, id string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{ctx: ctx}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.streams[id] == nil {
		ws.streams[id] = map[*stream]struct{}{}
	}
	ws.streams[id][s] = struct{}{}
	if w := ws.sessions[id]; w != nil {
		s.following.Go(func() { w.follow(ctx) })
	}
	return func() {
		cancel()
		ws.mu.Lock()
		delete(ws.streams[id], s)
		if len(ws.streams[id]) == 0 {
			delete(ws.streams, id)
		}
		ws.mu.Unlock()
		s.following.Wait()
	}
}

// add adds the watch of a session, until remove is called.
func (ws *watches) add(id string, w *watch) (remove func()) {
	w.quiet = ws.quiet
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.sessions[id] = w
	ws.all[w] = struct{}{}
	for s := range ws.streams[id] {
		s.following.Go(func() { w.follow(s.ctx) })
	}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		delete(ws.sessions, id)
		delete(ws.all, w)
	}
}

// admit adds the watch of a listening request, until remove is called.
func (ws *watches) admit(caller string, w *watch) (remove func(), err error) {
	w.quiet = ws.quiet
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.most > 0 && ws.listening[caller] >= ws.most {
		return nil, sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d requests of this key listen already; end some first", ws.most)
	}
	ws.listening[caller]++
	ws.all[w] = struct{}{}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		delete(ws.all, w)
		if ws.listening[caller]--; ws.listening[caller] == 0 {
			delete(ws.listening, caller)
		}
	}, nil
}

// request notes that the client has made a request, in a process with one client.
func (ws *watches) request() {
	if ws.quiet == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		w.request()
	}
}
