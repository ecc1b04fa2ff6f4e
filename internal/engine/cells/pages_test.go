package cells_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
)

// TestDamagedPages checks that the pages of a large checkpoint are checked as they are
// loaded: a sandbox that continues from damaged ones never gets them. It is refused, or
// ended with the reason.
func TestDamagedPages(t *testing.T) {
	r := newRig(t)
	c := r.create(t, "sbx-one", "", false)
	sum := shell(t, c, "head -c 60000000 /dev/urandom > /dev/shm/memory; sha256sum < /dev/shm/memory")
	r.keep(t, "sbx-one", "ckp-one", false)
	dir := filepath.Join(r.dir, "checkpoints", "ckp-one")
	if !runsc.ChecksAsLoaded(dir) {
		t.Fatal("the checkpoint is too small for the test")
	}
	if got := shell(t, r.create(t, "sbx-two", "ckp-one", false), "sha256sum < /dev/shm/memory"); got != sum {
		t.Errorf("the restored one holds %q, want %q", got, sum)
	}
	pages, err := os.OpenFile(filepath.Join(dir, runsc.PagesFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	info, err := pages.Stat()
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int64) {
		t.Helper()
		var b [1]byte
		if _, err := pages.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x10
		if _, err := pages.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	failed := make(chan engine.Status, 8)
	r.Notify(func(st engine.Status) { failed <- st })
	for i, at := range []int64{0, info.Size() / 5, info.Size() / 2, info.Size() * 4 / 5, info.Size() - 1} {
		flip(at)
		spec := r.spec
		spec.ID, spec.Checkpoint = fmt.Sprintf("sbx-damaged-%d", i), "ckp-one"
		_, err := r.Create(t.Context(), spec)
		if err != nil {
			wantDamaged(t, err)
		} else {
			// It had not loaded the page when it answered.
			select {
			case got := <-failed:
				if got.ID != spec.ID || !strings.Contains(got.Reason, "damaged") {
					t.Errorf("a sandbox that lacks the page at %d: %+v; want it to have failed", at, got)
				}
			case <-time.After(time.Minute):
				t.Errorf("a sandbox that lacks the page at %d goes on", at)
			}
			if err := r.Destroy(t.Context(), spec.ID); err != nil {
				t.Error(err)
			}
		}
		t.Logf("the page at %d: refused with %v", at, err)
		_, err = r.Changes(t.Context(), engine.Source{Checkpoint: "ckp-one"})
		wantDamaged(t, err)
		spec.FilesOnly = true
		_, err = r.Create(t.Context(), spec)
		wantDamaged(t, err)
		flip(at)
	}
	if got := shell(t, r.create(t, "sbx-three", "ckp-one", false), "sha256sum < /dev/shm/memory"); got != sum {
		t.Errorf("with its damage repaired it holds %q, want %q", got, sum)
	}
}
