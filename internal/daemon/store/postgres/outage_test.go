package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

// Connections that are cut between calls and in the middle of a change are made
// anew, and nobody notices.
func testCutConnections(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	add(t, s, "a")
	server.CutConnections(t)
	if _, err := s.Sandbox(t.Context(), "a"); err != nil {
		t.Errorf("a read: %v", err)
	}
	server.CutConnections(t)
	add(t, s, "b")
	runs := 0
	got, err := s.UpdateSandbox(t.Context(), "a", store.Change{Apply: func(r *store.Record) error {
		if runs++; runs == 1 {
			server.CutConnections(t)
		}
		r.History++
		return nil
	}})
	if err != nil || runs != 2 || got.History != 1 {
		t.Errorf("a change: %v, ran %d times, is at %d; want twice and 1", err, runs, got.History)
	}
}

// While the server is away each call says so, and when it is back they work again.
func TestServerAway(t *testing.T) {
	server := postgrestest.Start(t)
	s, err := impatient(t, server.Schema(t))
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, "a")
	for _, end := range []func(testing.TB){server.Stop, server.Crash} {
		end(t)
		_, err := s.Sandbox(t.Context(), "a")
		for _, err := range []error{err, s.CreateSandbox(t.Context(), running("b"), store.Quota{})} {
			wantCode(t, err, sandbox.CodeUnavailable)
			if said := sandbox.MessageOf(err); !strings.Contains(said, "the server's database is not responding; try again") {
				t.Errorf("an outage is said to be: %s", said)
			}
		}
		server.Run(t)
		if _, err := s.Sandbox(t.Context(), "a"); err != nil {
			t.Errorf("when it is back: %v", err)
		}
	}
}

// A call waits for a server that restarts.
func TestServerRestarts(t *testing.T) {
	server := postgrestest.Start(t)
	s := openAt(t, server.Schema(t))
	server.Stop(t)
	done := make(chan error)
	go func() { done <- s.CreateSandbox(t.Context(), running("a"), store.Quota{}) }()
	server.Run(t)
	// It may have waited for longer than calls do, on a machine that is slow.
	if err := <-done; err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Error(err)
	}
	if err := s.CreateSandbox(t.Context(), running("b"), store.Quota{}); err != nil {
		t.Error(err)
	}
}

// breaker is between a daemon and its server. Once armed, it breaks the connection
// that commits next: before the server hears of it, or before the daemon hears of
// what has become of it.
type breaker struct {
	dir, to     string
	before      bool
	armed, done atomic.Bool
}

func newBreaker(t *testing.T, address sandbox.SecretValue, before bool) (*breaker, sandbox.SecretValue) {
	t.Helper()
	u, err := url.Parse(address.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	b := &breaker{dir: t.TempDir(), to: filepath.Join(query.Get("host"), ".s.PGSQL.5432"), before: before}
	query.Set("host", b.dir)
	u.RawQuery = query.Encode()
	listener, err := net.Listen("unix", filepath.Join(b.dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			daemon, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { b.relay(daemon) })
		}
	})
	t.Cleanup(func() { // after the store has closed its connections
		listener.Close()
		all.Wait()
	})
	return b, sandbox.NewSecretValue(u.String())
}

// relay copies between a daemon and the server until one of them ends, or the
// connection is broken.
func (b *breaker) relay(daemon net.Conn) {
	defer daemon.Close()
	server, err := net.Dial("unix", b.to)
	if err != nil {
		return
	}
	defer server.Close()
	var broken atomic.Bool
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if broken.Load() || err != nil {
				daemon.Close()
				return
			}
			if _, err := daemon.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := daemon.Read(buf)
		if err != nil {
			break
		}
		if strings.Contains(string(buf[:n]), "commit\x00") && b.armed.CompareAndSwap(true, false) {
			b.done.Store(true)
			if b.before {
				break
			}
			broken.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			break
		}
	}
	server.Close()
	<-answered
}

// A connection that is lost at the commit leaves nobody in doubt: a change that was
// committed is not made again, and one that was not is.
func testConnectionLostAtCommit(t *testing.T, server *postgrestest.Server) {
	for _, before := range []bool{true, false} {
		b, address := newBreaker(t, server.Schema(t), before)
		s := openAt(t, address)
		add(t, s, "a")
		runs, want := 0, 1
		if before {
			want = 2
		}
		b.armed.Store(true)
		got, err := s.UpdateSandbox(t.Context(), "a", store.Change{Apply: func(r *store.Record) error {
			runs++
			r.History++
			return nil
		}})
		if err != nil || runs != want || got.History != 1 || !b.done.Load() {
			t.Errorf("before the server hears of it %v: %v, ran %d times, is at %d", before, err, runs, got.History)
		}
		if got, err := s.Sandbox(t.Context(), "a"); err != nil || got.History != 1 {
			t.Errorf("before the server hears of it %v: stored %d, %v; want 1", before, got.History, err)
		}
		b.armed.Store(true)
		if err := s.CreateSandbox(t.Context(), running("b"), store.Quota{}); err != nil {
			t.Errorf("one that is added: %v", err)
		}
	}
}

// Two that wait for each other are a deadlock, of which one is done again.
func testDeadlock(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	var runs atomic.Int32
	var both sync.WaitGroup
	both.Add(2)
	change := func(first, second string) error {
		again := false
		return s.db.Change(t.Context(), func(tx *sql.Tx) error {
			runs.Add(1)
			if err := s.db.Lock(t.Context(), tx, first); err != nil {
				return err
			}
			if !again {
				again = true
				both.Done()
				both.Wait()
			}
			return s.db.Lock(t.Context(), tx, second)
		})
	}
	errs := make(chan error)
	go func() { errs <- change("x", "y") }()
	go func() { errs <- change("y", "x") }()
	if err := errors.Join(<-errs, <-errs); err != nil || runs.Load() < 3 {
		t.Errorf("%v after %d runs; want none, and one of them again", err, runs.Load())
	}
}

// What is undone each time is an error in the end, and one that says to come again.
func testConflictThatLasts(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	runs := 0
	err := s.db.Change(t.Context(), func(*sql.Tx) error {
		runs++
		return fmt.Errorf("write: %w", &pgconn.PgError{Code: "40001"})
	})
	wantCode(t, err, sandbox.CodeUnavailable)
	if runs != conflicts+1 {
		t.Errorf("it ran %d times, want %d", runs, conflicts+1)
	}
}

// Of daemons that start at the same time with a new database, one has it, with its
// schema, and the others say why they have not.
func testOneDaemon(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	const n = 6
	type opened struct {
		s   *Store
		err error
	}
	all := make(chan opened)
	for range n {
		go func() {
			s, err := open(context.WithoutCancel(t.Context()), address, NewClaim("", 0), 1)
			all <- opened{s, err}
		}()
	}
	var won []*Store
	for range n {
		o := <-all
		if o.err == nil {
			won = append(won, o.s)
			continue
		}
		wantCode(t, o.err, sandbox.CodeConflict)
		if said := o.err.Error(); !strings.Contains(said, "another daemon uses the database; stop it, or give this one") {
			t.Errorf("one that is refused says: %s", said)
		}
	}
	for _, s := range won {
		add(t, s, "a")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(won) != 1 {
		t.Fatalf("%d of %d opened the database, want 1", len(won), n)
	}
	add(t, openAt(t, address), "b") // it waits for the one that ends
}

// A daemon that was cut off, and whose database another has opened meanwhile, can do
// nothing more with it.
func testTakenOver(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	old := openAt(t, address)
	add(t, old, "a")
	server.CutConnections(t)
	add(t, openAt(t, address), "b")
	_, err := old.Sandbox(t.Context(), "a")
	for _, err := range []error{err, old.CreateSandbox(t.Context(), running("c"), store.Quota{})} {
		wantCode(t, err, sandbox.CodeUnavailable)
		if said := sandbox.MessageOf(err); !strings.Contains(said, "another daemon has taken over this daemon's database") {
			t.Errorf("it says: %s", said)
		}
	}
	<-old.Lost()
}
