package postgres

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

// A fence holds as long as proofs succeed within it, and no longer, however they fail.
func TestFence(t *testing.T) {
	const fence = 6 * time.Second
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		prove func(ctx context.Context, at time.Duration) error
		want  error
		// end is when it has to be over, give or take the time between two proofs.
		end time.Duration
	}{
		"lost at once":                {func(context.Context, time.Duration) error { return refused }, errCutOff, fence},
		"never lost":                  {func(context.Context, time.Duration) error { return nil }, nil, time.Minute},
		"lost later":                  {until(20*time.Second, nil, refused), errCutOff, 20*time.Second + fence},
		"lost silently":               {until(20*time.Second, nil, nil), errCutOff, 20*time.Second + fence},
		"away for less than a fence":  {between(20*time.Second, 25*time.Second, refused), nil, time.Minute},
		"silent for less":             {between(20*time.Second, 23*time.Second, nil), nil, time.Minute},
		"taken over":                  {until(20*time.Second, nil, errTakenOver), errTakenOver, 20 * time.Second},
		"taken over during an outage": {between(20*time.Second, 22*time.Second, refused, errTakenOver), errTakenOver, 22 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := fenced(ctx, fence, func(ctx context.Context) error { return c.prove(ctx, time.Since(began)) })
				if !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("it ended with %v, want %v", err, c.want)
				}
				// Before the end nothing was lost; after it, another may begin.
				if took := time.Since(began); took > c.end || took < c.end-2*proveEvery {
					t.Errorf("it ended after %s, want %s", took, c.end)
				}
			})
		})
	}
}

// until answers with before until a time, and then with after; nil is then silence.
func until(end time.Duration, before, after error) func(context.Context, time.Duration) error {
	return func(ctx context.Context, at time.Duration) error {
		switch {
		case at < end:
			return before
		case after == nil:
			<-ctx.Done()
			return ctx.Err()
		}
		return after
	}
}

// between fails between two times, with silence if err is nil, and answers with after later.
func between(from, to time.Duration, err error, after ...error) func(context.Context, time.Duration) error {
	failing := until(from, nil, err)
	return func(ctx context.Context, at time.Duration) error {
		if at < to {
			return failing(ctx, at)
		}
		return errors.Join(after...)
	}
}

// stand waits for a database in the background.
func stand(t *testing.T, address sandbox.SecretValue, claim Claim) (opened chan *Store, waits func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	opened = make(chan *Store, 1)
	var active atomic.Value
	var all sync.WaitGroup
	all.Go(func() {
		s, err := Stand(ctx, address, claim, func(name string, err error) {
			if err == nil {
				active.Store(name)
			}
		})
		if err == nil {
			opened <- s
		} else if ctx.Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return opened, func() string { name, _ := active.Load().(string); return name }
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal(what)
		}
	}
}

// testFence is long enough for some proofs on a busy machine.
const testFence = 3 * time.Second

// One on standby knows who is active, takes over at once from one that has stopped, and has
// a higher epoch.
func testHandover(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	first, err := OpenAs(t.Context(), address, NewClaim("one", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	add(t, first, "a")
	second, waits := stand(t, address, NewClaim("two", time.Minute))
	eventually(t, "it does not wait", func() bool { return waits() == "one" })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s := <-second
	defer s.Close()
	if waited := s.db.holder.waited; waited != 0 {
		t.Errorf("it waited for %s for one that had stopped", waited)
	}
	if s.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d follows %d", s.Epoch(), first.Epoch())
	}
	add(t, s, "b")
}

// link is a network between a daemon and the server that can be cut without an end being told.
type link struct {
	to    string
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newLink(t *testing.T, address sandbox.SecretValue) (*link, sandbox.SecretValue) {
	t.Helper()
	u, err := url.Parse(address.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	l := &link{to: query.Get("host") + "/.s.PGSQL.5432"}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	query.Del("host")
	query.Del("port")
	u.Host, u.RawQuery = listener.Addr().String(), query.Encode()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { l.relay(c) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		l.mu.Lock()
		for _, c := range l.conns {
			c.Close()
		}
		l.mu.Unlock()
		all.Wait()
	})
	return l, sandbox.NewSecretValue(u.String())
}

func (l *link) relay(daemon net.Conn) {
	server, err := net.Dial("unix", l.to)
	if err != nil {
		daemon.Close()
		return
	}
	l.mu.Lock()
	l.conns = append(l.conns, daemon, server)
	l.mu.Unlock()
	var both sync.WaitGroup
	for _, p := range [][2]net.Conn{{daemon, server}, {server, daemon}} {
		both.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, err := p[0].Read(buf)
				if err != nil {
					break
				}
				l.mu.Lock()
				cut := l.cut
				l.mu.Unlock()
				if cut {
					continue // it is lost on the way
				}
				if _, err := p[1].Write(buf[:n]); err != nil {
					break
				}
			}
			l.mu.Lock()
			cut := l.cut
			l.mu.Unlock()
			if !cut {
				p[1].Close()
			}
		})
	}
	both.Wait()
	daemon.Close()
	server.Close()
}

// stop cuts the network. The server is told that its connections have ended, as a proxy
// between may do it, and the daemon is not.
func (l *link) stop(t *testing.T, server *postgrestest.Server) {
	t.Helper()
	l.mu.Lock()
	l.cut = true
	l.mu.Unlock()
	server.CutConnections(t)
}

func (l *link) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// A daemon that is cut off from its database stops before another begins, though it was not
// told and though the lock was free at once.
func testCutOff(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	network, far := newLink(t, address)
	first, err := OpenAs(t.Context(), far, NewClaim("one", testFence))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, waits := stand(t, address, NewClaim("two", testFence))
	eventually(t, "it does not wait", func() bool { return waits() == "one" })
	cut := time.Now()
	network.stop(t, server)
	changed := make(chan error, 1)
	go func() { changed <- first.CreateSandbox(context.Background(), running("a"), store.Quota{}) }()
	s := <-second
	defer s.Close()
	select {
	case <-first.Lost():
	default:
		t.Error("the second began before the first stopped")
	}
	if waited := time.Since(cut); waited < testFence {
		t.Errorf("the second began after %s", waited)
	}
	if err := first.LostBecause(); !errors.Is(err, errCutOff) {
		t.Errorf("the first stopped because of %v", err)
	}
	select {
	case err := <-changed:
		wantCode(t, err, sandbox.CodeUnavailable)
	case <-time.After(time.Minute):
		t.Fatal("a change on a connection that was cut keeps the first from stopping")
	}
	network.restore()
	add(t, s, "b")
	if _, err := first.Sandbox(t.Context(), "b"); !errors.Is(err, errTakenOver) {
		t.Errorf("the first reads again: %v", err)
	}
}

// One that has not waited for the one before to the end does not tell the next that all have
// stopped.
func testImpatientHandover(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	first, err := OpenAs(t.Context(), address, NewClaim("one", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	first.db.holder.wholly = false // it is killed
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		s, err := OpenAs(ctx, address, NewClaim("two", time.Minute))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it was opened: %v, %v", s, err)
		}
	}
}

// Who has the database is not in doubt after the server was away: the daemon goes on, or the
// one on standby does, and never both.
func TestServerAwayWithStandby(t *testing.T) {
	server := postgrestest.Start(t)
	address := server.Schema(t)
	first, err := OpenAs(t.Context(), address, NewClaim("one", testFence))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, waits := stand(t, address, NewClaim("two", testFence))
	eventually(t, "it does not wait", func() bool { return waits() == "one" })
	server.Crash(t)
	<-first.Lost()
	select {
	case <-second:
		t.Fatal("the second has a database that is away")
	default:
	}
	server.Run(t)
	s := <-second
	defer s.Close()
	add(t, s, "a")
	if err := first.CreateSandbox(t.Context(), running("b"), store.Quota{}); err == nil {
		t.Error("the first writes")
	}
}
