package cell

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockWhileTested checks that a cell can start while another process tests its
// lock.
func TestLockWhileTested(t *testing.T) {
	c := &cell{spec: Spec{Dir: t.TempDir()}}
	f, err := os.Create(filepath.Join(c.spec.Dir, LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	var asker sync.WaitGroup
	asker.Go(func() {
		time.Sleep(20 * time.Millisecond)
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	})
	unlock, err := c.lock()
	asker.Wait()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := c.lock(); err == nil {
		t.Error("two cells have the lock")
	}
}
