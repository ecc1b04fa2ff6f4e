package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/native"
	"github.com/cove-sh/cove/sandbox"
)

// eventful is a service with events. Events of a key are seen only by callers with that
// key, as with teams.
type eventful struct {
	*fake

	mu        sync.Mutex
	events    []keyed       // guarded by mu
	grown     chan struct{} // closed and replaced with each event; guarded by mu
	following int           // streams; guarded by mu
	broken    chan struct{} // closed when all streams break; guarded by mu
}

type keyed struct {
	key string
	sandbox.Event
}

func newEventful() *eventful {
	return &eventful{fake: newFake(), grown: make(chan struct{}), broken: make(chan struct{})}
}

// happens makes an event: a sandbox of a key is in a state.
func (s *eventful) happens(key, id string, state sandbox.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := sandbox.Event{ID: strconv.Itoa(len(s.events) + 1), Kind: sandbox.EventSandbox, SandboxID: id, Sandbox: &sandbox.Sandbox{ID: id, State: state}}
	s.events = append(s.events, keyed{key, e})
	close(s.grown)
	s.grown = make(chan struct{})
}

// breaks ends all streams.
func (s *eventful) breaks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.broken)
	s.broken = make(chan struct{})
}

func (s *eventful) streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.following
}

// Get knows sandboxes KEY-1, KEY-2 and so on of each key, and the name "work".
func (s *eventful) Get(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	c, _ := sandbox.CallerOf(ctx)
	if id == "work" {
		id = c.KeyID + "-1"
	}
	if !strings.HasPrefix(id, c.KeyID+"-") {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such sandbox")
	}
	return &sandbox.Sandbox{ID: id, State: sandbox.StateRunning}, nil
}

func (s *eventful) FollowEvents(ctx context.Context, req sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	c, _ := sandbox.CallerOf(ctx)
	if err := c.Need(sandbox.ScopeSandboxesRead); err != nil {
		return err
	}
	s.mu.Lock()
	at := len(s.events)
	if req.After != "" {
		at, _ = strconv.Atoi(req.After)
	}
	s.following++
	broken := s.broken
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.following--
	}()
	if err := sink(sandbox.Event{ID: strconv.Itoa(at), Kind: sandbox.EventBegun}); err != nil || req.Once {
		return err
	}
	for {
		s.mu.Lock()
		more, grown := s.events[at:], s.grown
		s.mu.Unlock()
		for _, e := range more {
			at++
			if e.key == c.KeyID {
				if err := sink(e.Event); err != nil {
					return err
				}
			}
		}
		select {
		case <-grown:
		case <-broken:
			return sandbox.Errorf(sandbox.CodeUnavailable, "the server is shutting down")
		case <-ctx.Done():
			return nil
		}
	}
}

// listener is a client that records its notifications.
type listener struct {
	*mcp.ClientSession
	t    *testing.T
	told chan string
}

// keyHeader makes requests those of a key.
type keyHeader struct {
	key  string
	next http.RoundTripper
}

func (k keyHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Test-Key", k.key)
	return k.next.RoundTrip(r)
}

func hearing(t *testing.T, transport mcp.Transport, revision string) *listener {
	t.Helper()
	l := &listener{t: t, told: make(chan string, 1000)}
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler:     func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { l.told <- r.Params.URI },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { l.told <- "list" },
	})
	cs, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() }) // the server may have ended it
	l.ClientSession = cs
	return l
}

func (l *listener) subscribe(uri string) {
	l.t.Helper()
	if err := l.Subscribe(l.t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
		l.t.Fatal(err)
	}
}

// hears calls cause again and again until the client gets a notification: a listening
// client does not know when the server has begun to follow events.
func (l *listener) hears(want string, cause func()) {
	l.t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	late := time.After(30 * time.Second)
	cause()
	for {
		select {
		case got := <-l.told:
			if got == want {
				return
			}
		case <-again.C:
			cause()
		case <-late:
			l.t.Fatalf("the client was not told of %s", want)
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !reached() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("waited in vain for " + what)
		}
	}
}

// Over HTTP, clients with sessions and without are notified of what they have subscribed
// to, and of nothing of others, although the names are the same. Streams end with the
// client.
func TestSubscriptionsOverHTTP(t *testing.T) {
	for _, revision := range []string{"2025-11-25", statelessRevision} {
		t.Run(revision, func(t *testing.T) {
			s := newEventful()
			w := serve(t, Config{Service: s})
			open := func(key string) *listener {
				return hearing(t, &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: &http.Client{Transport: keyHeader{key, w.client.Transport}}}, revision)
			}
			alice, bob := open("alice"), open("bob")
			for _, l := range []*listener{alice, bob} {
				if _, err := l.ListResources(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				l.subscribe("cove://sandbox/work")
			}
			run := func(key string) func() {
				n := 0
				return func() {
					n++
					s.happens(key, key+"-1", []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}[n%2])
				}
			}
			alice.hears("cove://sandbox/work", run("alice"))
			alice.hears("list", run("alice"))
			for len(bob.told) > 0 {
				if got := <-bob.told; got != "list" { // sessions are always notified of the list
					t.Errorf("another key is told of %s", got)
				}
				t.Error("another key is told of a list")
			}
			bob.hears("cove://sandbox/work", run("bob"))
			if err := alice.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "cove://sandbox/work"}); err != nil {
				t.Fatal(err)
			}
			for _, l := range []*listener{alice, bob} {
				_ = l.Close()
			}
			until(t, "the end of all streams", func() bool { return s.streams() == 0 })
		})
	}
}

// What cannot be subscribed to is refused in both eras, and so is too much.
func TestSubscriptionsRefused(t *testing.T) {
	w := serve(t, Config{Service: newEventful()})
	headers := w.session("/mcp", "X-Test-Key", "k1")
	subscribe := func(uri string) message {
		_, m := w.post("/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"resources/subscribe","params":{"uri":%q}}`, uri), headers...)
		return m
	}
	listen := func(uris ...string) message {
		body, newHeaders := newEra(9, "subscriptions/listen", "", fmt.Sprintf(`"notifications":{"resourceSubscriptions":[%q]}`, uris[0]))
		if len(uris) > 1 {
			body = strings.Replace(body, fmt.Sprintf("[%q]", uris[0]), `["`+strings.Join(uris, `","`)+`"]`, 1)
		}
		_, m := w.post("/mcp", body, append(newHeaders, "X-Test-Key", "k1")...)
		return m
	}
	for uri, want := range map[string]string{
		"cove://sandbox/other-1": "not found", "cove://sandbox/k1-1/etc/passwd": "changes of files are not told",
		"file:///etc/passwd": "not a resource of Cove", "cove://sandbox/k1-1/?format=zip": "changes of files are not told",
	} {
		for era, m := range map[string]message{"sessions": subscribe(uri), "stateless": listen(uri)} {
			if m.Error == nil || !strings.Contains(strings.ToLower(m.Error.Message), strings.ToLower(want)) {
				t.Errorf("%s, %s: %+v, want %q", era, uri, m, want)
			}
		}
	}
	var many []string
	for i := range maxSubscriptions + 1 {
		many = append(many, fmt.Sprintf("cove://sandbox/k1-%d", i))
		m := subscribe(many[i])
		if refused := m.Error != nil; refused != (i == maxSubscriptions) {
			t.Fatalf("subscription %d: %+v", i, m)
		}
	}
	if m := subscribe(many[0]); m.Error != nil {
		t.Errorf("a subscription that is there already: %+v", m)
	}
	if m := listen(many...); m.Error == nil || !strings.Contains(m.Error.Message, "64 subscriptions") {
		t.Errorf("too many in one request: %+v", m)
	}
}

// The listening requests of a key are bounded.
func TestListeningIsBounded(t *testing.T) {
	w := serve(t, Config{Service: newEventful(), MaxSessionsPerKey: 2})
	body, headers := newEra(9, "subscriptions/listen", "", `"notifications":{"resourcesListChanged":true}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		res := w.do(ctx, http.MethodPost, "/mcp", body, headers...)
		defer res.Body.Close()
		if _, err := res.Body.Read(make([]byte, 10)); err != nil { // the acknowledgement
			t.Fatal(err)
		}
	}
	if _, m := w.post("/mcp", body, headers...); m.Error == nil || !strings.Contains(m.Error.Message, "listen already") {
		t.Errorf("one more: %+v", m)
	}
	other := w.do(ctx, http.MethodPost, "/mcp", body, append(headers, "X-Test-Key", "other")...)
	defer other.Body.Close()
	if _, err := other.Body.Read(make([]byte, 10)); err != nil {
		t.Errorf("of another key: %v", err)
	}
	cancel()
	until(t, "room", func() bool {
		w.handler.watches.mu.Lock()
		defer w.handler.watches.mu.Unlock()
		return len(w.handler.watches.listening) == 0
	})
}

// A server that ends takes no more of a client's events: the request that listens ends,
// and holds nothing up.
func TestListeningEndsWithEvents(t *testing.T) {
	s := newEventful()
	w := serve(t, Config{Service: s})
	body, headers := newEra(9, "subscriptions/listen", "", `"notifications":{"resourcesListChanged":true}`)
	res := w.do(t.Context(), http.MethodPost, "/mcp", body, headers...)
	defer res.Body.Close()
	until(t, "a stream", func() bool { return s.streams() == 1 })
	s.breaks()
	if m := w.last(res); m.Error != nil || m.Result == nil {
		t.Errorf("the last message is %+v", m)
	}
}

// On standard input and output, clients with sessions and without are notified. After the
// stream from the server has broken, they are notified again from their next request on.
func TestSubscriptionsOnStdio(t *testing.T) {
	for _, revision := range []string{"2025-11-25", statelessRevision} {
		t.Run(revision, func(t *testing.T) {
			s := newEventful()
			key := sandbox.LocalCaller().KeyID
			in, toServer := io.Pipe()
			fromServer, out := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- RunStdio(t.Context(), Config{Service: s}, in, out) }()
			l := hearing(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, revision)
			l.subscribe("cove://sandbox/work")
			happens := func() { s.happens(key, key+"-1", sandbox.StateRunning) }
			l.hears("cove://sandbox/work", happens)
			s.breaks()
			until(t, "the end of the stream", func() bool { return s.streams() == 0 })
			for len(l.told) > 0 {
				<-l.told
			}
			happens()
			if _, err := l.ListTools(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			l.hears("cove://sandbox/work", func() {})
			_ = l.Close()
			_ = toServer.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if n := s.streams(); n != 0 {
				t.Errorf("%d streams go on", n)
			}
		})
	}
}

// heard is a watch that is followed in a bubble of synctest, with its notifications.
func heard(t *testing.T, s *eventful, quiet time.Duration) (w *watch, told func() []string) {
	var mu sync.Mutex
	var all []string
	w = newWatch(s)
	w.quiet = quiet
	w.notify = func(_ context.Context, method, uri string) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, strings.TrimPrefix(method, "notifications/resources/")+" "+uri)
		return errors.ErrUnsupported // which is nobody's matter
	}
	return w, func() []string {
		<-time.After(2 * notifyGap)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		defer func() { all = nil }()
		return all
	}
}

// Simultaneous changes are one notification, and the list is notified only if an entry
// changes.
func TestWatchTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventful()
		ctx, cancel := context.WithCancel(sandbox.WithCaller(t.Context(), sandbox.Caller{KeyID: "k", Team: "t", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}))
		w, told := heard(t, s, 0)
		var following sync.WaitGroup
		following.Go(func() { w.follow(ctx) })
		if err := w.subscribe(ctx, native.New(), "cove://sandbox/k-1"); err != nil {
			t.Fatal(err)
		}
		for range 500 {
			s.happens("k", "k-1", sandbox.StateRunning)
		}
		if got := told(); len(got) == 0 || len(got) > 2 || got[0] != "updated cove://sandbox/k-1" {
			t.Errorf("is told %q", got)
		}
		if err := w.watchList(ctx); err != nil {
			t.Fatal(err)
		}
		w.unsubscribe("cove://sandbox/k-1")
		for _, c := range []struct {
			state sandbox.State
			want  int
		}{{sandbox.StatePaused, 1}, {sandbox.StatePaused, 0}, {sandbox.StateRunning, 1}, {sandbox.StateKilled, 1}} {
			s.happens("k", "k-1", c.state)
			if got := told(); len(got) != c.want || c.want > 0 && got[0] != "list_changed " {
				t.Errorf("%s is told as %q", c.state, got)
			}
		}
		w.note(&sandbox.Event{Kind: sandbox.EventBegun, Missed: true})
		if got := told(); len(got) != 1 || got[0] != "list_changed " {
			t.Errorf("what is missed is told as %q", got)
		}
		for i := range 2 * maxShown {
			w.note(&sandbox.Event{Kind: sandbox.EventSandbox, SandboxID: strconv.Itoa(i), Sandbox: &sandbox.Sandbox{}})
		}
		w.mu.Lock()
		if len(w.shown) > maxShown {
			t.Errorf("%d sandboxes are remembered", len(w.shown))
		}
		w.mu.Unlock()
		cancel()
		following.Wait()
	})
}

// For an idle client the list is no longer followed, but subscriptions are. At its next
// request it is notified of what has happened since.
func TestWatchIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventful()
		ctx, cancel := context.WithCancel(sandbox.WithCaller(t.Context(), sandbox.Caller{KeyID: "k", Team: "t", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}))
		w, told := heard(t, s, listQuiet)
		var following sync.WaitGroup
		following.Go(func() { w.follow(ctx) })
		if err := w.watchList(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(listQuiet - time.Second)
		w.request()
		time.Sleep(listQuiet - time.Second)
		synctest.Wait()
		if s.streams() != 1 {
			t.Error("the list is not followed")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.streams() != 0 {
			t.Error("the list is followed for a client that asks for nothing")
		}
		s.happens("k", "k-1", sandbox.StateRunning)
		if got := told(); len(got) != 0 {
			t.Errorf("is told %q", got)
		}
		w.request()
		if got := told(); len(got) != 1 || got[0] != "list_changed " {
			t.Errorf("is told %q", got)
		}
		if err := w.subscribe(ctx, native.New(), "cove://sandbox/k-1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * listQuiet)
		synctest.Wait()
		if s.streams() != 1 {
			t.Error("a subscription ends with quiet")
		}
		cancel()
		following.Wait()
		if s.streams() != 0 {
			t.Error("the stream goes on")
		}
	})
}

// A key without the right to read gets no notifications, and its subscriptions fail.
func TestWatchNeedsScope(t *testing.T) {
	ctx := sandbox.WithCaller(t.Context(), sandbox.Caller{KeyID: "k", Team: "t", Scopes: []sandbox.Scope{sandbox.ScopeFilesWrite}})
	w := newWatch(newEventful())
	for _, err := range []error{w.watchList(ctx), w.subscribe(ctx, native.New(), "cove://sandbox/k-1")} {
		if sandbox.CodeOf(err) != sandbox.CodeForbidden {
			t.Errorf("%v", err)
		}
	}
	if w.list || len(w.uris) > 0 {
		t.Error("something is watched")
	}
}
