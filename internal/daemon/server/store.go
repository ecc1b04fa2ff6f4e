package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/postgres"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/sandbox"
)

// databaseFile, in the state directory, has the records unless they are in a
// database of PostgreSQL.
const databaseFile = "cove.db"

// recordStore is a store with what the daemon's own upkeep needs of it.
type recordStore interface {
	store.Store
	Installation(ctx context.Context) (id string, adopts bool, err error)
	FillReserve() error
}

// openStore opens the records that belong to a state directory: at an address of
// PostgreSQL, or in the directory for an empty one. Lost, if it is not nil, is
// closed when the records have become another daemon's.
func openStore(ctx context.Context, dir string, address sandbox.SecretValue) (r recordStore, lost <-chan struct{}, err error) {
	file := filepath.Join(dir, databaseFile)
	if address.Reveal() == "" {
		r, err = sqlite.Open(ctx, file)
	} else {
		var p *postgres.Store
		if _, err := os.Lstat(file); err == nil {
			return nil, nil, sandbox.Errorf(sandbox.CodeConflict, "the state directory has records of its own in %s, which are not in the database of --store (COVE_STORE): "+
				"start without --store, or move the state directory away to start over", file)
		}
		if p, err = postgres.Open(ctx, address); err == nil {
			r, lost = p, p.Lost()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	return r, lost, nil
}

// errStoreLost ends a daemon that has no records any more.
var errStoreLost = errors.New("another daemon has taken over this daemon's database; its sandboxes keep running, and the next daemon with this state directory finds them")

// CheckStore says where a daemon with this configuration has its records, and
// whether they can be had.
func CheckStore(ctx context.Context, dir string, address sandbox.SecretValue) sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "store", Status: sandbox.CheckOK, Detail: "SQLite, in " + filepath.Join(dir, databaseFile)}
	if address.Reveal() == "" {
		return c
	}
	about, warning, err := postgres.Check(ctx, address)
	switch {
	case err != nil:
		c.Status, c.Detail = sandbox.CheckFail, err.Error()
		c.Fix = "start the database, and check the address in --store (COVE_STORE)"
	case warning != "":
		c.Status, c.Detail = sandbox.CheckWarn, about+"; "+warning
		c.Fix = "set fsync = on in postgresql.conf"
	default:
		c.Detail = about
	}
	return c
}
