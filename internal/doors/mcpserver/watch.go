package mcpserver

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxSubscriptions bounds the resources that a session or a listening request is
	// subscribed to.
	maxSubscriptions = 64
	// notifyGap is the shortest time between two rounds of notifications of a session.
	// Several changes of a resource meanwhile are one notification.
	notifyGap = 100 * time.Millisecond
	// notifyTime bounds the sending of a notification.
	notifyTime = 10 * time.Second
	// maxShown bounds the sandboxes whose entries in the list are remembered.
	maxShown = 4096
	// listQuiet is the time without requests after which the list is no longer followed,
	// until the next request, for a client whose server is a process of its own. A daemon
	// that was started for that client can then end.
	listQuiet = 5 * time.Minute
)

// watch notifies one client, of a session or a listening request, of changes of resources.
type watch struct {
	svc sandbox.Service
	// notify sends a notification to the client.
	notify func(ctx context.Context, method, uri string) error
	// over is called when the stream of events has ended; if it is nil, the watch waits for
	// the next request and follows again.
	over context.CancelFunc
	// quiet is [listQuiet], or 0 if the list is always followed.
	quiet time.Duration

	mu      sync.Mutex
	uris    map[string]string // the ids of sandboxes by URI; guarded by mu
	list    bool              // whether the list is followed; guarded by mu
	after   string            // the last event that was seen; guarded by mu
	shown   map[string]string // what the list says about a sandbox, by id; guarded by mu
	asked   time.Time         // when the client last made a request; guarded by mu
	poked   chan struct{}     // closed and replaced with each request; guarded by mu
	changed map[string]bool   // URIs with pending notifications; guarded by mu
	listed  bool              // whether a notification of the list is pending; guarded by mu
	due     chan struct{}     // has a value when a notification is pending
}

func newWatch(svc sandbox.Service) *watch {
	return &watch{
		svc: svc, uris: map[string]string{}, shown: map[string]string{}, changed: map[string]bool{},
		asked: time.Now(), poked: make(chan struct{}), due: make(chan struct{}, 1),
	}
}

// locate finds the current position in the stream of events, unless it is known. Changes from
// there on are reported. It fails for callers who may not follow events.
func (w *watch) locate(ctx context.Context) error {
	w.mu.Lock()
	known := w.after != ""
	w.mu.Unlock()
	if known {
		return nil
	}
	return w.svc.FollowEvents(ctx, sandbox.FollowEventsRequest{Once: true}, func(e sandbox.Event) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.after == "" {
			w.after = e.ID
		}
		return nil
	})
}

// subscribe makes the watch notify the client of changes of a resource.
func (w *watch) subscribe(ctx context.Context, d dialect.Watcher, uri string) error {
	if err := w.locate(ctx); err != nil {
		return err
	}
	id, err := d.Watched(ctx, w.svc, uri)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.uris[uri]; !there && len(w.uris) >= maxSubscriptions {
		return sandbox.Errorf(sandbox.CodeInvalid, "there are %d subscriptions already; end some first", maxSubscriptions)
	}
	w.uris[uri] = id
	w.poke()
	return nil
}

func (w *watch) unsubscribe(uri string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.uris, uri)
	delete(w.changed, uri)
}

// watchList makes the watch notify the client of changes of the list.
func (w *watch) watchList(ctx context.Context) error {
	if err := w.locate(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = true
	w.poke()
	return nil
}

// request notes that the client has made a request.
func (w *watch) request() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.poke()
}

// poke wakes those who wait for a request.
//
// Preconditions: w.mu is held.
func (w *watch) poke() {
	w.asked = time.Now()
	close(w.poked)
	w.poked = make(chan struct{})
}

// follow notifies the client of changes until ctx ends.
func (w *watch) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	defer telling.Wait()
	defer cancel()
	telling.Go(func() { w.tell(ctx) })
	for ctx.Err() == nil {
		poked := w.nextPoke()
		w.mu.Lock()
		wanted := w.list || len(w.uris) > 0
		w.mu.Unlock()
		if wanted {
			w.hear(ctx)
			if w.over != nil {
				w.over()
				return
			}
			// Requests from before the end do not restart the stream: a daemon that was
			// stopped stays stopped until its client makes another request.
			poked = w.nextPoke()
		}
		select {
		case <-poked:
		case <-ctx.Done():
		}
	}
}

func (w *watch) nextPoke() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.poked
}

// hear follows events until ctx or the stream ends. Events between two streams are in the
// second one.
func (w *watch) hear(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.quiet > 0 {
		stop := w.untilQuiet(ctx, cancel)
		defer stop()
	}
	w.mu.Lock()
	after := w.after
	w.mu.Unlock()
	req := sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventSandbox, sandbox.EventSandboxDeleted}, After: after}
	// However the stream ends, the next request of the client resumes it.
	_ = w.svc.FollowEvents(ctx, req, func(e sandbox.Event) error {
		w.note(&e)
		return nil
	})
}

// untilQuiet calls cancel when the client has made no request for the time quiet and only the
// list is followed.
func (w *watch) untilQuiet(ctx context.Context, cancel context.CancelFunc) (stop func() bool) {
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(w.quiet, func() {
		<-ready
		w.mu.Lock()
		left := w.quiet - time.Since(w.asked)
		if len(w.uris) > 0 {
			left = w.quiet
		}
		w.mu.Unlock()
		if left <= 0 {
			cancel()
		}
		if ctx.Err() == nil { // stop does not end a call that has begun
			timer.Reset(left)
		}
	})
	close(ready)
	return timer.Stop
}

// note records which notifications an event requires.
func (w *watch) note(e *sandbox.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.ID != "" {
		w.after = e.ID
	}
	switch {
	case e.Kind == sandbox.EventBegun && !e.Missed:
		return
	case e.Kind == sandbox.EventBegun:
		clear(w.shown)
		for uri := range w.uris {
			w.changed[uri] = true
		}
		w.listed = w.list
	default:
		for uri, id := range w.uris {
			if id == e.SandboxID {
				w.changed[uri] = true
			}
		}
		w.listed = w.lists(e) && w.list || w.listed
	}
	if w.listed || len(w.changed) > 0 {
		select {
		case w.due <- struct{}{}:
		default:
		}
	}
}

// lists reports whether an event changes the list, and remembers the new entry.
//
// Preconditions: w.mu is held.
func (w *watch) lists(e *sandbox.Event) bool {
	if e.Sandbox == nil || e.Sandbox.State.Final() {
		delete(w.shown, e.SandboxID)
		return true
	}
	shows := string(e.Sandbox.State) + " " + e.Sandbox.Name
	if w.shown[e.SandboxID] == shows {
		return false
	}
	if len(w.shown) >= maxShown {
		clear(w.shown)
	}
	w.shown[e.SandboxID] = shows
	return true
}

// tell sends pending notifications until ctx ends.
func (w *watch) tell(ctx context.Context) {
	for {
		select {
		case <-w.due:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		var uris []string
		for uri := range w.changed {
			uris = append(uris, uri)
		}
		listed := w.listed
		clear(w.changed)
		w.listed = false
		w.mu.Unlock()
		slices.Sort(uris)
		for _, uri := range uris {
			w.send(ctx, methodResourceUpdated, uri)
		}
		if listed {
			w.send(ctx, methodResourcesChanged, "")
		}
		gap := time.NewTimer(notifyGap)
		select {
		case <-gap.C:
		case <-ctx.Done():
			gap.Stop()
			return
		}
	}
}

func (w *watch) send(ctx context.Context, method, uri string) {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	_ = w.notify(ctx, method, uri) // a client that is gone is noticed elsewhere
}
