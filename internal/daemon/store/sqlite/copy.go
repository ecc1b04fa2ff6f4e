package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Copy writes a copy of the database at path, as of one instant, to a new file
// for its owner only. Other processes may use the database meanwhile. On an error
// there may be half of a copy.
func Copy(ctx context.Context, path, to string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	db, err := open(path, "mode=rw", 1) // it is not made if it is missing
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("copy database %s: %w", path, err)
	}
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("copy database: %w", err)
	}
	return nil
}
