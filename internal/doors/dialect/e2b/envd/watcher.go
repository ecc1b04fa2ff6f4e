package envd

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb"
)

const (
	// maxWatches bounds the watches of one sandbox, of both kinds.
	maxWatches = 64
	// maxQueue bounds the changes that one watcher queues for its client, in bytes.
	maxQueue = 1 << 20
	// watcherTime is how long a watcher lives without being polled.
	watcherTime = 30 * time.Minute
)

// watches counts the watches of each sandbox and holds those that clients poll. The
// zero value is empty. It is safe for concurrent use.
type watches struct {
	mu    sync.Mutex
	count map[string]int      // by sandbox; guarded by mu
	byID  map[string]*watcher // guarded by mu
}

// take counts a watch of a sandbox.
func (s *watches) take(box string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count[box] >= maxWatches {
		return nil, fail(connect.CodeResourceExhausted, "the sandbox has %d watches already, as many as it may; stop one", maxWatches)
	}
	if s.count == nil {
		s.count, s.byID = map[string]int{}, map[string]*watcher{}
	}
	s.count[box]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count[box]--; s.count[box] <= 0 {
			delete(s.count, box)
		}
	}), nil
}

func (s *watches) add(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[w.id] = w
}

// of returns a watcher, or an error if it is not one of the sandbox.
func (s *watches) of(box, id string) (*watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.byID[id]; w != nil && w.box == box {
		return w, nil
	}
	return nil, fail(connect.CodeNotFound, "watcher with id %.64s not found", id)
}

func (s *watches) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

// watcher queues changes until its client polls.
type watcher struct {
	id, box string
	stop    context.CancelFunc
	release func() // uncounts it
	unasked *time.Timer

	mu    sync.Mutex
	queue []*pb.FilesystemEvent // guarded by mu
	size  int                   // of queue, about; guarded by mu
	err   error                 // why there are no more; guarded by mu
}

// put queues a change. If there is no room for it, it drops all of them and returns the
// error for the client.
func (w *watcher) put(e *pb.FilesystemEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size += 256 + 2*len(e.GetName()) + 3*len(e.GetEntry().GetPath())
	if w.size > maxQueue {
		w.queue = nil
		return fail(connect.CodeDataLoss, "more than %d bytes of changes wait to be asked for, so they were dropped; list the directory, and watch again", maxQueue)
	}
	w.queue = append(w.queue, e)
	return nil
}

// take returns the queued changes, or why there are no more.
func (w *watcher) take() ([]*pb.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 && w.err != nil {
		return nil, w.err
	}
	events := w.queue
	w.queue, w.size = nil, 0
	return events, nil
}

// end records why a watcher gets no more changes.
func (w *watcher) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil || connect.CodeOf(err) == connect.CodeUnavailable {
		w.err = fail(connect.CodeNotFound, "the watch has ended with the directory, or because the sandbox was paused; watch again")
	}
}

func (s filesystem) CreateWatcher(ctx context.Context, req *connect.Request[pb.CreateWatcherRequest]) (*connect.Response[pb.CreateWatcherResponse], error) {
	watch, err := s.newWatch(ctx, req, req.Msg)
	if err != nil {
		return nil, err
	}
	release, err := s.watches.take(watch.id)
	if err != nil {
		return nil, err
	}
	// The watch outlives the call.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &watcher{id: "w" + strings.ToLower(rand.Text())[:20], box: watch.id, stop: stop, release: release}
	w.unasked = time.AfterFunc(watcherTime, func() { s.forget(w) })
	ready := make(chan error, 2)
	go func() {
		err := watch.run(life, func() error { ready <- nil; return nil }, w.put)
		w.end(err)
		ready <- err
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = failure(ctx.Err())
	}
	if err != nil {
		s.forget(w)
		return nil, err
	}
	s.watches.add(w)
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: w.id}), nil
}

// forget ends a watcher.
func (s filesystem) forget(w *watcher) {
	w.unasked.Stop()
	w.stop()
	s.watches.drop(w.id)
	w.release()
}

func (s filesystem) GetWatcherEvents(ctx context.Context, req *connect.Request[pb.GetWatcherEventsRequest]) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.watcher(ctx, req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	w.unasked.Reset(watcherTime)
	events, err := w.take()
	if err != nil {
		s.forget(w)
		return nil, err
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

func (s filesystem) RemoveWatcher(ctx context.Context, req *connect.Request[pb.RemoveWatcherRequest]) (*connect.Response[pb.RemoveWatcherResponse], error) {
	w, err := s.watcher(ctx, req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	s.forget(w)
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}

func (s filesystem) watcher(ctx context.Context, id string) (*watcher, error) {
	box, err := sandboxOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.watches.of(box.ID, id)
}
