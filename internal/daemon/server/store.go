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

// holding is a store, and how it may be lost.
type holding struct {
	store recordStore
	// lost, if it is not nil, is closed when this daemon must stop, since the records are or
	// may be another's; because then says why.
	lost    <-chan struct{}
	because func() error
	// epoch is larger than that of each daemon before, or 0.
	epoch int64
}

// openStore opens the records that belong to a state directory: at an address of
// PostgreSQL, or in the directory for an empty one.
func openStore(ctx context.Context, dir string, address sandbox.SecretValue) (r holding, err error) {
	if address.Reveal() == "" {
		r.store, err = sqlite.Open(ctx, filepath.Join(dir, databaseFile))
	} else {
		if err := noRecords(dir); err != nil {
			return r, err
		}
		var p *postgres.Store
		if p, err = postgres.Open(ctx, address); err == nil {
			r = holdingOf(p)
		}
	}
	if err != nil {
		return r, fmt.Errorf("open the store: %w", err)
	}
	return r, nil
}

func holdingOf(p *postgres.Store) holding {
	return holding{store: p, lost: p.Lost(), because: p.LostBecause, epoch: p.Epoch()}
}

// noRecords refuses a state directory with records of its own, which are not in a database.
func noRecords(dir string) error {
	file := filepath.Join(dir, databaseFile)
	if _, err := os.Lstat(file); err == nil {
		return sandbox.Errorf(sandbox.CodeConflict, "the state directory has records of its own in %s, which are not in the database of --store (COVE_STORE): "+
			"start without --store, or move the state directory away to start over", file)
	}
	return nil
}

// errStoreLost ends a daemon that has no records any more.
var errStoreLost = errors.New("this daemon has lost its database; its sandboxes keep running, and the next daemon finds them")

func (r *holding) isLost() bool {
	select {
	case <-r.lost: // never, if it is nil
		return true
	default:
		return false
	}
}

// explain puts the loss of the records before what came of it.
func (r *holding) explain(err error) error {
	if !r.isLost() {
		return err
	}
	return errors.Join(fmt.Errorf("%w: %w", errStoreLost, r.because()), err)
}

// lostContext ends with ctx, and when the records are lost.
func lostContext(ctx context.Context, lost <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-lost:
		case <-ctx.Done():
		}
	}()
	return ctx
}

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
