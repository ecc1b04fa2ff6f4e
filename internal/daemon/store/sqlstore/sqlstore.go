// Package sqlstore keeps the record in a database that speaks SQL. All queries
// are here; packages sqlite and postgres have the connections, the schema, and the
// little that their databases say each in a way of its own: see [Database] and
// [Dialect].
//
// A statement is written with "?" for its values, and in words that both databases
// have.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Database is one in which records are kept. It is safe for concurrent use.
type Database interface {
	// Reader returns the connections for reads outside of transactions.
	Reader() *sql.DB
	// Read runs f, which reads from Reader. If f fails for a reason that passes, it
	// may run f again.
	Read(ctx context.Context, f func() error) error
	// Change runs f in a transaction and commits what it has changed; if f returns
	// an error, nothing is changed. After a failure that left nothing changed and
	// whose reason passes, it may run f again. A change survives the end of this
	// process.
	Change(ctx context.Context, f func(*sql.Tx) error) error
	// Lock makes a transaction wait for those that locked the same name, until they
	// have ended. What it reads afterwards is as they left it.
	Lock(ctx context.Context, tx *sql.Tx, name string) error
	// Sync makes all that was committed survive a loss of power.
	Sync() error
	// Freeing runs f, which removes or ends something and leaves nothing changed
	// when it fails, with room that only deletions have.
	Freeing(f func() error) error
}

// Dialect is what a database says or takes in its own way.
type Dialect struct {
	// Statement returns a statement as the database takes it.
	Statement func(string) string
	// Text returns text as a column can hold it.
	Text func(string) string
	// ForUpdate ends a SELECT of rows that the transaction will change, so that no
	// other does meanwhile.
	ForUpdate string
	// HasMetadata is a condition on a sandbox: it has a key, and with it a value.
	HasMetadata string
	// HasSecret is a condition on a sandbox: the secret of an id is attached to it.
	HasSecret string
	// HasVolume is a condition on a row with mounts: the volume of an id is one.
	HasVolume string
	// Taken reports whether an error is a violated unique constraint, Repeated
	// whether it is that of a primary key.
	Taken, Repeated func(error) bool
	// Full reports whether an error says that the disk is full.
	Full func(error) bool
}

// Store implements [store.Store] but for Close.
type Store struct {
	db      Database
	dialect *Dialect
}

// New returns the store in a database, whose schema is up to date.
func New(db Database, d *Dialect) *Store { return &Store{db, d} }

// conn runs statements: in a transaction, or each by itself.
type conn struct {
	db interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
	dialect *Dialect
	// read runs a read, again if need be.
	read func(ctx context.Context, f func() error) error
	// lock is that of [Database], in a transaction.
	lock func(ctx context.Context, name string) error
}

// reader reads outside of transactions.
func (s *Store) reader() conn {
	return conn{db: s.db.Reader(), dialect: s.dialect, read: s.db.Read}
}

// tx runs f in a transaction, perhaps more than once. What it changes survives the
// end of this process; a loss of power within the next seconds may undo it.
func (s *Store) tx(ctx context.Context, f func(conn) error) error {
	return s.db.Change(ctx, func(tx *sql.Tx) error {
		return f(conn{
			db: tx, dialect: s.dialect,
			read: func(_ context.Context, f func() error) error { return f() },
			lock: func(ctx context.Context, name string) error { return s.db.Lock(ctx, tx, name) },
		})
	})
}

// lasting is tx for a change that, once it is told, must survive a loss of power.
func (s *Store) lasting(ctx context.Context, f func(conn) error) error {
	if err := s.tx(ctx, f); err != nil {
		return err
	}
	return s.db.Sync()
}

// exec runs a statement that changes rows, and returns how many.
func (s *Store) exec(ctx context.Context, query string, args ...any) (n int, err error) {
	err = s.tx(ctx, func(tx conn) error {
		n, err = tx.exec(ctx, query, args...)
		return err
	})
	return n, err
}

// remove is exec for rows that are deleted, which needs no room.
func (s *Store) remove(ctx context.Context, query string, args ...any) (n int, err error) {
	err = s.db.Freeing(func() error {
		n, err = s.exec(ctx, query, args...)
		return err
	})
	return n, err
}

// lockTeam makes a transaction the only one that makes something for which a team
// has a bound.
func (c conn) lockTeam(ctx context.Context, team string) error { return c.lock(ctx, "team "+team) }

// exec runs a statement that changes rows, and returns how many.
func (c conn) exec(ctx context.Context, query string, args ...any) (int, error) {
	res, err := c.db.ExecContext(ctx, c.dialect.Statement(query), c.values(args)...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// row returns a function that runs a query and scans its first row.
func (c conn) row(ctx context.Context, query string, args ...any) func(dest ...any) error {
	query, args = c.dialect.Statement(query), c.values(args)
	return func(dest ...any) error {
		return c.read(ctx, func() error { return c.db.QueryRowContext(ctx, query, args...).Scan(dest...) })
	}
}

// values returns args as the database takes them.
func (c conn) values(args []any) []any {
	all := make([]any, len(args))
	for i, v := range args {
		if s, ok := v.(string); ok {
			v = c.dialect.Text(s)
		}
		all[i] = v
	}
	return all
}

// one scans the first row of a query for what is called what. None is an error
// that says so.
func one[T any](ctx context.Context, q conn, what string, scan func(func(...any) error) (T, error), query string, args ...any) (T, error) {
	v, err := scan(q.row(ctx, query, args...))
	var none T
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return none, absent(what)
	case err != nil:
		return none, fmt.Errorf("read %s: %w", what, err)
	}
	return v, nil
}

// collect scans all rows of a query.
func collect[T any](ctx context.Context, q conn, scan func(func(...any) error) (T, error), query string, args ...any) (all []T, err error) {
	query, args = q.dialect.Statement(query), q.values(args)
	err = q.read(ctx, func() error {
		all = nil
		rows, err := q.db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			v, err := scan(rows.Scan)
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// touch notes the use of a row, unless a later one is noted.
func (s *Store) touch(ctx context.Context, table, id string, at time.Time) error {
	n := at.UnixNano()
	if _, err := s.exec(ctx, "UPDATE "+table+" SET last_used_at = ? WHERE id = ? AND coalesce(last_used_at, 0) < ?", n, id, n); err != nil {
		return fmt.Errorf("note the use of %s in %s: %w", id, table, err)
	}
	return nil
}

func absent(what string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "no such %s", what)
}

var _ interface {
	store.Sandboxes
	store.Snapshots
} = (*Store)(nil)
