package cell

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/needs"
)

func TestSlotIsExclusive(t *testing.T) {
	ids := UserIDs{First: 1 << 20, Slots: 2, LockFile: filepath.Join(t.TempDir(), "lock")}
	var a, b, c userNS
	if err := errors.Join(a.takeSlot(ids), b.takeSlot(ids)); err != nil {
		t.Fatal(err)
	}
	if low, high := min(a.first, b.first), max(a.first, b.first); low != ids.First || high != ids.First+IDsPerSandbox {
		t.Errorf("two cells have ids from %d and %d", a.first, b.first)
	}
	if err := c.takeSlot(ids); err == nil {
		t.Errorf("a third cell has ids from %d too", c.first)
	}
	b.close()
	if err := c.takeSlot(ids); err != nil || c.first != b.first {
		t.Errorf("after one has ended: %v, ids from %d; want %d", err, c.first, b.first)
	}
	a.close()
	c.close()
}

// TestNoUserNamespace checks that what is impossible is reported as a noUserNS, so that
// the sandbox runs without one.
func TestNoUserNamespace(t *testing.T) {
	needs.Root(t)
	ids := UserIDs{First: 1 << 20, Slots: 1 << 10, LockFile: filepath.Join(t.TempDir(), "lock")}
	u, err := newUserNS(ids)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	isNo := func(err error) bool {
		_, ok := errors.AsType[noUserNS](err)
		return ok
	}
	// The owners of a /proc cannot be mapped.
	if err := u.bind("/proc", t.TempDir()); !isNo(err) {
		t.Errorf("bind /proc: %v", err)
	}
	foreign := t.TempDir()
	if err := os.Chown(foreign, IDsPerSandbox, 0); err != nil {
		t.Fatal(err)
	}
	for dir, held := range map[string]bool{foreign: false, t.TempDir(): true} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := u.checkOwner(f); isNo(err) == held {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// The mapping is as documented: 0 is the first id of the slot.
	target := t.TempDir()
	if err := u.bind(t.TempDir(), target); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil || st.Uid != u.first || st.Gid != u.first {
		t.Errorf("what belongs to root is shown as %d:%d, %v; want %d", st.Uid, st.Gid, err, u.first)
	}
}
