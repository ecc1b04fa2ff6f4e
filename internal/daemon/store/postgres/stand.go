package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cove-sh/cove/sandbox"
)

// lookEvery is how often a daemon on standby looks whether the database is free.
const lookEvery = 500 * time.Millisecond

// Stand waits for ever until no other daemon has the database, and opens it. It calls waiting
// for each look that finds it taken or away: with the name of the daemon that has it, which may
// be "", or with why the database cannot be asked. An error that does not pass ends it.
func Stand(ctx context.Context, address sandbox.SecretValue, claim Claim, waiting func(active string, err error)) (*Store, error) {
	cfg, err := parse(address)
	if err != nil {
		return nil, err
	}
	for {
		err := await(ctx, cfg, waiting)
		if err == nil {
			var s *Store
			if s, err = open(ctx, address, claim, 0); err == nil {
				s.db.patience = patience
				return s, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case passing(err):
			waiting("", explained(err))
		default:
			return nil, fmt.Errorf("wait for %s: %w", place(cfg), explained(err))
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// passing reports whether an error may be over with the next look.
func passing(err error) bool {
	return lost(err) || conflict(err) || errors.Is(err, errBusy) || errors.Is(err, errTakenOver) || errors.Is(err, context.DeadlineExceeded)
}

// await looks at the database over one connection until it is free. A lock that is waited for
// would keep the other daemon from making connections, so it is only tried.
func await(ctx context.Context, cfg *pgx.ConnConfig, waiting func(active string, err error)) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		active, free, err := look(ctx, conn)
		if err != nil || free {
			return err
		}
		waiting(active, nil)
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look reports whether no daemon has the database, or which one has.
func look(ctx context.Context, conn *pgx.Conn) (active string, free bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+lockID+")").Scan(&free); err != nil {
		return "", false, err
	}
	if free {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+lockID+")")
		return "", true, err
	}
	// The schema may be that of an earlier version, without names.
	if err := conn.QueryRow(ctx, "SELECT name FROM holder").Scan(&active); err != nil && pgCode(err) == "" {
		return "", false, err
	}
	return active, false, nil
}
