package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sethvargo/go-retry"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

type pgError = pgconn.PgError

var (
	// errTakenOver is the end of this daemon's use of the database.
	errTakenOver = errors.New("another daemon has taken the database over")
	// errCutOff is the end of a daemon's use of the database, because it cannot know any more
	// whether another has it.
	errCutOff = errors.New("the database could not be reached for too long")
	// errBusy is that another daemon has the database.
	errBusy = errors.New("another daemon uses the database")
	// errUnfinished is that the server has not noticed yet that a connection is lost.
	errUnfinished = errors.New("the transaction is still in progress")
)

// inDoubt is that nobody could say whether a transaction was committed. It does not
// unwrap: what it is about must not be done again.
type inDoubt struct{ cause error }

// Is makes it a [store.ErrInDoubt].
func (e *inDoubt) Is(target error) bool { return target == store.ErrInDoubt }

// Error describes it for logs.
func (e *inDoubt) Error() string {
	return "the connection was lost at the commit, which may have been done: " + e.cause.Error()
}

// pgCode returns the code of an error that the server has sent, or "".
func pgCode(err error) string {
	if e, ok := errors.AsType[*pgError](err); ok {
		return e.Code
	}
	return ""
}

// conflict reports whether a transaction was undone because of others at the same
// time: a serialization failure or a deadlock.
func conflict(err error) bool {
	code := pgCode(err)
	return code == "40001" || code == "40P01"
}

// lost reports whether an error is that of a connection that broke, or could not be
// made for a reason that may pass.
func lost(err error) bool {
	switch code := pgCode(err); {
	case code == "57P01", code == "57P02", code == "57P03", // it shuts down, has crashed, starts
		code == "53300", // it has too many connections
		strings.HasPrefix(code, "08"):
		return true
	case code != "":
		return false
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return connecting || pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

const (
	// conflicts is how often what others have undone is done again.
	conflicts = 10
	// firstPause and longestPause are between two attempts, give or take a half.
	firstPause, longestPause = 4 * time.Millisecond, 250 * time.Millisecond
)

func pauses() retry.Backoff {
	return retry.WithJitterPercent(50, retry.WithCappedDuration(longestPause, retry.NewExponential(firstPause)))
}

// retry runs f until it succeeds, or fails for a reason that does not pass or lasts.
// The error is explained.
func (d *database) retry(ctx context.Context, f func() error) error {
	undone := retry.WithMaxRetries(conflicts, pauses())
	outage := pauses()
	var since time.Time
	for {
		err := f()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && sandbox.CodeOf(err) == sandbox.CodeInternal:
			return errors.Join(ctx.Err(), err)
		case ctx.Err() != nil:
			return err
		}
		var pause time.Duration
		giveUp := true
		switch {
		case errors.Is(err, errTakenOver):
		case conflict(err):
			pause, giveUp = undone.Next()
		case lost(err), errors.Is(err, errBusy), errors.Is(err, errUnfinished):
			if since.IsZero() {
				since = time.Now()
			}
			pause, _ = outage.Next()
			giveUp = time.Since(since) >= d.patience
		}
		if giveUp {
			return explained(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// explained says of a failure of the database what a caller can do about it.
func explained(err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	e, _ := errors.AsType[*pgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, doubt := errors.AsType[*inDoubt](err)
	switch {
	case errors.Is(err, errTakenOver):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "another daemon has taken over this daemon's database, so this daemon is stopping; call the other one")
	case errors.Is(err, errBusy):
		return sandbox.Wrap(sandbox.CodeConflict, err, "another daemon uses the database; stop it, or give this one a database or a schema of its own with --store")
	case doubt:
		return passes(err, "the server lost the connection to its database while it stored a change, so the change may or may not be stored; check before you try again")
	case conflict(err):
		return passes(err, "too many concurrent changes to the same records; try again")
	case lost(err) && (e == nil || !connecting || strings.HasPrefix(e.Code, "57") || e.Code == "53300"):
		return passes(err, "the server's database is not responding; try again in a moment")
	case connecting && e != nil:
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the database refuses the server: %s; check the address of the store and the database's pg_hba.conf", e.Message))
	case e != nil && e.Code == "53100":
		return passes(err, "the disk of the server's database is full; free some of it and try again")
	}
	return err
}

// passes returns an error that tells to come again.
func passes(err error, message string) error {
	e := sandbox.Wrap(sandbox.CodeUnavailable, err, message)
	e.RetryAfter = time.Second
	return e
}
