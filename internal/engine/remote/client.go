package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Engine is the engine of a node, over one connection. It works until the connection ends,
// which [Engine.Done] tells; then all calls are unavailable, and what runs on the node
// runs on. Until [Engine.Settle] was called it can only tell what the node has.
type Engine struct {
	conn      *watched
	transport *http.Transport
	ctx       context.Context // ends with the connection
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	peering   chan struct{} // a semaphore of maxPeers
	calls     atomic.Int64  // the token of the last call that can be cancelled

	mu     sync.Mutex
	failed func(engine.Status)                                                               // guarded by mu
	asked  func(instanceID string, open []engine.Question)                                   // guarded by mu
	peers  func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error) // guarded by mu
	warm   map[string]func(error)                                                            // guarded by mu; by checkpoint
}

var (
	_ engine.Engine        = (*Engine)(nil)
	_ engine.Checkpointer  = (*Engine)(nil)
	_ engine.Admitter      = (*Engine)(nil)
	_ engine.Ender         = (*Engine)(nil)
	_ engine.Inquirer      = (*Engine)(nil)
	_ engine.Switch        = (*Engine)(nil)
	_ engine.NetworkLogger = (*Engine)(nil)
	_ engine.Asking        = (*instance)(nil)
	_ engine.Prober        = (*instance)(nil)
	_ engine.DeletedMeter  = (*instance)(nil)
)

// New returns the engine of the node at the other end of a connection, which the engine
// closes.
func New(c net.Conn) *Engine {
	e := &Engine{
		conn: &watched{Conn: c, closed: make(chan struct{})}, peering: make(chan struct{}, maxPeers),
		failed: func(engine.Status) {}, asked: func(string, []engine.Question) {}, warm: map[string]func(error){},
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var once sync.Once
	e.transport = &http.Transport{
		DialContext: func(context.Context, string, string) (c net.Conn, err error) {
			err = errGone
			once.Do(func() { c, err = e.conn, nil })
			return c, err
		},
		Protocols: &protocols, MaxConnsPerHost: 1, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
			MaxReceiveBufferPerConnection: 1 << 30, MaxReceiveBufferPerStream: 1 << 20,
		},
	}
	e.wg.Go(func() {
		<-e.conn.closed
		e.cancel()
	})
	return e
}

// errGone is the cause of errors after the connection has ended.
var errGone = errors.New("the connection to the node has ended")

// Done is closed when the connection has ended.
func (e *Engine) Done() <-chan struct{} { return e.conn.closed }

// Close ends the connection. What runs on the node runs on.
func (e *Engine) Close() error {
	e.conn.Close()
	e.transport.CloseIdleConnections()
	e.wg.Wait()
	return nil
}

// stream begins a call. The caller must call end, which ends the call wherever it is.
func (e *Engine) stream(ctx context.Context, method string) (f *frames, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	up, out := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/"+method, up)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	res, err := e.transport.RoundTrip(req)
	if err != nil {
		err = e.explain(ctx, err)
		out.CloseWithError(err)
		cancel()
		return nil, nil, err
	}
	end = func() {
		cancel()
		out.CloseWithError(net.ErrClosed)
		res.Body.Close()
	}
	// The transport does not notice that ctx ends while it waits for more to send.
	context.AfterFunc(ctx, end)
	if res.StatusCode != http.StatusOK {
		end()
		return nil, nil, &nodeError{fmt.Sprintf("the node answers %d to %s", res.StatusCode, method), nil}
	}
	return newFrames(res.Body, out, nil), end, nil
}

// explain says what an error of the connection means.
func (e *Engine) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if isAnswer(err) {
		return err
	}
	if errors.Is(err, errFrame) {
		e.conn.Close() // whatever follows cannot be understood
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the sandbox's node does not follow the protocol; see the server's log")
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, errors.Join(errGone, err), "the sandbox's node cannot be reached now; try again")
}

// call makes a call with one message in each direction.
func call[Res, Req any](ctx context.Context, e *Engine, method string, req Req) (res Res, err error) {
	f, end, err := e.stream(ctx, method)
	if err != nil {
		return res, err
	}
	defer end()
	return res, e.explain(ctx, f.ask(req, &res))
}

// ask sends a message and receives the answer. A node may refuse before it has read.
func (f *frames) ask(req, res any) error {
	sent := f.send(req)
	if err := f.receive(res); err != nil {
		return err
	}
	return sent
}

// start begins a call whose stream goes on after the first answer. ctx bounds the
// beginning only.
func (e *Engine) start(ctx context.Context, method string, req any) (f *frames, end func(), err error) {
	return e.startTo(ctx, method, req, &empty{})
}

// startTo is start with the first answer.
func (e *Engine) startTo(ctx context.Context, method string, req, answer any) (f *frames, end func(), err error) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	f, closeStream, err := e.stream(long, method)
	if err != nil {
		stop()
		cancel()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, err
	}
	end = func() {
		cancel()
		closeStream()
	}
	err = f.ask(req, answer)
	if !stop() {
		end()
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		end()
		return nil, nil, e.explain(ctx, err)
	}
	return f, end, nil
}

// cancelGrace bounds the wait for a node to undo a call that was cancelled.
const cancelGrace = time.Minute

// answers answer what a node asks for during a call. It may not ask for those that are nil.
type answers struct {
	values engine.Values
	commit func(*engine.Checkpoint) error // once
	usable func(engine.Checkpoint)        // once
	// fetch sends a file, and that it was all of it.
	fetch func(*exportedFile, *frames) (failed, err error)
}

// talk makes a call in which the node may ask. A cancelled one returns when the node has
// undone it. If it is not known whether it has, the error is an [ErrUnanswered].
func talk[Res any](ctx context.Context, e *Engine, method string, req cancellable, a answers) (res Res, err error) {
	if ctx.Err() != nil {
		return res, context.Cause(ctx)
	}
	long, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	token := e.calls.Add(1)
	req.setToken(token)
	f, end, err := e.stream(long, method)
	if err != nil {
		return res, err
	}
	defer end()
	stop := context.AfterFunc(ctx, func() {
		grace, done := context.WithTimeout(long, cancelGrace)
		defer done()
		_, _ = call[empty](grace, e, "Cancel", cancelRequest{token})
		<-grace.Done()
		abort()
	})
	defer stop()
	var failed error // of what the node asked for
	fail := func(err error) error {
		why := failed // the node only repeats it
		if why == nil {
			why = e.explain(ctx, err)
		}
		if isAnswer(err) {
			return why
		}
		return unanswered{why}
	}
	if err := f.send(req); err != nil {
		var s step[Res]
		return res, fail(cmp.Or(f.receive(&s), err))
	}
	for {
		var s step[Res]
		if err := f.receive(&s); err != nil {
			return res, fail(err)
		}
		switch {
		case s.Done != nil:
			return *s.Done, nil
		case s.Values && a.values != nil:
			failed, err = f.sendValues(a.values)
		case s.Commit != nil && a.commit != nil:
			var answer committed
			if err := a.commit(s.Commit); err != nil {
				answer.Failed = new(failureOf(err))
			}
			a.commit = nil
			err = f.send(answer)
		case s.Usable != nil && a.usable != nil:
			a.usable(*s.Usable)
			a.usable = nil
		case s.Fetch != nil && a.fetch != nil:
			failed, err = a.fetch(s.Fetch, f)
		default:
			err = fmt.Errorf("%w: it asks for nothing", errFrame)
		}
		if err != nil {
			return res, unanswered{e.explain(ctx, err)}
		}
	}
}

// sendValues sends the values of secrets one by one. failed is why there are none.
func (f *frames) sendValues(values engine.Values) (failed, err error) {
	failed = values(func(placeholder string, secret []byte) error {
		if len(secret) > maxData {
			return fmt.Errorf("the value of a secret has more than %d bytes", maxData)
		}
		if err := f.send(value{Placeholder: placeholder}); err != nil {
			return err
		}
		return f.write(frameSecret, secret)
	})
	if failed != nil {
		return failed, f.send(value{Failed: new(failureOf(failed))})
	}
	return nil, f.send(value{End: true})
}

// Settle tells the node which instances are wanted. It ends all others, and only then the
// node can be driven. A node that has seen a larger epoch refuses.
func (e *Engine) Settle(ctx context.Context, epoch int64, keep []string) error {
	_, err := call[empty](ctx, e, "Settle", settleRequest{Keep: keep, Epoch: epoch})
	return err
}

// Watch receives what the node tells by itself, from now on, until the connection ends.
func (e *Engine) Watch() {
	e.wg.Go(func() {
		defer e.conn.Close() // without events the node cannot be trusted to be well
		f, end, err := e.stream(e.ctx, "Events")
		if err != nil {
			return
		}
		defer end()
		if f.send(empty{}) != nil {
			return
		}
		for {
			var ev event
			if f.receive(&ev) != nil {
				return
			}
			e.hear(&ev)
		}
	})
}

func (e *Engine) hear(ev *event) {
	e.mu.Lock()
	failed, asked, peers := e.failed, e.asked, e.peers
	var warm func(error)
	if ev.Warm != nil {
		warm = e.warm[ev.Warm.Checkpoint]
	}
	e.mu.Unlock()
	switch {
	case ev.Failed != nil && !ev.Failed.Running:
		failed(ev.Failed.status())
	case ev.Asked != nil && len(ev.Asked.Open) <= maxQuestions:
		asked(ev.Asked.Instance, ev.Asked.Open)
	case warm != nil:
		warm(ev.Warm.Failure.error())
	case ev.Peer != nil:
		select {
		case e.peering <- struct{}{}:
			e.wg.Go(func() { e.connect(ev.Peer, peers) })
		default: // the sandbox's connection times out
		}
	}
}

// maxQuestions bounds the open questions of one instance; gateways ask fewer.
const maxQuestions = 256

func (s *status) status() engine.Status {
	return engine.Status{ID: s.ID, Running: s.Running, Reason: clean(s.Reason), Log: clean(s.Log), Label: s.Label}
}

// peerTimeout bounds how long it takes to connect a sandbox to another.
const peerTimeout = time.Minute

// connect connects a sandbox of the node to another sandbox.
func (e *Engine) connect(p *peer, dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)) {
	dialing := true
	defer func() {
		if dialing {
			<-e.peering
		}
	}()
	ctx, cancel := context.WithTimeout(e.ctx, peerTimeout)
	defer cancel()
	var far net.Conn
	err := error(sandbox.Errorf(sandbox.CodeUnsupported, "this server does not connect sandboxes with each other"))
	if dial != nil {
		far, err = dial(ctx, p.From, p.Name, p.Port)
	}
	answer := peerAnswer{ID: p.ID}
	if err != nil {
		answer.Failed = new(failureOf(err))
	} else {
		defer far.Close()
	}
	f, end, err := e.start(ctx, "Peer", answer)
	if err != nil {
		return
	}
	<-e.peering
	dialing = false
	near := newConn(f, end)
	defer near.Close()
	if far == nil {
		return
	}
	stop := context.AfterFunc(e.ctx, func() { far.Close() })
	defer stop()
	join(near, far)
}

// Notify implements [engine.Engine].
func (e *Engine) Notify(failed func(engine.Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = failed
}

// SetAsked implements [engine.Inquirer].
func (e *Engine) SetAsked(asked func(instanceID string, open []engine.Question)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = asked
}

// SetPeers implements [engine.Switch].
func (e *Engine) SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers = dial
}

// Create implements [engine.Engine].
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	for _, m := range spec.Mounts {
		if m.Source != "" {
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the directory at %s is on the server's machine, and the sandbox is placed on another; mount no volumes and directories of the host in sandboxes on nodes", m.Target)
		}
	}
	req := createRequest{Spec: spec, Root: rootOf(&spec.Root), Label: spec.Label}
	req.Spec.Root = engine.Root{}
	var values engine.Values
	if spec.Network != nil && spec.Network.Values != nil {
		values, req.Values = spec.Network.Values, true
	}
	made, err := talk[opened](ctx, e, "Create", &req, answers{values: values})
	if err != nil {
		return nil, err
	}
	return e.instance(spec.ID, made), nil
}

func (e *Engine) instance(id string, o opened) *instance {
	return &instance{e, id, cleanAll(o.Unenforced)}
}

func cleanAll(texts []string) []string {
	var out []string
	for _, t := range texts[:min(len(texts), 16)] {
		out = append(out, clean(t))
	}
	return out
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, id string) (engine.Instance, error) {
	o, err := call[opened](ctx, e, "Open", byID{id})
	if err != nil {
		return nil, err
	}
	return e.instance(id, o), nil
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context) ([]engine.Status, error) {
	list, err := call[[]*status](ctx, e, "List", empty{})
	if err != nil {
		return nil, err
	}
	all := make([]engine.Status, 0, len(list))
	for _, s := range list {
		if s != nil {
			all = append(all, s.status())
		}
	}
	return all, nil
}

// Destroy implements [engine.Engine].
func (e *Engine) Destroy(ctx context.Context, id string) error {
	_, err := call[empty](ctx, e, "Destroy", byID{id})
	return err
}

// End implements [engine.Ender].
func (e *Engine) End(ctx context.Context, id string) error {
	_, err := call[empty](ctx, e, "End", byID{id})
	return err
}

// Admit implements [engine.Admitter].
func (e *Engine) Admit(ctx context.Context, n int, of engine.Source, spec *engine.Spec) error {
	_, err := call[empty](ctx, e, "Admit", admitRequest{n, of, spec.Resources})
	return err
}

// NetworkLog implements [engine.NetworkLogger].
func (e *Engine) NetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	page, err := call[logPage](ctx, e, "NetworkLog", logRequest{sandboxID, req})
	return page.Events, page.Next, err
}

// FollowNetworkLog implements [engine.NetworkLogger].
func (e *Engine) FollowNetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	f, end, err := e.stream(ctx, "FollowNetworkLog")
	if err != nil {
		return err
	}
	defer end()
	if err := f.send(logRequest{sandboxID, req}); err != nil {
		return e.explain(ctx, err)
	}
	for {
		var ev sandbox.NetworkEvent
		if err := f.receive(&ev); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return e.explain(ctx, err)
		}
		if err := sink(ev); err != nil {
			return err
		}
	}
}

// RemoveNetworkLog implements [engine.NetworkLogger].
func (e *Engine) RemoveNetworkLog(ctx context.Context, sandboxID string) error {
	_, err := call[empty](ctx, e, "RemoveNetworkLog", byID{sandboxID})
	return err
}

// NetworkLogs implements [engine.NetworkLogger].
func (e *Engine) NetworkLogs(ctx context.Context) ([]string, error) {
	return call[[]string](ctx, e, "NetworkLogs", empty{})
}

// instance is an instance on the node.
type instance struct {
	e          *Engine
	id         string
	unenforced []string
}

func (i *instance) ID() string           { return i.id }
func (i *instance) Unenforced() []string { return i.unenforced }

func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return i.e.dial(ctx, "Dial", byID{i.id})
}

func (i *instance) DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error) {
	return i.e.dial(ctx, "DialPort", portRequest{i.id, port, loopback})
}

func (e *Engine) dial(ctx context.Context, method string, req any) (net.Conn, error) {
	f, end, err := e.start(ctx, method, req)
	if err != nil {
		return nil, err
	}
	return newConn(f, end), nil
}

func (i *instance) Stats(ctx context.Context) (engine.Stats, error) {
	return call[engine.Stats](ctx, i.e, "Stats", byID{i.id})
}

func (i *instance) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	o, err := call[opened](ctx, i.e, "SetLimits", limitsRequest{i.id, r})
	return cleanAll(o.Unenforced), err
}

func (i *instance) Probe(ctx context.Context) error {
	_, err := call[empty](ctx, i.e, "Probe", byID{i.id})
	return err
}

func (i *instance) DeletedBytes(ctx context.Context) (map[string]int64, error) {
	return call[map[string]int64](ctx, i.e, "DeletedBytes", byID{i.id})
}

func (i *instance) SetNetwork(ctx context.Context, n engine.Network) error {
	_, err := talk[empty](ctx, i.e, "SetNetwork", &networkRequest{ID: i.id, Network: n, Values: n.Values != nil}, answers{values: n.Values})
	return err
}

func (i *instance) AnswerQuestion(ctx context.Context, id string, allow bool) error {
	_, err := call[empty](ctx, i.e, "AnswerQuestion", answerRequest{i.id, id, allow})
	return err
}
