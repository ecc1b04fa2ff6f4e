package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// Config configures a [Server].
type Config struct {
	// Engine is offered. The server sets its callbacks, so nobody else may.
	Engine engine.Engine
	// Roots finds the root file systems of instances on this machine.
	Roots Roots
	// Report says what the machine has.
	Report func() Report
	// AsideDir is where checkpoints that the daemon sets aside are kept.
	AsideDir string
	// Admit, if not nil, says whether a daemon of this epoch may drive the engine, and
	// remembers it.
	Admit func(epoch int64) error
	// Settled, if not nil, is called each time that a daemon can drive the engine.
	Settled func()
	Log     *slog.Logger
}

// Roots finds root file systems. Its methods are safe for concurrent use.
type Roots interface {
	// Root returns the root with this digest as it is on this machine. bound, without
	// sources, is where directories of the machine are a part of it. The root stays until
	// release is called.
	Root(ctx context.Context, digest string, bound []engine.Bind) (root engine.Root, release func(), err error)
}

// Server offers an engine to one daemon after another, over connections.
type Server struct {
	cfg    Config
	leases leases

	mu sync.Mutex
	// present is the session that drives the engine, or nil. Guarded by mu.
	present *session
	// asked are the open questions of instances. Guarded by mu.
	asked map[string][]engine.Question
	// peers are the requests for connections that wait. Guarded by mu.
	peers map[int64]*waiting
	next  int64 // guarded by mu; the id of the last of them
}

// waiting is a sandbox that waits for a connection to another.
type waiting struct {
	conn   chan net.Conn
	failed chan error
	gone   chan struct{} // closed when it waits no more
}

// maxPeers is how many requests for connections between sandboxes wait at once.
const maxPeers = 256

// NewServer returns a server of an engine that nobody uses yet.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg, asked: map[string][]engine.Question{}, peers: map[int64]*waiting{}}
	s.leases.engine, _ = cfg.Engine.(engine.Leaser)
	cfg.Engine.Notify(func(st engine.Status) { s.tell("failed "+st.ID, event{Failed: statusOf(st)}) })
	if q, ok := cfg.Engine.(engine.Inquirer); ok {
		q.SetAsked(s.questions)
	}
	if p, ok := cfg.Engine.(engine.Switch); ok {
		p.SetPeers(s.dialPeer)
	}
	return s
}

func statusOf(st engine.Status) *status {
	return &status{ID: st.ID, Running: st.Running, Reason: st.Reason, Log: st.Log, Label: unwrapLabel(st.Label).Label}
}

// tell passes an event to the daemon, if there is one. Of events with one key, the last
// counts. A daemon that comes later asks for the list of instances.
func (s *Server) tell(key string, e event) {
	s.mu.Lock()
	present := s.present
	s.mu.Unlock()
	if present != nil {
		present.queue.put(key, e)
	}
}

func (s *Server) questions(instance string, open []engine.Question) {
	s.mu.Lock()
	if len(open) == 0 {
		delete(s.asked, instance)
	} else {
		s.asked[instance] = open
	}
	present := s.present
	s.mu.Unlock()
	if present != nil {
		present.queue.put("asked "+instance, event{Asked: &asked{instance, open}})
	}
}

// dialPeer has the daemon connect a sandbox to another.
func (s *Server) dialPeer(ctx context.Context, from, name string, port int) (net.Conn, error) {
	s.mu.Lock()
	present := s.present
	if present == nil || len(s.peers) >= maxPeers {
		s.mu.Unlock()
		return nil, errUnreachable()
	}
	s.next++
	id, w := s.next, &waiting{make(chan net.Conn), make(chan error), make(chan struct{})}
	s.peers[id] = w
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.peers, id)
		s.mu.Unlock()
		close(w.gone)
	}()
	present.queue.put(fmt.Sprint("peer ", id), event{Peer: &peer{id, from, name, port}})
	select {
	case c := <-w.conn:
		return c, nil
	case err := <-w.failed:
		return nil, err
	case <-present.ctx.Done():
		return nil, errUnreachable()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// session is one connection to a daemon.
type session struct {
	*Server
	ctx     context.Context // ends with the connection
	conn    net.Conn
	queue   *queue
	calls   sync.Map // of cancel functions, by token
	exports exports

	reported time.Duration // guarded by Server.mu; when the last report was sent, on the clock of leases

	settling sync.Mutex
	settled  bool // guarded by settling; see [session.settle]
}

// Timeouts of an idle connection: after pingAfter without a sign of the other end, it is
// asked, and may take pingTimeout to answer.
const (
	pingAfter   = 5 * time.Second
	pingTimeout = 15 * time.Second
)

// Serve serves a daemon until the connection ends or ctx does. A later call takes over
// from an earlier one, whose connection is closed.
func (s *Server) Serve(ctx context.Context, c net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := &watched{Conn: c, closed: make(chan struct{})}
	n := &session{Server: s, ctx: ctx, conn: ended, queue: newQueue()}
	s.begin(n)
	defer s.end(n)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: n, Protocols: &protocols, MaxHeaderBytes: 16 << 10,
		ErrorLog:    slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100_000, SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
			// A stream that nobody reads holds up itself only.
			MaxReceiveBufferPerConnection: 1 << 30, MaxReceiveBufferPerStream: 1 << 20,
		},
	}
	defer server.Close()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listenOnce(ended)) }()
	select {
	case <-ended.closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-served:
		return err
	}
}

func (s *Server) begin(n *session) {
	s.mu.Lock()
	before := s.present
	s.present = n
	for id, open := range s.asked {
		n.queue.put("asked "+id, event{Asked: &asked{id, open}})
	}
	s.mu.Unlock()
	if before != nil {
		before.conn.Close()
	}
}

func (s *Server) end(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.present == n {
		s.present = nil
	}
}

// ServeHTTP serves one call.
func (n *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method, ok := methods[r.URL.Path]
	if !ok || r.ProtoMajor != 2 {
		http.NotFound(w, r)
		return
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	f := newFrames(r.Body, w, rc.Flush)
	defer f.stop()
	err := n.mayCall(r.URL.Path)
	if err == nil {
		err = method(r.Context(), n, f)
	}
	if err == nil || r.Context().Err() != nil {
		return
	}
	n.cfg.Log.Debug("a call of the daemon failed", "method", r.URL.Path, "error", err)
	_ = f.fail(err)
}

// fail writes an error.
func (f *frames) fail(err error) error {
	data, merr := marshalFailure(err)
	if merr != nil {
		return merr
	}
	return f.write(frameError, data)
}

// early are the methods of a daemon that has not settled which instances it wants.
var early = map[string]bool{
	"/Report": true, "/List": true, "/Settle": true, "/Checkpoints": true, "/Events": true,
}

var errUnsettled = errors.New("the daemon has not said yet which instances it wants")

func (n *session) mayCall(path string) error {
	n.settling.Lock()
	defer n.settling.Unlock()
	if !n.settled && !early[path] {
		return errUnsettled
	}
	return nil
}

// settle ends all instances that the daemon does not want. Until then it can drive none.
func (n *session) settle(ctx context.Context, req *settleRequest) (*empty, error) {
	n.settling.Lock()
	defer n.settling.Unlock()
	if n.cfg.Admit != nil {
		if err := n.cfg.Admit(req.Epoch); err != nil {
			return nil, err
		}
	}
	keep := map[string]bool{}
	for _, id := range req.Keep {
		keep[id] = true
	}
	all, err := n.cfg.Engine.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, st := range all {
		if keep[st.ID] {
			continue
		}
		if err := n.cfg.Engine.Destroy(ctx, st.ID); err != nil {
			return nil, fmt.Errorf("end instance %s, which the daemon has given up: %w", st.ID, err)
		}
		n.cfg.Log.Info("ended an instance that the daemon has given up", "sandbox", st.ID)
	}
	n.settled = true
	if n.cfg.Settled != nil {
		n.cfg.Settled()
	}
	return &empty{}, nil
}

// watched says when a connection is closed.
type watched struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (w *watched) Close() error {
	err := net.ErrClosed
	w.once.Do(func() {
		close(w.closed)
		err = w.Conn.Close()
	})
	return err
}

// single is a listener with one connection.
type single struct {
	conns chan net.Conn // has one, then none
	once  sync.Once
	done  chan struct{} // closed by Close
}

func listenOnce(c net.Conn) *single {
	l := &single{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conns <- c
	return l
}

func (l *single) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *single) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *single) Addr() net.Addr { return addr{} }

// RootsInUse returns the digests of the roots that instances and checkpoints need, by the
// daemon's names and by this machine's.
func (s *Server) RootsInUse(ctx context.Context) (map[string]bool, error) {
	used := map[string]bool{}
	all, err := s.cfg.Engine.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, st := range all {
		l := unwrapLabel(st.Label)
		used[l.Root], used[l.Here] = true, true
	}
	keeper, ok := s.cfg.Engine.(engine.Checkpointer)
	if !ok {
		return used, nil
	}
	checkpoints, err := keeper.Checkpoints(ctx)
	for _, c := range checkpoints {
		used[c.Root.Digest], used[unwrapLabel(c.Label).Root] = true, true
	}
	return used, err
}
