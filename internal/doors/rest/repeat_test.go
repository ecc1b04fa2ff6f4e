package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// makers is a service that makes sandboxes and commands, and counts them.
type makers struct {
	sandbox.Service
	mu    sync.Mutex
	made  int
	fail  error
	enter func(context.Context)
	// killed gets the ids of killed sandboxes, unless it is nil.
	killed chan string
}

func (m *makers) Kill(_ context.Context, id string) (*sandbox.Sandbox, error) {
	if m.killed != nil {
		m.killed <- id
	}
	return &sandbox.Sandbox{ID: id}, nil
}

func (m *makers) make(ctx context.Context) (string, error) {
	if m.enter != nil {
		m.enter(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return "", m.fail
	}
	m.made++
	return strings.Repeat("x", m.made), nil
}

func (m *makers) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	id, err := m.make(ctx)
	if err != nil {
		return nil, err
	}
	return &sandbox.Sandbox{ID: id, Name: req.Name}, nil
}

func (m *makers) Exec(ctx context.Context, _ string, _ sandbox.ExecRequest, _ sandbox.JobSink) (*sandbox.Job, error) {
	id, err := m.make(ctx)
	if err != nil {
		return nil, err
	}
	return &sandbox.Job{ID: id}, nil
}

func (m *makers) Pause(context.Context, string) (*sandbox.Sandbox, error) {
	return &sandbox.Sandbox{}, nil
}

// openRequests returns what opens a new run of the interface on one database.
func openRequests(t *testing.T, svc sandbox.Service) func() http.Handler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cove.db")
	sqlitetest.New(t, path)
	st, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return func() http.Handler { return rest.New(rest.Config{Service: svc, Requests: st}) }
}

type keyed struct {
	team, namespace, path, key, body string
	header                           []string
}

func (k keyed) send(t *testing.T, h http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	caller := sandbox.LocalCaller()
	if k.team != "" {
		caller.Team = k.team
	}
	caller.Namespace = k.namespace
	r := httptest.NewRequestWithContext(sandbox.WithCaller(t.Context(), caller), http.MethodPost, k.path, strings.NewReader(k.body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", k.key)
	for i := 0; i < len(k.header); i += 2 {
		r.Header.Add(k.header[i], k.header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A request that comes again with its key has one effect, and one answer.
func TestIdempotencyKey(t *testing.T) {
	m := &makers{}
	h := openRequests(t, m)()
	first := keyed{path: "/v1/sandboxes", key: "k1", body: `{"name":"a"}`}
	told := first.send(t, h)
	if told.Code != http.StatusCreated || told.Header().Get("Idempotent-Replayed") != "" {
		t.Fatalf("the first: %d %v %s", told.Code, told.Header(), told.Body)
	}
	again := first.send(t, h)
	if again.Code != told.Code || again.Body.String() != told.Body.String() || again.Header().Get("Location") != "/v1/sandboxes/x" || again.Header().Get("Content-Type") != told.Header().Get("Content-Type") ||
		again.Header().Get("Idempotent-Replayed") != "true" || m.made != 1 {
		t.Errorf("the same again: %d %v %s; %d were made", again.Code, again.Header(), again.Body, m.made)
	}
	for name, tt := range map[string]struct {
		request keyed
		status  int
		says    string
	}{
		"another body":      {keyed{path: "/v1/sandboxes", key: "k1", body: `{"name":"b"}`}, 422, "another request"},
		"another path":      {keyed{path: "/v1/sandboxes/a/exec", key: "k1", body: `{"command":["true"],"background":true}`}, 422, "another request"},
		"another team":      {keyed{team: "red", path: "/v1/sandboxes", key: "k1", body: `{"name":"a"}`}, 201, `"id":"xx`},
		"another namespace": {keyed{namespace: "n", path: "/v1/sandboxes", key: "k1", body: `{"name":"a"}`}, 201, `"id":"xx`},
		"two keys":          {keyed{path: "/v1/sandboxes", key: "k2", body: `{}`, header: []string{"Idempotency-Key", "k3"}}, 400, "1 to 255"},
		"no key":            {keyed{path: "/v1/sandboxes", key: "", body: `{}`}, 400, "1 to 255"},
		"a long key":        {keyed{path: "/v1/sandboxes", key: strings.Repeat("k", 256), body: `{}`}, 400, "1 to 255"},
		"not text":          {keyed{path: "/v1/sandboxes", key: "é", body: `{}`}, 400, "printable"},
		"no such use":       {keyed{path: "/v1/sandboxes/a/pause", key: "k4", body: ``}, 400, "takes no Idempotency-Key"},
		"in foreground":     {keyed{path: "/v1/sandboxes/a/exec", key: "k5", body: `{"command":["true"]}`}, 400, "background"},
		"a bad body":        {keyed{path: "/v1/sandboxes", key: "k6", body: `{"nmae":"x"}`}, 400, "nmae"},
		"a body too large":  {keyed{path: "/v1/sandboxes", key: "k7", body: `{"name":"` + strings.Repeat("x", 1<<20) + `"}`}, 413, "too large"},
	} {
		if got := tt.request.send(t, h); got.Code != tt.status || !strings.Contains(got.Body.String(), tt.says) {
			t.Errorf("%s: %d %.200s, want %d that says %s", name, got.Code, got.Body, tt.status, tt.says)
		}
	}
	// A request that failed has changed nothing, and can be sent again.
	m.fail = sandbox.Errorf(sandbox.CodeUnavailable, "no")
	failing := keyed{path: "/v1/sandboxes", key: "k8", body: `{}`}
	if got := failing.send(t, h); got.Code != http.StatusServiceUnavailable {
		t.Errorf("a failure: %d %s", got.Code, got.Body)
	}
	command := keyed{path: "/v1/sandboxes/a/exec", key: "k9", body: `{"command":["true"],"background":true}`}
	command.send(t, h)
	m.fail = nil
	if got := failing.send(t, h); got.Code != http.StatusCreated || got.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("after a failure: %d %s", got.Code, got.Body)
	}
	// A failed command may have begun, so it is not run twice.
	made := m.made
	if got := command.send(t, h); got.Code != http.StatusConflict || !strings.Contains(got.Body.String(), "not known") || m.made != made {
		t.Errorf("a command again: %d %s", got.Code, got.Body)
	}
}

// While a request is worked on, the same is a conflict; the same of a server that
// was killed meanwhile says that the outcome is not known.
func TestIdempotencyKeyUnderWay(t *testing.T) {
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	m := &makers{enter: func(context.Context) { entered <- struct{}{}; <-leave }}
	run := openRequests(t, m)
	h, after := run(), run()
	request := keyed{path: "/v1/sandboxes", key: "k", body: `{}`}
	told := make(chan *httptest.ResponseRecorder)
	go func() { told <- request.send(t, h) }()
	<-entered
	if got := request.send(t, h); got.Code != http.StatusConflict || got.Header().Get("Retry-After") == "" {
		t.Errorf("meanwhile: %d %v %s", got.Code, got.Header(), got.Body)
	}
	if got := request.send(t, after); got.Code != http.StatusConflict || got.Header().Get("Retry-After") != "" || !strings.Contains(got.Body.String(), "not known") {
		t.Errorf("after the server was killed: %d %v %s", got.Code, got.Header(), got.Body)
	}
	close(leave)
	first := <-told
	if got := request.send(t, after); first.Code != http.StatusCreated || got.Body.String() != first.Body.String() || m.made != 1 {
		t.Errorf("at last: %d %s, the first %d %s", got.Code, got.Body, first.Code, first.Body)
	}
}

// cutting serves a handler and cuts the connections of the first answers: before
// they are given, after the work was done.
type cutting struct {
	http.Handler
	mu   sync.Mutex
	cuts int
}

func (c *cutting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Handler.ServeHTTP(&cutAnswer{w, c}, r)
}

type cutAnswer struct {
	http.ResponseWriter
	c *cutting
}

func (a *cutAnswer) WriteHeader(status int) {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.c.cuts--; a.c.cuts >= 0 {
		panic(http.ErrAbortHandler)
	}
	a.ResponseWriter.WriteHeader(status)
}

// The client gets the answer to a request that has succeeded, although connections are
// lost.
func TestClientSendsAgain(t *testing.T) {
	m := &makers{}
	c := &cutting{Handler: asLocal(openRequests(t, m)()), cuts: 2}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	cl, err := client.New(client.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	got, err := cl.Create(t.Context(), sandbox.CreateRequest{Name: "a"})
	if err != nil || got.ID != "x" || m.made != 1 {
		t.Errorf("got %+v, %v; %d were made", got, err, m.made)
	}
	// Each call has a key of its own.
	if got, err = cl.Create(t.Context(), sandbox.CreateRequest{Name: "a"}); err != nil || got.ID != "xx" {
		t.Errorf("the next call: %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	m.enter = func(served context.Context) {
		cancel(errors.New("enough"))
		<-served.Done() // the answer must not overtake the client's end
	}
	if _, err = cl.Create(ctx, sandbox.CreateRequest{}); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("given up: %v", err)
	}
}

// If a client gives up a request while its sandbox is being made, the sandbox is ended,
// since nobody would know of it, and the key can be used again.
func TestClientGone(t *testing.T) {
	m := &makers{killed: make(chan string, 1)}
	h := openRequests(t, m)()
	srv := httptest.NewServer(asLocal(h))
	t.Cleanup(srv.Close)
	cl, err := client.New(client.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	m.enter = func(ctx context.Context) {
		cancel()
		<-ctx.Done() // the server has noticed
	}
	if _, err := cl.Create(ctx, sandbox.CreateRequest{}); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("given up: %v", err)
	}
	if id := <-m.killed; id != "x" {
		t.Errorf("%s was killed, want x", id)
	}
}
