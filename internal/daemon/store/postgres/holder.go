package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/cove-sh/cove/internal/daemon/store/sqlstore"
	"github.com/cove-sh/cove/sandbox"
)

// holder makes a daemon the only one of a database. Each of its connections holds a
// lock of the database, all of them together; a daemon that starts must have that
// lock alone for a moment, in which it brings the schema up to date and puts its own
// token into the table holder. A connection that finds another's token there belongs
// to a daemon that has lost the database. So nothing can be written by one daemon
// once another has begun, whatever connections break in between.
type holder struct {
	token string
	once  sync.Once
	lost  chan struct{}
}

// lockID is the lock's number, for a daemon's tables are those of one schema.
const lockID = "hashtextextended('cove daemon of ' || current_schema(), 0)"

// prepared has each new connection prepared by a function, and closes those that it
// returns an error for: they may hold the lock.
func prepared(prepare func(context.Context, *pgx.Conn) error) stdlib.OptionOpenDB {
	return stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		err := prepare(ctx, conn)
		if err != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		return err
	})
}

// beAlone prepares the first connection of a daemon that starts: it has the lock
// alone.
func (d *database) beAlone(ctx context.Context, conn *pgx.Conn) error {
	if err := suits(ctx, conn); err != nil {
		return err
	}
	if err := durably(ctx, conn); err != nil {
		return err
	}
	var alone bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+lockID+")").Scan(&alone); err != nil {
		return fmt.Errorf("lock the database: %w", err)
	}
	if !alone {
		return errBusy
	}
	return nil
}

// take makes this daemon the one that the database belongs to. Db has one
// connection, prepared by beAlone, which then shares the lock with those of join.
func (d *database) take(ctx context.Context, db *sql.DB) error {
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	if err := sqlstore.Migrate(ctx, goose.DialectPostgres, db, migrationFiles, "the database"); err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, "INSERT INTO holder (id, token) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET token = excluded.token", d.holder.token)
	if err == nil {
		_, err = conn.ExecContext(ctx, "SELECT pg_advisory_lock_shared("+lockID+")")
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "SELECT pg_advisory_unlock("+lockID+")")
	}
	if err != nil {
		return fmt.Errorf("take the database: %w", err)
	}
	return nil
}

// join prepares each connection of a running daemon.
func (d *database) join(ctx context.Context, conn *pgx.Conn) error {
	if err := durably(ctx, conn); err != nil {
		return err
	}
	var shared bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared("+lockID+")").Scan(&shared); err != nil {
		return fmt.Errorf("lock the database: %w", err)
	}
	if !shared {
		return errBusy // another one starts, and may be refused yet
	}
	var token string
	if err := conn.QueryRow(ctx, "SELECT token FROM holder").Scan(&token); err != nil {
		return fmt.Errorf("read whose the database is: %w", err)
	}
	if token != d.holder.token {
		d.holder.once.Do(func() { close(d.holder.lost) })
		return errTakenOver
	}
	return nil
}

// durably makes the commits of a connection wait for the disk, where a setting of
// the database or of the user says that they should not.
func durably(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")
	if err != nil {
		return fmt.Errorf("make commits durable: %w", err)
	}
	return nil
}

// suits refuses a database that the record cannot be kept in.
func suits(ctx context.Context, conn *pgx.Conn) error {
	version := conn.PgConn().ParameterStatus("server_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldest {
		return sandbox.Errorf(sandbox.CodeUnsupported, "PostgreSQL %s is too old for Cove; use %d or later", version, oldest)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		return sandbox.Errorf(sandbox.CodeUnsupported, "the database's encoding is %s; make one with: createdb --encoding=UTF8 --template=template0 NAME", encoding)
	}
	var schema sql.NullString
	if err := conn.QueryRow(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return fmt.Errorf("read the schema's name: %w", err)
	}
	if !schema.Valid {
		return sandbox.Errorf(sandbox.CodeInvalid, "the database has none of the schemas in its search_path; make one with: CREATE SCHEMA NAME")
	}
	return nil
}
