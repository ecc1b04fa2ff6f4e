package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cove-sh/cove/internal/silence"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// connectTimeout bounds the making of a connection, unless the address says
	// otherwise.
	connectTimeout = 5 * time.Second
	// silentFor is after how long without an answer from the other machine's kernel a
	// connection counts as lost, on both sides.
	silentFor = 30 * time.Second
)

// parse reads the address of a database. What the address leaves out comes from
// PostgreSQL's own variables of the environment and files, such as PGPASSFILE. No
// error has any of the address in it, since a part that cannot be read may be the
// password's.
func parse(address sandbox.SecretValue) (*pgx.ConnConfig, error) {
	text := address.Reveal()
	bad := sandbox.Errorf(sandbox.CodeInvalid, "the address of the store cannot be read; give postgres://USER:PASSWORD@HOST:PORT/DATABASE, with a password's special characters as %%XX, and options that PostgreSQL knows")
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme != "postgres" && scheme != "postgresql" || splitPassword(rest) {
		return nil, bad
	}
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, bad
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.DialFunc = silence.Dialer(silentFor).DialContext
	alive := silence.KeepAlive(silentFor)
	for name, value := range map[string]string{
		"application_name": "cove",
		// With these, the server gives the lock back of a daemon whose machine is gone.
		"tcp_keepalives_idle":     fmt.Sprint(int(alive.Idle.Seconds())),
		"tcp_keepalives_interval": fmt.Sprint(int(alive.Interval.Seconds())),
		"tcp_keepalives_count":    fmt.Sprint(alive.Count),
	} {
		if _, given := cfg.RuntimeParams[name]; !given {
			cfg.RuntimeParams[name] = value
		}
	}
	return cfg, nil
}

// splitPassword reports whether what follows "://" looks as if a password with a
// special character had been taken for the end of the host, and the rest of it for
// the name of a database or an option, which are shown.
func splitPassword(s string) bool {
	i := strings.IndexAny(s, "/?#")
	if i < 0 {
		return false
	}
	path, _, _ := strings.Cut(s[i:], "?")
	return strings.ContainsAny(s[i:], "@#") || strings.Contains(path, ":")
}

// Check returns an error that says why no daemon could use the database at an
// address, and else describes it, and what is worth to know of it.
func Check(ctx context.Context, address sandbox.SecretValue) (about, warning string, err error) {
	cfg, err := parse(address)
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", "", fmt.Errorf("connect to %s: %w", place(cfg), explained(err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := suits(ctx, conn); err != nil {
		return "", "", err
	}
	var fsync string
	var used bool
	// A lock of 64 bits is shown as two numbers of 32.
	err = conn.QueryRow(ctx, "SELECT current_setting('fsync'), EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"+
		" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"+
		" AND (classid::bigint << 32 | objid::bigint) = "+lockID+")").Scan(&fsync, &used)
	if err != nil {
		return "", "", fmt.Errorf("ask %s: %w", place(cfg), explained(err))
	}
	about = fmt.Sprintf("%s answers (PostgreSQL %s)", place(cfg), conn.PgConn().ParameterStatus("server_version"))
	if used {
		about += "; a daemon uses it"
	} else {
		about += "; no daemon uses it"
	}
	if fsync != "on" {
		warning = "its fsync is off: a loss of power there may destroy the record"
	}
	return about, warning, nil
}
