// Package sqlite keeps the record in one SQLite database file; its queries are
// those of package sqlstore. One connection writes, so that a read and the change
// based on it are one step; several read. The file and its journal are readable by
// their owner only.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	msqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlstore"
	"github.com/cove-sh/cove/internal/durable"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// readers is how many connections read at once.
const readers = 4

// Store implements [store.Store].
type Store struct {
	*sqlstore.Store
	db *database
}

var _ store.Store = (*Store)(nil)

// database implements [sqlstore.Database].
type database struct {
	path    string
	write   *sql.DB // one connection; its transactions lock at once
	read    *sql.DB
	reserve reserve
}

var dialect = sqlstore.Dialect{
	Statement:   func(s string) string { return s },
	Text:        func(s string) string { return s },
	ForUpdate:   "", // there is one writer
	HasMetadata: "EXISTS (SELECT 1 FROM json_each(sandboxes.metadata) AS pair WHERE pair.key = ? AND pair.value = ?)",
	HasSecret:   "EXISTS (SELECT 1 FROM json_each(sandboxes.bindings) AS b WHERE json_extract(b.value, '$.secret_id') = ?)",
	HasVolume:   "EXISTS (SELECT 1 FROM json_each(mounts) AS m WHERE json_extract(m.value, '$.volume') = ?)",
	Taken:       taken, Repeated: repeated, Full: full,
}

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
	db := &database{path: path, reserve: reserveOf(path)}
	if err := db.Freeing(func() error { return db.connect(ctx, path) }); err != nil {
		return nil, err
	}
	if err := db.reserve.fill(); err != nil {
		return nil, errors.Join(err, db.close())
	}
	return &Store{sqlstore.New(db, &dialect), db}, nil
}

// connect opens the connections and brings the schema up to date.
func (d *database) connect(ctx context.Context, path string) (err error) {
	if d.write, err = open(path, "_txlock=immediate&_journal_mode=WAL&_synchronous=NORMAL", 1); err != nil {
		return err
	}
	// The id of the installation is written beside the database next. A loss of
	// power that left only that would make the two strangers to each other.
	if err := errors.Join(sqlstore.Migrate(ctx, goose.DialectSQLite3, d.write, migrationFiles, "database "+path), d.Sync()); err != nil {
		return errors.Join(err, d.write.Close())
	}
	if d.read, err = open(path, "_query_only=1", readers); err != nil {
		return errors.Join(err, d.write.Close())
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

// Close closes the database.
func (s *Store) Close() error { return s.db.close() }

func (d *database) close() error { return errors.Join(d.read.Close(), d.write.Close()) }

// Reader implements [sqlstore.Database].
func (d *database) Reader() *sql.DB { return d.read }

// Read implements [sqlstore.Database].
func (d *database) Read(_ context.Context, f func() error) error { return f() }

// Lock implements [sqlstore.Database]: a transaction is the only one that writes.
func (d *database) Lock(context.Context, *sql.Tx, string) error { return nil }

// Sync implements [sqlstore.Database]. In a database with a write-ahead log that
// is what SQLite itself does after a commit with synchronous=FULL, for the
// transactions that need it only: what is noted of running sandboxes means nothing
// after a loss of power, which ends them.
func (d *database) Sync() error {
	f, err := os.Open(d.path + journalSuffix)
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

// Change implements [sqlstore.Database]. The transaction holds the write lock.
func (d *database) Change(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := d.write.BeginTx(ctx, nil)
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

// DeleteSecret implements [store.Secrets]. The pages that held it are
// overwritten with zeros.
func (s *Store) DeleteSecret(ctx context.Context, id string) error {
	conn, err := s.db.write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", id, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "PRAGMA secure_delete = ON"); err != nil {
		return fmt.Errorf("delete secret %s: %w", id, err)
	}
	err = s.db.Freeing(func() error {
		_, err := conn.ExecContext(ctx, "DELETE FROM secrets WHERE id = ?", id)
		return err
	})
	_, perr := conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA secure_delete = OFF")
	if err := errors.Join(err, perr); err != nil {
		return fmt.Errorf("delete secret %s: %w", id, err)
	}
	err = s.db.Freeing(func() error {
		_, err := conn.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
		return err
	})
	if err != nil {
		return fmt.Errorf("sync database: %w", err)
	}
	return s.db.Sync()
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
