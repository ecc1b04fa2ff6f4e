package tiered

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// killedAt are the kinds of changes that a daemon makes, by their beginnings.
var killedAt = []string{
	"put .", "put chunks/", "put checkpoints", "put shared", "keep manifest", "evict", "import", "unpack root", "bury", "delete checkpoints", "forget manifest", "dig",
}

// TestKills kills the daemon at the first change of each kind that storing, evicting, fetching,
// removing and sweeping make of the disk and the bucket. The next daemon finds nothing lost
// that was not removed, and leaves nothing of what was. "make test" has one change of each end.
func TestKills(t *testing.T) {
	for _, until := range killedAt {
		if until != "put chunks/" && until != "bury" && !needs.More() {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			if at := kill(t, 0, until); at == "" {
				t.Errorf("no kill at %q", until)
			}
		})
	}
}

// TestSoakKills kills it at each change. In "make test-all", TestKills stands for it.
func TestSoakKills(t *testing.T) {
	for n, at := 0, "."; at != ""; n++ {
		synctest.Test(t, func(t *testing.T) { at = kill(t, n, "") })
		if n > 1000 {
			t.Fatal("it never ends")
		}
	}
}

// kill kills a daemon at a change that begins as given, after some others, and returns which
// that was, or "" if there was none.
func kill(t *testing.T, n int, until string) (at string) {
	b := newBucket()
	m := newMachine(t, b)
	m.roots.root = content("root", 1)
	one, two := content("one", 2), slices.Concat(content("one", 1), content("two", 1))
	m.mu.Lock()
	m.armed, m.left, m.until = true, n, until
	m.mu.Unlock()
	m.cache = 3 * chunkSize // room for one of the two
	err := m.start()
	if err != nil && !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	m.add("ckp-one", "red", one)
	wait(time.Minute)
	m.add("ckp-two", "red", two)
	wait(time.Minute)
	if everywhere := []engine.Place{engine.PlaceStored, engine.PlaceRemote}; slices.Contains(everywhere, m.e.Kept("ckp-one")) && slices.Contains(everywhere, m.e.Kept("ckp-two")) {
		m.roots.mu.Lock()
		m.roots.root = nil // it is in the bucket
		m.roots.mu.Unlock()
	}
	_, _ = m.read("ckp-one")
	_, _ = m.read("ckp-two")
	removed := m.e.RemoveCheckpoint(t.Context(), "ckp-one") == nil
	wait(3 * time.Hour)
	m.mu.Lock()
	at = m.at
	m.mu.Unlock()

	m.restart()
	wait(lastPause)
	if !removed {
		if m.e.Kept("ckp-one") != "" { // otherwise the tombstone was there before the error
			m.wants("ckp-one", one)
		}
		m.must(m.e.RemoveCheckpoint(t.Context(), "ckp-one"))
	}
	m.wants("ckp-two", two)
	wait(3 * time.Hour)
	wantPlace(t, m.e, "ckp-one", "")
	wantPlace(t, m.e, "ckp-two", engine.PlaceStored)

	// Another machine has exactly the other one.
	other := newMachine(t, b)
	other.must(other.start())
	if list, err := other.e.Checkpoints(t.Context()); err != nil || len(list) != 1 || list[0].ID != "ckp-two" {
		t.Errorf("killed at %q: the other machine has %+v, %v", m.at, list, err)
	}
	other.wants("ckp-two", two)
	other.must(other.e.RemoveCheckpoint(t.Context(), "ckp-two"))
	m.stop()
	wait(3 * time.Hour)
	if names := b.names(""); !slices.Equal(names, []string{clockObject, holderObject}) {
		t.Errorf("killed at %q: the bucket still has %v", m.at, names)
	}
	for _, dir := range []string{m.dir, other.dir} {
		left, err := filepath.Glob(filepath.Join(dir, "objects", "removed", "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("killed at %q: tombstones are left: %v, %v", m.at, left, err)
		}
	}
	other.stop()
	return at
}

func FuzzManifest(f *testing.F) {
	for _, data := range []string{
		`{"version":1,"id":"ckp-x","checkpoint":{"id":"ckp-x"},"files":[{"name":"a","size":1,"chunks":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}],"root":"root-1"}`,
		`{"version":1,"id":"ckp-x","files":[{"name":"../a","size":-1,"shared":"../x"}]}`,
		`{"version":1,"id":"ckp-x","files":[{"name":"a","size":9223372036854775807,"chunks":""}]}`,
		`{"version":2}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data, "ckp-x")
		if err != nil {
			return
		}
		for i := range m.Files {
			file := &m.Files[i]
			if filepath.Base(file.Name) != file.Name || file.Size < 0 {
				t.Errorf("the file %q of %d bytes is taken", file.Name, file.Size)
			}
			end := int64(0)
			_ = file.chunks(func(at int64, size int, _ sum) error {
				if at < end || size <= 0 || size > maxChunk || at+int64(size) > file.Size {
					t.Errorf("a chunk at %d of %d bytes in %d", at, size, file.Size)
				}
				end = at + int64(size)
				return nil
			})
		}
	})
}

// TestUnpackedMemory checks that what is decompressed takes no more memory than it has bytes,
// or a little where the frame does not say how many.
func TestUnpackedMemory(t *testing.T) {
	p, err := newPress()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, unsized - 1, unsized, unsized + 1, unsized + 2, 1 << 16} {
		plain := bytes.Repeat([]byte("content "), size/8+1)[:size]
		data, err := p.unpack(p.pack(plain), maxManifest)
		if err != nil || !bytes.Equal(data, plain) || cap(data) > max(size, unsized) {
			t.Errorf("of %d bytes came %d, which take %d: %v", size, len(data), cap(data), err)
		}
	}
	// Attack: a frame that does not say that it is large.
	var frame bytes.Buffer
	w, err := zstd.NewWriter(&frame)
	if err == nil {
		_, err = w.Write(make([]byte, 1<<16))
	}
	// The header is written before the size is known.
	if err = errors.Join(err, w.Flush(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if data, err := p.unpack(frame.Bytes(), maxManifest); err == nil {
		t.Errorf("%d bytes came out of a frame without a size", len(data))
	}
}

// Attack: a compressed object that is much larger than it should be.
func TestBomb(t *testing.T) {
	p, err := newPress()
	if err != nil {
		t.Fatal(err)
	}
	bomb := p.pack(make([]byte, 64<<20))
	if data, err := p.unpack(bomb, maxChunk); err == nil {
		t.Errorf("%d bytes came out", len(data))
	}
}
