package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"

	"github.com/cove-sh/cove/sandbox"
)

// Migrations returns the schema's migrations of a database: the files in the
// directory migrations of files.
func Migrations(d goose.Dialect, db *sql.DB, files fs.FS) (*goose.Provider, error) {
	files, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(d, db, files, goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}

// Migrate brings a schema up to date. One that is newer than this program's is
// refused. Where names the database in errors. No other program may migrate it
// meanwhile.
func Migrate(ctx context.Context, d goose.Dialect, db *sql.DB, files fs.FS, where string) error {
	p, err := Migrations(d, db, files)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the schema version of %s: %w", where, err)
	}
	sources := p.ListSources()
	if newest := sources[len(sources)-1].Version; have > newest {
		return sandbox.Errorf(sandbox.CodeUnsupported, "%s has schema %d, newer than %d that this program knows: run a newer cove, or give it another one", where, have, newest)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate %s: %w", where, err)
	}
	return nil
}
