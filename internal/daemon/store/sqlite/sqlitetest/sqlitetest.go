// Package sqlitetest gives tests databases whose schema is up to date already.
package sqlitetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
)

// empty is the content of a new database. Its migrations take most of a second
// under the race detector, and some packages open hundreds of databases.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "cove-sqlitetest-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "cove.db")
	s, err := sqlite.Open(context.Background(), path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = s.Close()
	data, readErr := os.ReadFile(path)
	return data, errors.Join(err, readErr, os.RemoveAll(dir))
})

// New puts a new database at path, for [sqlite.Open] to open. All of a process
// have the same installation id.
func New(t testing.TB, path string) {
	t.Helper()
	data, err := empty()
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
