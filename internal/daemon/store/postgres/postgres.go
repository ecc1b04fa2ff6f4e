// Package postgres keeps the record in a PostgreSQL database; its queries are those
// of package sqlstore.
//
// Transactions are "read committed" and lock by name or by row what they decide by,
// so that they wait for each other rather than fail. What fails nevertheless, by a
// deadlock or a lost connection, is done again for a bounded time. A change that was
// acknowledged was committed with PostgreSQL's log on its disk: it survives a loss
// of power there, as far as the server's fsync is on.
//
// One daemon uses a database, or a schema of it, at a time: see [Open].
package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlstore"
	"github.com/cove-sh/cove/sandbox"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	// connections is how many a daemon has at most.
	connections = 16
	// patience is for how long a call waits for a database that does not answer.
	patience = 5 * time.Second
	// oldest is the oldest major version of PostgreSQL that is taken.
	oldest = 14
)

// Store implements [store.Store].
type Store struct {
	*sqlstore.Store
	db *database
}

var _ store.Store = (*Store)(nil)

// database implements [sqlstore.Database].
type database struct {
	pool     *sql.DB
	proof    *sql.DB // one connection, for what must not wait for others
	patience time.Duration
	holder   holder
	end      func() // ends watching the fence, if there is one
}

var dialect = sqlstore.Dialect{
	Statement: numbered,
	// PostgreSQL takes neither bytes that are no UTF-8 nor NUL.
	Text:        func(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD") },
	ForUpdate:   " FOR UPDATE",
	HasMetadata: "metadata::jsonb @> jsonb_build_object(?::text, ?::text)",
	HasSecret:   "bindings::jsonb @> jsonb_build_array(jsonb_build_object('secret_id', ?::text))",
	HasVolume:   "mounts::jsonb @> jsonb_build_array(jsonb_build_object('volume', ?::text))",
	Taken:       taken, Repeated: repeated,
	Full: func(error) bool { return false }, // the server's disk is not the daemon's: see explained
}

// numbered puts $1, $2 and so on in the place of each "?".
func numbered(query string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// Open opens the database at an address, postgres://USER:PASSWORD@HOST:PORT/NAME,
// and brings its schema up to date. A schema newer than this program's is refused.
//
// Until [Store.Close], the database is this daemon's: another that opens it waits a
// moment for this one to end, and is refused. A daemon whose connections were all
// lost goes on when they can be made anew, unless another has opened the database
// meanwhile: then all of its calls fail, and [Store.Lost] tells.
func Open(ctx context.Context, address sandbox.SecretValue) (*Store, error) {
	return OpenAs(ctx, address, NewClaim("", 0))
}

// OpenAs is [Open] for a daemon that others wait for; see [Claim].
func OpenAs(ctx context.Context, address sandbox.SecretValue, claim Claim) (*Store, error) {
	return open(ctx, address, claim, patience)
}

func open(ctx context.Context, address sandbox.SecretValue, claim Claim, wait time.Duration) (*Store, error) {
	cfg, err := parse(address)
	if err != nil {
		return nil, err
	}
	d := &database{patience: wait, holder: newHolder(claim), end: func() {}}
	cfg.DialFunc = d.holder.dialing(cfg.DialFunc)
	if err := d.open(ctx, cfg); err != nil {
		return nil, fmt.Errorf("open %s: %w", place(cfg), err)
	}
	return &Store{sqlstore.New(d, &dialect), d}, nil
}

// open takes the database. The first connection that has the lock gives it to those that stay.
func (d *database) open(ctx context.Context, cfg *pgx.ConnConfig) error {
	first := stdlib.OpenDB(*cfg, prepared(d.beAlone))
	first.SetMaxOpenConns(1)
	if err := d.retry(ctx, func() error { return d.take(ctx, first) }); err != nil {
		return errors.Join(err, first.Close())
	}
	d.pool, d.proof = stdlib.OpenDB(*cfg, prepared(d.join)), stdlib.OpenDB(*cfg, prepared(d.join))
	d.pool.SetMaxOpenConns(connections)
	d.pool.SetMaxIdleConns(connections) // they are what the lock is held by
	if d.holder.claim.Fence > 0 {
		d.pool.SetConnMaxIdleTime(hung / 2)
	}
	d.proof.SetMaxOpenConns(1)
	err := d.retry(ctx, func() error { return errors.Join(d.proof.PingContext(ctx), d.pool.PingContext(ctx)) })
	if err = errors.Join(err, first.Close()); err == nil {
		if d.holder.claim.Fence > 0 {
			d.guard()
		}
		err = d.holder.wait(ctx)
	}
	if err != nil {
		return errors.Join(explained(err), d.close())
	}
	return nil
}

// guard begins to watch the fence.
func (d *database) guard() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.watch(ctx)
	}()
	d.end = func() {
		cancel()
		<-done
	}
}

func (d *database) close() error {
	d.end()
	return errors.Join(d.pool.Close(), d.proof.Close())
}

// Close says that the daemon has stopped, and closes all connections.
func (s *Store) Close() error {
	s.db.end()
	if s.db.holder.claim.Fence > 0 {
		s.db.release()
	}
	return s.db.close()
}

// Lost is closed when another daemon has taken the database over, or when a daemon with a
// fence could not reach it for that long. This one must stop then, and close the store.
func (s *Store) Lost() <-chan struct{} { return s.db.holder.lost.Done() }

// LostBecause returns why, once [Store.Lost] is closed.
func (s *Store) LostBecause() error { return explained(context.Cause(s.db.holder.lost)) }

// Epoch is a number that is larger than that of each daemon that had the database before.
func (s *Store) Epoch() int64 { return s.db.holder.epoch }

// FillReserve does nothing: the database's disk is not this machine's to reserve.
func (s *Store) FillReserve() error { return nil }

// Reader implements [sqlstore.Database].
func (d *database) Reader() *sql.DB { return d.pool }

// Read implements [sqlstore.Database].
func (d *database) Read(ctx context.Context, f func() error) error { return d.retry(ctx, f) }

// Sync implements [sqlstore.Database]: what is committed is synced.
func (d *database) Sync() error { return nil }

// Freeing implements [sqlstore.Database].
func (d *database) Freeing(f func() error) error { return f() }

// Lock implements [sqlstore.Database].
func (d *database) Lock(ctx context.Context, tx *sql.Tx, name string) error {
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", dialect.Text(name)); err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	return nil
}

// Change implements [sqlstore.Database].
func (d *database) Change(ctx context.Context, f func(*sql.Tx) error) error {
	return d.retry(ctx, func() error {
		id, commitErr, err := d.try(ctx, f)
		if err != nil || commitErr == nil {
			return err
		}
		if id == "" || !lost(commitErr) {
			return fmt.Errorf("commit: %w", commitErr)
		}
		return d.outcome(ctx, id, commitErr)
	})
}

// try runs f in a transaction once. If the transaction could not be committed, it
// returns the transaction's id, or "" for one that changed nothing.
func (d *database) try(ctx context.Context, f func(*sql.Tx) error) (id string, commitErr, err error) {
	conn, err := d.pool.Conn(ctx)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	// A caller who goes away ends the statement that runs, and not the commit, whose
	// outcome would not be known.
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return "", nil, err
	}
	err = f(tx)
	if err == nil {
		var xid sql.NullString
		err = tx.QueryRowContext(ctx, "SELECT pg_current_xact_id_if_assigned()::text").Scan(&xid)
		id = xid.String
	}
	if err != nil {
		// Where this fails, the connection is gone, and the transaction with it.
		_ = tx.Rollback()
		return "", nil, err
	}
	return id, tx.Commit(), nil
}

// outcome finds out what became of a transaction whose connection was lost at the
// commit. Nil is that it was committed; an error that it was not is cause's.
func (d *database) outcome(ctx context.Context, id string, cause error) error {
	ctx = context.WithoutCancel(ctx)
	var state sql.NullString
	err := d.retry(ctx, func() error {
		err := d.pool.QueryRowContext(ctx, "SELECT pg_xact_status($1::text::xid8)", id).Scan(&state)
		if err == nil && state.String == "in progress" {
			return errUnfinished
		}
		return err
	})
	switch {
	case err == nil && state.String == "committed":
		return nil
	case err == nil && state.String == "aborted":
		return fmt.Errorf("commit: %w", cause)
	}
	return &inDoubt{cause}
}

// taken reports whether err is a violated unique constraint.
func taken(err error) bool { return pgCode(err) == "23505" }

// repeated reports whether err is a second row of one primary key.
func repeated(err error) bool {
	e, ok := errors.AsType[*pgError](err)
	return ok && taken(err) && strings.HasSuffix(e.ConstraintName, "_pkey")
}

// place says in errors where a database is.
func place(cfg *pgx.ConnConfig) string {
	return fmt.Sprintf("the PostgreSQL database %q on %s", cfg.Database, cfg.Host)
}
