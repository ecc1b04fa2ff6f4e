package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cove-sh/cove/internal/engine"
)

// A node that neither sends nor reads must not stop the transfers of others.
func TestSilentNodeHoldsNoSlot(t *testing.T) {
	withMachine(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		v := m.e.vessel
		want := content("good", 3)
		list, size, err := v.put(t.Context(), "red", strings.NewReader(string(want)))
		if err != nil {
			t.Fatal(err)
		}
		good := &file{Name: "good", Size: size, Chunks: list}
		ctx, cancel := context.WithCancel(t.Context())
		var silent []*io.PipeWriter
		ended := make(chan struct{})
		for range requests {
			r, w := io.Pipe()
			silent = append(silent, w)
			go func() {
				_, _, _ = v.put(ctx, "red", r)
				ended <- struct{}{}
			}()
			go func() {
				_ = v.get(ctx, "red", good, stuck{ctx})
				ended <- struct{}{}
			}()
		}
		synctest.Wait()
		if _, _, err := v.put(t.Context(), "red", strings.NewReader("good")); err != nil {
			t.Error(err)
		}
		if err := v.get(t.Context(), "red", good, discard{}); err != nil {
			t.Error(err)
		}
		cancel()
		for _, w := range silent {
			w.CloseWithError(io.ErrClosedPipe)
		}
		for range 2 * requests {
			<-ended
		}
	})
}

// stuck takes nothing until its context ends.
type stuck struct{ ctx context.Context }

func (s stuck) WriteAt([]byte, int64) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

type discard struct{}

func (discard) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// A manifest that could not be read again is not stored.
func TestManifestCanBeRead(t *testing.T) {
	withMachine(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		twice := &manifest{Version: manifestVersion, ID: "ckp", Files: []file{{Name: "a"}, {Name: "a"}}}
		if _, err := m.e.vessel.sealManifest("checkpoints/ckp", twice); !errors.Is(err, errLocal) {
			t.Errorf("two files of one name: %v", err)
		}
		if err := checkSizes([]engine.ExportFile{{Size: maxFileSize}, {Size: 1}}); !errors.Is(err, errLocal) {
			t.Errorf("too large in all: %v", err)
		}
	})
}

// What a node breaks off is neither whole nor the bucket's fault.
func TestBrokenNode(t *testing.T) {
	withMachine(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		for _, cause := range []error{io.ErrUnexpectedEOF, fmt.Errorf("gone: %w", io.EOF)} {
			broken := io.MultiReader(strings.NewReader("half"), failing{cause})
			if _, _, err := m.e.vessel.put(t.Context(), "red", localReader{broken}); !errors.Is(err, errLocal) {
				t.Errorf("after %v: %v", cause, err)
			}
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A node that does not remove a checkpoint stops neither the removal of others nor the
// server, and the checkpoint stays to be removed.
func TestRemovalGoesOn(t *testing.T) {
	withSpread(t, func(t *testing.T, b *memoryBucket, m *machine) {
		for _, id := range []string{"ckp-a", "ckp-b", "ckp-c"} {
			m.add(id, "red", content(id, 1))
		}
		synctest.Wait()
		m.spread.refuse("ckp-b", errors.New("the node does not answer"))
		for _, id := range []string{"ckp-a", "ckp-b", "ckp-c"} {
			if err := m.e.RemoveCheckpoint(t.Context(), id); (err != nil) != (id == "ckp-b") {
				t.Errorf("remove %s: %v", id, err)
			}
		}
		wait(lastPause)
		if left := b.names("checkpoints/"); len(left) != 1 || left[0] != "checkpoints/ckp-b" {
			t.Errorf("the bucket has %v", left)
		}
		if _, err := m.e.Health(); err != nil {
			t.Errorf("the bucket is said not to work: %v", err)
		}
		m.spread.refuse("", nil)
		wait(2 * lastPause)
		if left := b.names("checkpoints/"); len(left) != 0 {
			t.Errorf("the bucket has %v", left)
		}
	})
}
