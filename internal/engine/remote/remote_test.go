package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/enginetest"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// roots are the same on both machines.
type roots struct{ root engine.Root }

func (r roots) Root(context.Context, string, []engine.Bind) (engine.Root, func(), error) {
	return r.root, func() {}, nil
}

// node is an engine with its server.
type node struct {
	server *remote.Server
	engine engine.Engine
}

func newNode(t *testing.T, e engine.Engine, root engine.Root) *node {
	return newNodeWith(t, e, root, nil)
}

func newNodeWith(t *testing.T, e engine.Engine, root engine.Root, admit func(int64) error) *node {
	return &node{engine: e, server: remote.NewServer(remote.Config{
		Engine: e, Roots: roots{root}, Report: func() remote.Report { return remote.Report{Version: "test"} }, Admit: admit,
		AsideDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})}
}

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
		b, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// connect returns an unsettled engine for a node.
func (n *node) connect(t *testing.T) *remote.Engine {
	t.Helper()
	near, far := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.server.Serve(context.WithoutCancel(t.Context()), far) })
	e := remote.New(near)
	t.Cleanup(func() {
		e.Close()
		wg.Wait()
	})
	return e
}

// settle connects to a node and keeps all that it has.
func (n *node) settle(t *testing.T) *remote.Engine {
	t.Helper()
	e := n.connect(t)
	all, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var keep []string
	for _, st := range all {
		keep = append(keep, st.ID)
	}
	if err := e.Settle(t.Context(), 0, keep); err != nil {
		t.Fatal(err)
	}
	return e
}

// driven is a remote engine that ends together with its node's.
type driven struct {
	*remote.Engine
	node engine.Engine
	once *sync.Once
}

func (d driven) Notify(failed func(engine.Status)) {
	d.Engine.Notify(failed)
	d.Watch()
}

func (d driven) Close() (err error) {
	d.once.Do(func() { err = errors.Join(d.Engine.Close(), d.node.Close()) })
	return err
}

func newState(t *testing.T) (*memory.State, string) {
	dir := t.TempDir()
	s := memory.NewState(dir)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

func smallSpec() engine.Spec {
	return engine.Spec{Root: engine.Root{Dir: "/"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 128, DiskMiB: 64, MaxPIDs: 64}}
}

func TestEngine(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) enginetest.Subject {
		s, dir := newState(t)
		return enginetest.Subject{
			Open: func(t *testing.T) engine.Engine {
				e := memory.New(s)
				return driven{newNode(t, e, engine.Root{Dir: "/"}).settle(t), e, new(sync.Once)}
			},
			Spec: func(*testing.T) engine.Spec { return smallSpec() },
			Fail: func(t *testing.T, id string) {
				if err := s.Kill(id, "killed by the test"); err != nil {
					t.Fatal(err)
				}
			},
			Traces: func(_ *testing.T, id string) []string {
				left, err := filepath.Glob(filepath.Join(dir, id))
				if err != nil {
					t.Fatal(err)
				}
				return left
			},
		}
	})
}

func create(t *testing.T, e engine.Engine, id string) engine.Instance {
	t.Helper()
	spec := smallSpec()
	spec.ID = id
	i, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestSettle checks that a node is not driven before it knows which instances are wanted,
// and ends the others.
func TestSettle(t *testing.T) {
	s, _ := newState(t)
	n := newNode(t, memory.New(s), engine.Root{Dir: "/"})
	first := n.settle(t)
	create(t, first, "wanted")
	create(t, first, "given-up")
	second := n.connect(t)
	if _, err := second.Open(t.Context(), "wanted"); err == nil || !strings.Contains(err.Error(), "wants") {
		t.Errorf("Open before Settle: %v", err)
	}
	spec := smallSpec()
	spec.ID = "new"
	if _, err := second.Create(t.Context(), spec); err == nil {
		t.Error("Create before Settle succeeded")
	}
	if err := second.Settle(t.Context(), 0, []string{"wanted", "unknown"}); err != nil {
		t.Fatal(err)
	}
	if got := s.IDs(); !slices.Equal(got, []string{"wanted"}) {
		t.Errorf("the node has %v", got)
	}
	if _, err := second.Open(t.Context(), "wanted"); err != nil {
		t.Error(err)
	}
	<-first.Done() // the newer connection has taken over
	if _, err := first.Open(t.Context(), "wanted"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Open over the old connection: %v", err)
	}
}

// TestEpoch checks that a daemon that the node refuses ends nothing and drives nothing.
func TestEpoch(t *testing.T) {
	s, _ := newState(t)
	last := int64(0)
	n := newNodeWith(t, memory.New(s), engine.Root{Dir: "/"}, func(epoch int64) error {
		if epoch < last {
			return sandbox.Errorf(sandbox.CodeForbidden, "replaced")
		}
		last = epoch
		return nil
	})
	first := n.connect(t)
	if err := first.Settle(t.Context(), 7, nil); err != nil {
		t.Fatal(err)
	}
	create(t, first, "wanted")
	replaced := n.connect(t)
	if err := replaced.Settle(t.Context(), 6, nil); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("a daemon that was replaced: %v", err)
	}
	if _, err := replaced.Open(t.Context(), "wanted"); err == nil {
		t.Error("it drives the node")
	}
	if got := s.IDs(); !slices.Equal(got, []string{"wanted"}) {
		t.Errorf("the node has %v", got)
	}
}

// TestSecrets checks that values reach the node's engine, and the errors of opening them.
func TestSecrets(t *testing.T) {
	s, _ := newState(t)
	e := newNode(t, memory.New(s), engine.Root{Dir: "/"}).settle(t)
	spec := smallSpec()
	spec.ID = "one"
	network := func(values engine.Values) *engine.Network {
		return &engine.Network{SandboxID: "one", Bindings: []engine.Binding{{Placeholder: "ph-1"}, {Placeholder: "ph-2"}}, Values: values}
	}
	spec.Network = network(func(yield func(string, []byte) error) error {
		return errors.Join(yield("ph-1", []byte("first")), yield("ph-2", []byte("second")))
	})
	i, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, values := s.Network("one"); values["ph-1"] != "first" || values["ph-2"] != "second" {
		t.Errorf("the node has %v", values)
	}
	closed := sandbox.Errorf(sandbox.CodeUnavailable, "the value cannot be unsealed")
	err = i.(engine.Gateway).SetNetwork(t.Context(), *network(func(func(string, []byte) error) error { return closed }))
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || sandbox.MessageOf(err) != closed.Message {
		t.Errorf("SetNetwork: %v", err)
	}
}

// TestQuestions checks that a later daemon hears the questions that are still open.
func TestQuestions(t *testing.T) {
	s, _ := newState(t)
	inner := memory.New(s)
	n := newNode(t, inner, engine.Root{Dir: "/"})
	create(t, n.settle(t), "one")
	inner.Ask("one", engine.Question{ID: "apr-1"})
	e := n.settle(t)
	got := make(chan string, 8)
	e.SetAsked(func(id string, open []engine.Question) { got <- fmt.Sprint(id, len(open)) })
	e.Watch()
	if g := <-got; g != "one1" {
		t.Errorf("asked %s", g)
	}
	i, err := e.Open(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.(engine.Asking).AnswerQuestion(t.Context(), "apr-2", true); !errors.Is(err, engine.ErrNoQuestion) {
		t.Errorf("AnswerQuestion: %v", err)
	}
}

// dialing is an engine that dials for [engine.Switch] on demand.
type dialing struct {
	*memory.Engine
	dial func(ctx context.Context, from, name string, port int) (net.Conn, error)
}

func (d *dialing) SetPeers(dial func(ctx context.Context, from, name string, port int) (net.Conn, error)) {
	d.dial = dial
}

// TestPeers checks connections that sandboxes of the node ask for.
func TestPeers(t *testing.T) {
	s, _ := newState(t)
	inner := &dialing{Engine: memory.New(s)}
	e := newNode(t, inner, engine.Root{Dir: "/"}).settle(t)
	if _, err := func() (net.Conn, error) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return inner.dial(ctx, "sbx-a", "db", 1)
	}(); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	echo, far := pair(t)
	e.SetPeers(func(_ context.Context, from, name string, port int) (net.Conn, error) {
		if from != "sbx-a" || name != "db" || port != 5432 {
			return nil, sandbox.Errorf(sandbox.CodeForbidden, "no connection from %s to %s:%d", from, name, port)
		}
		return far, nil
	})
	e.Watch()
	if _, err := inner.dial(t.Context(), "sbx-a", "other", 1); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("refused: %v", err)
	}
	c, err := inner.dial(t.Context(), "sbx-a", "db", 5432)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		data, _ := io.ReadAll(echo)
		_, _ = echo.Write(append(data, " back"...))
		echo.Close()
	}()
	if _, err := c.Write([]byte("there and")); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "there and back" {
		t.Errorf("got %q, %v", got, err)
	}
	c.Close()
}

// streams is an engine whose instances connect to one end of a pipe.
type streams struct {
	*memory.Engine
	far chan net.Conn
}

type streamInstance struct {
	engine.Instance
	far chan net.Conn
}

func (s *streams) Open(ctx context.Context, id string) (engine.Instance, error) {
	i, err := s.Engine.Open(ctx, id)
	return streamInstance{i, s.far}, err
}

func (i streamInstance) Dial(context.Context) (net.Conn, error) {
	near, far := net.Pipe() // nothing is in between
	i.far <- far
	return near, nil
}

// stream returns both ends of a connection to an instance.
func stream(t *testing.T) (near, far net.Conn) {
	t.Helper()
	s, _ := newState(t)
	inner := &streams{Engine: memory.New(s), far: make(chan net.Conn, 1)}
	e := newNode(t, inner, engine.Root{Dir: "/"}).settle(t)
	i := create(t, e, "one")
	near, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near, <-inner.far
}

// TestBackPressure checks that a sender waits for a receiver that does not read, in both
// directions, and that nothing is lost.
func TestBackPressure(t *testing.T) {
	near, far := stream(t)
	const most = 64 << 20
	for _, way := range []struct {
		name     string
		from, to net.Conn
	}{{"to the node", near, far}, {"from the node", far, near}} {
		t.Run(way.name, func(t *testing.T) {
			var sent int64
			stuck, ended := make(chan struct{}), make(chan error, 1)
			progress := make(chan int64, 1)
			go func() {
				chunk := make([]byte, 64<<10)
				for sent < most {
					n, err := way.from.Write(chunk)
					sent += int64(n)
					if err != nil {
						ended <- err
						return
					}
					select {
					case progress <- sent:
					default:
					}
				}
				ended <- nil
			}()
			go func() { // stuck when nothing moves any more
				for {
					select {
					case <-progress:
					case <-time.After(500 * time.Millisecond):
						close(stuck)
						return
					}
				}
			}()
			<-stuck
			select {
			case err := <-ended:
				t.Fatalf("%d MiB went to nobody: %v", most>>20, err)
			default:
			}
			if n, err := io.CopyN(io.Discard, way.to, most); err != nil || n != most {
				t.Fatalf("received %d bytes: %v", n, err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCancellation checks that closing one end ends the other.
func TestCancellation(t *testing.T) {
	near, far := stream(t)
	near.Close()
	if _, err := far.Read(make([]byte, 1)); err == nil {
		t.Error("the far end is still open")
	}
	near, far = stream(t)
	far.Close()
	if _, err := io.ReadAll(near); err != nil {
		t.Errorf("reading what has ended: %v", err)
	}
}

// TestDeadline checks deadlines that pass before and during a call.
func TestDeadline(t *testing.T) {
	near, _ := stream(t)
	for _, at := range []time.Time{time.Now().Add(20 * time.Millisecond), time.Now()} {
		if err := near.SetReadDeadline(at); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := near.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("Read: %v", err)
		}
	}
}
