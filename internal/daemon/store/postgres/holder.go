package postgres

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
//
// A daemon may also do things that no record stops. One with a fence therefore proves
// again and again that it has the database, and stops when it could not for as long as
// the fence; a daemon that takes over waits for longer than that, unless the one before
// has said that it had stopped. No clocks are compared.
type holder struct {
	claim  Claim
	epoch  int64
	wholly bool          // the daemon before was waited for
	waited time.Duration // for so long

	// lost ends when the database is not this daemon's any more, and lose ends it, with the
	// reason.
	lost context.Context
	lose context.CancelCauseFunc
}

func newHolder(claim Claim) holder {
	lost, lose := context.WithCancelCause(context.Background())
	return holder{claim: claim, lost: lost, lose: lose}
}

// Claim is what a daemon says of itself to the next one. It may be used again when all that
// was opened with it is closed.
type Claim struct {
	// Name tells people which daemon has the database.
	Name string
	// Fence is the time after which the daemon stops when it cannot reach the database, as
	// [Store.Lost] tells it to; 0 is that it goes on.
	Fence time.Duration

	token string
	// owed is how long the daemon before may go on that was not waited for yet. It outlives an
	// attempt to open the database that fails after the claim is in it.
	owed *time.Duration
}

// NewClaim returns the claim of one process.
func NewClaim(name string, fence time.Duration) Claim {
	return Claim{Name: name, Fence: fence, token: rand.Text(), owed: new(time.Duration)}
}

const (
	// proveEvery is how often a daemon with a fence proves that it has the database.
	proveEvery = time.Second
	// stopping is how long a daemon may take to stop, once it has to.
	stopping = 2 * time.Second
)

// dialing makes dial's connections end when the database is lost: a call that waits for an
// answer on a connection that was cut would keep the daemon from stopping. Connections that
// are made later learn from the database who has it.
func (h *holder) dialing(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil || h.lost.Err() != nil {
			return conn, err
		}
		return &heldConn{conn, context.AfterFunc(h.lost, func() { _ = conn.Close() })}, nil
	}
}

// heldConn is a connection that is closed when the database is lost.
type heldConn struct {
	net.Conn
	// keep undoes that, and returns false if the connection is closed already.
	keep func() bool
}

// Close implements [net.Conn].
func (c *heldConn) Close() error {
	if !c.keep() {
		return nil
	}
	return c.Conn.Close()
}

// fenced calls prove again and again until ctx ends, and returns an error when it says that
// the database is another's, or has failed for the whole of a fence.
func fenced(ctx context.Context, fence time.Duration, prove func(context.Context) error) error {
	proved := time.Now()
	for {
		began := time.Now()
		// A connection that does not answer is given up in time for another try.
		until := began.Add(fence / 3)
		if end := proved.Add(fence); began.Before(end) && end.Before(until) {
			until = end
		}
		try, cancel := context.WithDeadline(ctx, until)
		err := prove(try)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errTakenOver):
			return err
		case err == nil:
			proved = began
		}
		left := fence - time.Since(proved)
		if err != nil && left <= 0 {
			return fmt.Errorf("%w: %w", errCutOff, err)
		}
		select {
		case <-time.After(min(proveEvery, left)):
		case <-ctx.Done():
			return nil
		}
	}
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
	if err := d.holder.succeed(ctx, conn); err != nil {
		return fmt.Errorf("take the database: %w", err)
	}
	for _, statement := range []string{"SELECT pg_advisory_lock_shared(" + lockID + ")", "SELECT pg_advisory_unlock(" + lockID + ")"} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("take the database: %w", err)
		}
	}
	return nil
}

// succeed puts this daemon in the place of the one before. An epoch is larger than all
// before, also after an older state of the database was restored, since it follows the
// server's clock.
func (h *holder) succeed(ctx context.Context, conn *sql.Conn) error {
	var token string
	var fence int64
	var released bool
	err := conn.QueryRowContext(ctx, "SELECT token, fence_ms, released FROM holder").Scan(&token, &fence, &released)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return err
	case token != h.claim.token && fence > 0 && !released:
		*h.claim.owed = max(*h.claim.owed, time.Duration(fence)*time.Millisecond+stopping)
	}
	return conn.QueryRowContext(ctx, "INSERT INTO holder (id, token, name, fence_ms, epoch) VALUES (1, $1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"+
		" ON CONFLICT (id) DO UPDATE SET token = excluded.token, name = excluded.name, fence_ms = excluded.fence_ms, released = false, epoch = greatest(holder.epoch + 1, excluded.epoch)"+
		" RETURNING epoch", h.claim.token, dialect.Text(h.claim.Name), h.claim.Fence.Milliseconds()).Scan(&h.epoch)
}

// wait waits until the daemon before has stopped.
func (h *holder) wait(ctx context.Context) error {
	select {
	case <-time.After(*h.claim.owed):
		h.wholly, h.waited, *h.claim.owed = true, *h.claim.owed, 0
		return nil
	case <-h.lost.Done():
		return errTakenOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join prepares each connection of a running daemon.
func (d *database) join(ctx context.Context, conn *pgx.Conn) error {
	if err := durably(ctx, conn); err != nil {
		return err
	}
	if d.holder.claim.Fence > 0 {
		if err := mortal(ctx, conn); err != nil {
			return err
		}
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
	if token != d.holder.claim.token {
		d.holder.lose(errTakenOver)
		return errTakenOver
	}
	return nil
}

// prove succeeds if the database is this daemon's.
func (d *database) prove(ctx context.Context) error {
	var mine bool
	err := d.proof.QueryRowContext(ctx, "SELECT token = $1 FROM holder", d.holder.claim.token).Scan(&mine)
	if err == nil && !mine {
		err = errTakenOver
	}
	return err
}

// watch keeps the fence of a daemon until ctx ends.
func (d *database) watch(ctx context.Context) {
	if err := fenced(ctx, d.holder.claim.Fence, d.prove); err != nil {
		d.holder.lose(err)
	}
}

// releaseWait bounds how long a daemon that has stopped tries to say so.
const releaseWait = 2 * time.Second

// release says that this daemon has stopped, so that the next one need not wait. One that
// did not wait itself for the one before cannot say so.
func (d *database) release() {
	if !d.holder.wholly {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
	defer cancel()
	// Where this fails, the next daemon waits.
	_, _ = d.proof.ExecContext(ctx, "UPDATE holder SET released = true WHERE token = $1", d.holder.claim.token)
}

// hung is after which time PostgreSQL ends a connection of a daemon with a fence that does
// nothing with it: a daemon that was stopped, or hangs, would hold the lock for ever. Those of
// the pool that are idle are closed before, and the proof is asked for each second.
const hung = 30 * time.Second

// mortal lets PostgreSQL end a connection of a daemon that hangs.
func mortal(ctx context.Context, conn *pgx.Conn) error {
	ms := strconv.FormatInt(hung.Milliseconds(), 10)
	_, err := conn.Exec(ctx, "SELECT set_config('idle_session_timeout', $1, false), set_config('idle_in_transaction_session_timeout', $1, false)", ms)
	if err != nil {
		return fmt.Errorf("have PostgreSQL end connections that are not used: %w", err)
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
