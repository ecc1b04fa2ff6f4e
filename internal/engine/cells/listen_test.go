package cells

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/cell"
)

// TestSocketIsAlwaysThere checks that whoever goes on with a fetch never takes its socket away:
// without it, cells would take the checkpoint for complete or removed.
func TestSocketIsAlwaysThere(t *testing.T) {
	dir := t.TempDir()
	first, err := listenFetch(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if _, err := os.Lstat(filepath.Join(dir, cell.FetchSocket)); err != nil {
				looked <- err
				return
			}
			select {
			case <-stop:
				looked <- nil
				return
			default:
			}
		}
	}()
	for range 500 {
		l, err := listenFetch(dir)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	close(stop)
	if err := <-looked; err != nil {
		t.Error(err)
	}
	if found, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(found) != 1 {
		t.Errorf("there are %v, %v", found, err)
	}
}
