package runsc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// guest does what gVisor does when it saves: it has a memory file, and writes ranges of
// it.
type guest struct {
	t      *testing.T
	memory *os.File
	data   []byte // its content
	w      stateio.AsyncWriter
	from   stateio.SourceFile
	ids    int
}

// newGuest returns a guest with the given number of pages of memory, and a backlog for
// ranges of them, given as starts and ends in pages.
func newGuest(t *testing.T, pages int, room int64, ends ...uint64) (*guest, *backlog, string) {
	t.Helper()
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, memory: os.NewFile(uintptr(fd), "memory"), data: make([]byte, pages*pageSize)}
	t.Cleanup(func() { g.memory.Close() })
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(g.data)
	if _, err := g.memory.WriteAt(g.data, 0); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	f := &frozenFile{dev: st.Dev, ino: st.Ino, room: &room}
	for ; len(ends) > 0; ends = ends[2:] {
		f.ranges = append(f.ranges, pageRangeOf(ends[0], ends[1]))
	}
	b := &backlog{files: []*frozenFile{f}}
	dir := t.TempDir()
	if g.w, err = (&checkpointDir{path: dir, later: b}).OpenWrite(PagesFile); err != nil {
		t.Fatal(err)
	}
	if g.from, err = g.w.RegisterSourceFD(int32(fd), uint64(len(g.data)), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.close() })
	return g, b, filepath.Join(dir, PagesFile)
}

func pageRangeOf(start, end uint64) memmap.FileRange {
	return memmap.FileRange{Start: start * pageSize, End: end * pageSize}
}

// write writes ranges of memory, in one request, and returns their content.
func (g *guest) write(ends ...uint64) []byte {
	g.t.Helper()
	var ranges []memmap.FileRange
	var maps []unix.Iovec
	var all []byte
	for ; len(ends) > 0; ends = ends[2:] {
		fr := pageRangeOf(ends[0], ends[1])
		ranges = append(ranges, fr)
		maps = append(maps, unix.Iovec{Base: &g.data[fr.Start], Len: fr.Length()})
		all = append(all, g.data[fr.Start:fr.End]...)
	}
	if len(ranges) == 1 {
		g.w.AddWrite(g.ids, g.from, ranges[0], g.data[ranges[0].Start:ranges[0].End])
	} else {
		g.w.AddWritev(g.ids, uint64(len(all)), g.from, ranges, maps)
	}
	g.ids++
	done, err := g.w.Wait(nil, 1)
	if err != nil || len(done) != 1 || done[0].Err != nil || done[0].N != uint64(len(all)) {
		g.t.Fatalf("wrote %+v, %v", done, err)
	}
	return all
}

// TestBacklog checks that memory that gVisor can freeze is written later, except for
// small isolated parts, and all other memory at once, and that both together make up the
// file.
func TestBacklog(t *testing.T) {
	g, b, path := newGuest(t, 600, 1<<30, 10, 50, 60, 61, 100, 500)
	want := slices.Concat(g.write(0, 30), g.write(30, 31, 31, 70, 90, 120), g.write(120, 121, 123, 128, 130, 600))
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.seal()
	if got, pages := b.bytes(), int64(40+21+370); got != pages*pageSize {
		t.Errorf("%d pages are written later, want %d", got/pageSize, pages)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range b.parts {
		if i := p.off; i < int64(len(before)) && !bytes.Equal(before[i:i+pageSize], make([]byte, pageSize)) {
			t.Errorf("the page at %d is written already", i)
		}
	}
	if got, want := b.takenOf(b.files[0]), []uint64{10, 50, 100, 121, 130, 500}; !slices.EqualFunc(got, want, func(a, b uint64) bool { return a == b*pageSize }) {
		t.Errorf("frozen are %v", got)
	}
	if err := b.pages.Truncate(b.size); err != nil {
		t.Fatal(err)
	}
	if err := newWriting(b, semaphore.NewWeighted(1)).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file of pages has other content (%d bytes, want %d): %v", len(got), len(want), err)
	}
}

// TestBacklogHasRoom checks that no more is written later than there is room for.
func TestBacklogHasRoom(t *testing.T) {
	g, b, path := newGuest(t, 100, 60*pageSize, 0, 40, 50, 100)
	want := slices.Concat(g.write(0, 40), g.write(40, 70), g.write(70, 100))
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.seal()
	if got := b.bytes(); got != 60*pageSize {
		t.Errorf("%d bytes are written later", got)
	}
	if err := newWriting(b, semaphore.NewWeighted(1)).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file of pages has other content: %v", err)
	}
}

// TestBacklogHasFewParts checks that memory in a great many parts does not make more
// mappings than the host allows.
func TestBacklogHasFewParts(t *testing.T) {
	const each = leastPart / pageSize
	room := int64(1) << 40
	f := &frozenFile{room: &room, ranges: []memmap.FileRange{{End: 1 << 40}}}
	b := &backlog{files: []*frozenFile{f}}
	for i := range uint64(maxParts + 10) {
		fr := pageRangeOf(2*i*each, (2*i+1)*each)
		if _, later := b.add(f, fr, int64(i)*leastPart); later != (i < maxParts) {
			t.Fatalf("part %d is written later: %v", i, later)
		}
	}
}

// TestBacklogOtherFiles checks that only gVisor's memory file is read later, and that
// nothing is added once the backlog is sealed.
func TestBacklogOtherFiles(t *testing.T) {
	g, b, path := newGuest(t, 30, 1<<30, 0, 30)
	other, err := os.Create(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if g.from, err = g.w.RegisterSourceFD(int32(other.Fd()), uint64(len(g.data)), nil); err != nil {
		t.Fatal(err)
	}
	want := g.write(0, 10)
	// The same memory file is not read later either when it is registered a second time.
	if g.from, err = g.w.RegisterSourceFD(int32(g.memory.Fd()), uint64(len(g.data)), nil); err != nil {
		t.Fatal(err)
	}
	b.seal()
	want = append(want, g.write(10, 20)...)
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	if len(b.parts) > 0 || b.size != 0 {
		t.Errorf("added %v, of %d bytes", b.parts, b.size)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file of pages has other content: %v", err)
	}
	if err := b.opened(other); err == nil {
		t.Error("a second file of pages was opened")
	}
}

// TestBacklogNotClosed checks that a file of pages that gVisor has not closed is not a
// checkpoint, even if none of it is written later.
func TestBacklogNotClosed(t *testing.T) {
	g, b, path := newGuest(t, 30, 1<<30)
	want := g.write(0, 30)
	b.seal()
	if frozen, err := (&Sandbox{}).freeze(1, b); frozen || err == nil {
		t.Errorf("frozen is %v, %v", frozen, err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes are left of the file of pages: %v", len(got), err)
	}
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBacklogFails checks that writing ends with an error when the backlog cannot be read
// or written, and when its context ends.
func TestBacklogFails(t *testing.T) {
	g, b, _ := newGuest(t, 30, 1<<30, 0, 30)
	g.write(0, 30)
	if err := g.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.seal()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newWriting(b, semaphore.NewWeighted(1)).run(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody wants it: %v", err)
	}
	if err := g.memory.Truncate(10 * pageSize); err != nil {
		t.Fatal(err)
	}
	if err := newWriting(b, semaphore.NewWeighted(1)).run(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("memory is missing: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.memory.Truncate(30*pageSize), b.pages.Close()); err != nil {
		t.Fatal(err)
	}
	b.pages = full
	if err := newWriting(b, semaphore.NewWeighted(1)).run(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the disk is full: %v", err)
	}
}
