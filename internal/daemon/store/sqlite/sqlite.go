// Package sqlite keeps the record in one SQLite database file. One connection
// writes, so that a read and the change based on it are one step; several
// read. The file and its journal are readable by their owner only.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	msqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// readers is how many connections read at once.
const readers = 4

// Store implements [store.Store].
type Store struct {
	path    string
	write   *sql.DB // one connection; its transactions lock at once
	read    *sql.DB
	reserve reserve
}

var _ store.Store = (*Store)(nil)

// Open opens the database at path, makes it if it is missing, and brings its
// schema up to date. A schema newer than this program's is refused.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := private(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s := &Store{path: path, reserve: reserveOf(path)}
	if err := s.freeing(func() error { return s.connect(ctx, path) }); err != nil {
		return nil, err
	}
	if err := s.reserve.fill(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connect opens the connections and brings the schema up to date.
func (s *Store) connect(ctx context.Context, path string) (err error) {
	if s.write, err = open(path, "_txlock=immediate&_journal_mode=WAL&_synchronous=NORMAL", 1); err != nil {
		return err
	}
	// The id of the installation is written beside the database next. A loss of
	// power that left only that would make the two strangers to each other.
	if err := errors.Join(migrate(ctx, s.write, path), s.sync()); err != nil {
		return errors.Join(err, s.write.Close())
	}
	if s.read, err = open(path, "_query_only=1", readers); err != nil {
		return errors.Join(err, s.write.Close())
	}
	return nil
}

// private makes the file if it is missing, for its owner only. SQLite gives
// the journal the same mode.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close(), durable.SyncDir(filepath.Dir(path)))
}

func open(path, query string, conns int) (*sql.DB, error) {
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: "_busy_timeout=10000&_defensive=1&_dqs=0&" + query}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func migrations(db *sql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectSQLite3, db, files,
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}

func migrate(ctx context.Context, db *sql.DB, path string) error {
	p, err := migrations(db)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read schema version of %s: %w", path, err)
	}
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	if have > newest {
		return fmt.Errorf("database %s has schema %d, newer than %d that this program knows: run a newer cove, or give it another state directory", path, have, newest)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate %s: %w", path, err)
	}
	return nil
}

// Close closes the database.
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.write.Close())
}

// sync makes all that was committed survive a loss of power. In a database with
// a write-ahead log that is what SQLite itself does after a commit with
// synchronous=FULL, for the transactions that need it only: what is noted of
// running sandboxes means nothing after a loss of power, which ends them.
func (s *Store) sync() error {
	f, err := os.Open(s.path + journalSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written since the database was opened
	}
	if err != nil {
		return fmt.Errorf("sync database: %w", err)
	}
	defer f.Close()
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return fmt.Errorf("sync database: %w", err)
	}
	return nil
}

// lasting is tx for a change that, once it is told, must survive a loss of power.
func (s *Store) lasting(ctx context.Context, f func(*sql.Tx) error) error {
	if err := s.tx(ctx, f); err != nil {
		return err
	}
	return s.sync()
}

// tx runs f in a transaction that holds the write lock. What it changes survives
// the end of this process; a loss of power within the next seconds may undo it.
func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(tx); err != nil {
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			return errors.Join(err, fmt.Errorf("roll back: %w", rerr))
		}
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// taken reports whether err is a violated unique constraint.
func taken(err error) bool {
	e, ok := errors.AsType[*msqlite.Error](err)
	return ok && e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || repeated(err)
}

// repeated reports whether err is a second row of one primary key.
func repeated(err error) bool {
	e, ok := errors.AsType[*msqlite.Error](err)
	return ok && e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

// touch notes the use of a row, unless a later one is noted.
func (s *Store) touch(ctx context.Context, table, id string, at time.Time) error {
	n := at.UnixNano()
	if _, err := s.write.ExecContext(ctx, "UPDATE "+table+" SET last_used_at = ? WHERE id = ? AND coalesce(last_used_at, 0) < ?", n, id, n); err != nil {
		return fmt.Errorf("note the use of %s in %s: %w", id, table, err)
	}
	return nil
}

func absent(what string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "no such %s", what)
}

// querier is what *sql.DB and *sql.Tx share.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// one scans the first row of a query for what is called what. None is an error
// that says so.
func one[T any](ctx context.Context, q querier, what string, scan func(func(...any) error) (T, error), query string, args ...any) (T, error) {
	v, err := scan(q.QueryRowContext(ctx, query, args...).Scan)
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
func collect[T any](ctx context.Context, q querier, scan func(func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// text is a value kept as JSON in a TEXT column.
type text struct{ v any }

// jsonText lets v, a pointer or a map or slice to be stored, be a JSON column.
func jsonText(v any) text { return text{v} }

// Scan implements [sql.Scanner].
func (t text) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("column holds %T, want text", src)
	}
	return json.Unmarshal([]byte(s), t.v)
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// instant scans nanoseconds into a time.
type instant struct{ t *time.Time }

// Scan implements [sql.Scanner].
func (i instant) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("column holds %T, want a time", src)
	}
	*i.t = time.Unix(0, n).UTC()
	return nil
}

// maybe scans nanoseconds or NULL.
type maybe struct{ t **time.Time }

// Scan implements [sql.Scanner].
func (m maybe) Scan(src any) error {
	if src == nil {
		*m.t = nil
		return nil
	}
	*m.t = new(time.Time)
	return instant{*m.t}.Scan(src)
}

func nanos(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixNano()
}
