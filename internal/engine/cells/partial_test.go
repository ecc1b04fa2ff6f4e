package cells

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
)

// TestSpans checks that ranges become one where they overlap or adjoin, in whatever order they
// are added.
func TestSpans(t *testing.T) {
	for name, tt := range map[string]struct {
		add  spans
		want spans
	}{
		"nothing":        {spans{{3, 3}, {5, 4}}, nil},
		"ascending":      {spans{{0, 2}, {4, 6}, {8, 9}}, spans{{0, 2}, {4, 6}, {8, 9}}},
		"descending":     {spans{{8, 9}, {4, 6}, {0, 2}}, spans{{0, 2}, {4, 6}, {8, 9}}},
		"adjoins before": {spans{{2, 4}, {0, 2}}, spans{{0, 4}}},
		"adjoins after":  {spans{{2, 4}, {4, 6}}, spans{{2, 6}}},
		"fills a gap":    {spans{{0, 2}, {4, 6}, {8, 9}, {2, 4}}, spans{{0, 6}, {8, 9}}},
		"overlaps two":   {spans{{0, 3}, {5, 9}, {2, 6}}, spans{{0, 9}}},
		"contains all":   {spans{{2, 3}, {5, 6}, {8, 9}, {1, 10}}, spans{{1, 10}}},
		"is contained":   {spans{{1, 10}, {2, 3}}, spans{{1, 10}}},
		"twice":          {spans{{1, 3}, {1, 3}}, spans{{1, 3}}},
	} {
		var s spans
		for _, r := range tt.add {
			s.add(r.from, r.to)
		}
		if !slices.Equal(s, tt.want) {
			t.Errorf("%s: %v, want %v", name, s, tt.want)
		}
	}
}

// TestRandomSpans compares spans with a list of all bytes.
func TestRandomSpans(t *testing.T) {
	const size = 40
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var s spans
		var has [size]bool
		for range 1 + r.IntN(12) {
			from := r.Int64N(size)
			to := from + r.Int64N(min(10, size-from)+1)
			s.add(from, to)
			for i := from; i < to; i++ {
				has[i] = true
			}
			for i, one := range s {
				if one.from >= one.to || i > 0 && one.from <= s[i-1].to {
					t.Fatalf("round %d: after %d to %d they are %v", round, from, to, s)
				}
			}
		}
		for from := range int64(size) {
			want := true
			for to := from; to <= size; to++ {
				if to > from {
					want = want && has[to-1]
				}
				if got := s.contain(from, to); got != want {
					t.Fatalf("round %d: %v contain %d to %d: %v", round, s, from, to, got)
				}
			}
		}
	}
}

// The answers to cells, as in package runsc.
const (
	partWritten = 1
	allWritten  = 2
	allLost     = 4
)

// fetched is a partial checkpoint of 8 pages that is being fetched.
type fetched struct {
	*partial
	t    *testing.T
	dir  string
	data []byte
}

const pageBytes = 4096

func newFetched(t *testing.T) *fetched {
	t.Helper()
	data := make([]byte, 8*pageBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return &fetched{partial: newPartial("ckp-one"), t: t, dir: filepath.Join(t.TempDir(), "draft"), data: data}
}

// begins begins the fetch.
func (f *fetched) begins() (end func(error)) {
	f.t.Helper()
	end, err := f.begin(f.dir, int64(len(f.data)))
	if err != nil {
		f.t.Fatal(err)
	}
	return end
}

// write writes pages.
func (f *fetched) write(page, n int64) {
	f.t.Helper()
	if got, err := f.WriteAt(f.data[page*pageBytes:(page+n)*pageBytes], page*pageBytes); err != nil || int64(got) != n*pageBytes {
		f.t.Errorf("written %d bytes of %d: %v", got, n*pageBytes, err)
	}
}

// dial connects as a cell does.
func (f *fetched) dial() net.Conn {
	f.t.Helper()
	conn, err := cell.Dial(f.t.Context(), f.dir, cell.FetchSocket)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// asks requests pages.
func (f *fetched) asks(conn net.Conn, page, n uint64) {
	f.t.Helper()
	if _, err := conn.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, page*pageBytes), n*pageBytes)); err != nil {
		f.t.Error(err)
	}
}

// wants receives the next answer.
func (f *fetched) wants(conn net.Conn, want byte) {
	f.t.Helper()
	var got [1]byte
	if _, err := io.ReadFull(conn, got[:]); err != nil || got[0] != want {
		f.t.Errorf("answered %d, %v; want %d", got[0], err, want)
	}
}

// mkdir makes the directory, and opens it.
func (f *fetched) mkdir() *os.File {
	f.t.Helper()
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	at, err := os.OpenFile(f.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { at.Close() })
	return at
}

// TestPartial checks that cells are answered when what they request is in the file, and all of
// them when it is complete; then the socket is gone, and the file marked.
func TestPartial(t *testing.T) {
	f := newFetched(t)
	at := f.mkdir()
	end := f.begins()
	if info, err := os.Stat(filepath.Join(f.dir, runsc.PagesFile)); err != nil || info.Size() != int64(len(f.data)) {
		t.Fatalf("the file of pages: %v, %v", info, err)
	}
	if _, err := f.begin(filepath.Join(f.dir, "none"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("begun in no directory: %v", err)
	}
	// It becomes visible.
	visible := filepath.Join(filepath.Dir(f.dir), "ckp-one")
	if err := os.Rename(f.dir, visible); err != nil {
		t.Fatal(err)
	}
	f.dir = visible

	f.write(0, 2)
	one, two, idle := f.dial(), f.dial(), f.dial()
	f.asks(one, 1, 3) // of which some is there
	if got, want := <-f.Wanted(), (engine.Part{Offset: pageBytes, Size: 3 * pageBytes}); got != want {
		t.Errorf("wanted is %+v, want %+v", got, want)
	}
	f.asks(two, 0, 2)
	f.wants(two, partWritten) // while the other one waits, and without being wanted
	f.write(3, 1)
	f.write(2, 1)
	f.wants(one, partWritten)
	f.asks(one, 7, 2) // as far as there is a file
	if got, want := <-f.Wanted(), (engine.Part{Offset: 7 * pageBytes, Size: pageBytes}); got != want {
		t.Errorf("wanted is %+v, want %+v", got, want)
	}
	complete := make(chan error, 1)
	waits := f.dial()
	go func() { complete <- runsc.AwaitWritten(t.Context(), waits) }()
	f.write(4, 4)
	f.wants(one, partWritten)
	if !isPartial(visible) || runsc.IsFetched(visible) {
		t.Errorf("before it is complete, it is partial: %v, and marked: %v", isPartial(visible), runsc.IsFetched(visible))
	}
	select {
	case err := <-complete:
		t.Errorf("it is complete before it is said to be: %v", err)
	default:
	}
	if err := f.complete(at); err != nil {
		t.Fatal(err)
	}
	end(nil)
	for _, conn := range []net.Conn{one, two, idle} {
		f.wants(conn, allWritten)
	}
	if err := <-complete; err != nil {
		t.Errorf("who waits for all learns %v", err)
	}
	if _, err := cell.Dial(t.Context(), visible, cell.FetchSocket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("connected with %v", err)
	}
	got, err := os.ReadFile(filepath.Join(visible, runsc.PagesFile))
	if err != nil || !slices.Equal(got, f.data) || isPartial(visible) || !runsc.IsFetched(visible) {
		t.Errorf("%d bytes are right: %v, partial: %v, marked: %v, %v", len(got), slices.Equal(got, f.data), isPartial(visible), runsc.IsFetched(visible), err)
	}
	if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("written to it after the end: %v", err)
	}
}

// TestPartialLost checks that cells, those that wait and all others, learn that the rest is
// lost.
func TestPartialLost(t *testing.T) {
	f := newFetched(t)
	f.mkdir()
	end := f.begins()
	waits, idle, all := f.dial(), f.dial(), f.dial()
	f.asks(waits, 0, 1)
	<-f.Wanted()
	f.asks(idle, 1, 1)
	<-f.Wanted()
	f.write(1, 1)
	f.wants(idle, partWritten)
	complete := make(chan error, 1)
	go func() { complete <- runsc.AwaitWritten(t.Context(), all) }()
	end(errors.Join(engine.ErrLost, errors.New("a chunk is missing")))
	f.wants(waits, allLost)
	f.wants(idle, allLost)
	if err := <-complete; !errors.Is(err, runsc.ErrUnfetched) {
		t.Errorf("who waits for all learns %v", err)
	}
	if err := f.await(0, 1); err == nil {
		t.Error("what is lost can be read")
	}
	if runsc.IsFetched(f.dir) {
		t.Error("the file is marked")
	}
}

// TestPartialGoesOn checks that cells learn nothing when the fetch is cut off, and are answered
// when somebody goes on with it.
func TestPartialGoesOn(t *testing.T) {
	f := newFetched(t)
	at := f.mkdir()
	end := f.begins()
	waits, idle := f.dial(), f.dial()
	f.asks(idle, 1, 1)
	<-f.Wanted()
	f.write(1, 1)
	f.wants(idle, partWritten)
	f.asks(waits, 0, 1)
	<-f.Wanted()
	end(errors.New("the disk is full"))
	for name, conn := range map[string]net.Conn{"which waits": waits, "which is idle": idle} {
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("a cell %s learns %d, %v", name, n, err)
		}
	}
	if _, err := cell.Dial(t.Context(), f.dir, cell.FetchSocket); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected with %v", err)
	}
	if err := f.await(0, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("nobody fetches, and who waits learns %v", err)
	}
	if !isPartial(f.dir) {
		t.Error("it is complete")
	}

	end = f.begins()
	again := f.dial()
	f.asks(again, 1, 1)
	if got, want := <-f.Wanted(), (engine.Part{Offset: pageBytes, Size: pageBytes}); got != want {
		t.Errorf("wanted is %+v, want %+v", got, want)
	}
	f.write(0, 8)
	f.wants(again, partWritten)
	if err := f.complete(at); err != nil {
		t.Error(err)
	}
	end(nil)
	f.wants(again, allWritten)
	if got, err := os.ReadFile(filepath.Join(f.dir, runsc.PagesFile)); err != nil || !slices.Equal(got, f.data) {
		t.Errorf("%d bytes are other ones, %v", len(got), err)
	}
}

// TestWantedOnce checks that a part is wanted once, until all of it is there, and that who
// waits for one fails when the fetch has ended.
func TestWantedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pages, err := os.Create(filepath.Join(t.TempDir(), runsc.PagesFile))
		if err != nil {
			t.Fatal(err)
		}
		defer pages.Close()
		p := newPartial("ckp-one")
		p.pages = pages
		got := make(chan error, 3)
		go func() { got <- p.await(10, 20) }()
		if part := <-p.Wanted(); part != (engine.Part{Offset: 10, Size: 20}) {
			t.Errorf("wanted is %+v", part)
		}
		for _, at := range []int64{20, 0, 30} {
			if _, err := p.WriteAt(make([]byte, 10), at); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			select {
			case part := <-p.Wanted():
				t.Errorf("%+v is wanted again", part)
			case err := <-got:
				t.Errorf("it does not wait for all: %v", err)
			default:
			}
		}
		if _, err := p.WriteAt(make([]byte, 10), 10); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		// Two wait, and one of them although nobody takes what it wants.
		go func() { got <- p.await(100, 1) }()
		<-p.Wanted()
		go func() { got <- p.await(200, 1) }()
		synctest.Wait()
		p.mu.Lock()
		p.pages = nil
		p.announce()
		p.mu.Unlock()
		for range 2 {
			if err := <-got; !errors.Is(err, os.ErrClosed) {
				t.Errorf("after the end: %v", err)
			}
		}
	})
}

// partialEngine returns an engine that has the checkpoint of f.
func partialEngine(t *testing.T, f *fetched) *Engine {
	t.Helper()
	dir := t.TempDir()
	checkpoints, err := checkpoint.Open(filepath.Join(dir, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	f.dir = checkpoints.Path(f.id)
	return &Engine{cfg: Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}, checkpoints: checkpoints, partials: map[string]*partial{}}
}

// living makes a cell that has continued from a checkpoint, which lives until the returned
// function is called.
func living(t *testing.T, e *Engine, id, source string) (ends func()) {
	t.Helper()
	dir := e.cellDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, cell.LockFile))
	if err == nil {
		err = errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), e.noteSource(dir, source))
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { lock.Close() }
}

// TestRemovePartial checks that a partial checkpoint that is removed stays while a cell needs
// it, and goes at once otherwise.
func TestRemovePartial(t *testing.T) {
	f := newFetched(t)
	e := partialEngine(t, f)
	if done, err := e.removePartial(t.Context(), f.id); done || err != nil {
		t.Errorf("another one is removed as a partial one: %v, %v", done, err)
	}
	f.mkdir()
	ended, err := e.claim(f.partial)
	if err != nil {
		t.Fatal(err)
	}
	f.begins()(errors.New("cut off"))
	ended()
	ends := living(t, e, "sbx-one", f.dir)
	if done, err := e.removePartial(t.Context(), f.id); !done || err != nil || !isPartial(f.dir) || !wasRemoved(f.dir) || !e.isLeaving(f.id) {
		t.Errorf("removed: %v, %v, partial: %v, noted: %v, %v", done, err, isPartial(f.dir), wasRemoved(f.dir), e.isLeaving(f.id))
	}
	// The next engine finds that, and keeps it.
	next := &Engine{cfg: e.cfg, checkpoints: e.checkpoints, partials: map[string]*partial{}}
	if err := next.findPartials(); err != nil || !isPartial(f.dir) || !next.isLeaving(f.id) {
		t.Errorf("the next engine: %v, partial: %v, leaving: %v", err, isPartial(f.dir), next.isLeaving(f.id))
	}
	next.dropUnneeded()
	if !isPartial(f.dir) {
		t.Error("it is gone while a cell needs it")
	}
	fetches, fetching := make(chan error, 1), make(chan struct{})
	go func() {
		fetches <- next.FinishImport(t.Context(), f.id, func(_ engine.ExportFile, to io.WriterAt) error {
			close(fetching)
			<-to.(engine.PartWriter).Unneeded()
			return context.Canceled
		})
	}()
	<-fetching
	ends()
	next.dropUnneeded()
	if err := <-fetches; !errors.Is(err, engine.ErrUnneeded) {
		t.Errorf("the fetch ends with %v", err)
	}
	if _, err := os.Lstat(f.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there although no cell needs it: %v", err)
	}
	if next.isLeaving(f.id) {
		t.Error("it is still known")
	}
}

// TestFindPartials checks what becomes of the checkpoints that an engine was fetching when it
// ended.
func TestFindPartials(t *testing.T) {
	for name, tt := range map[string]struct {
		fetched, removed, needed bool
		stays, partial           bool
	}{
		"needed":              {needed: true, stays: true, partial: true},
		"needed and removed":  {needed: true, removed: true, stays: true, partial: true},
		"not needed":          {},
		"fetched":             {fetched: true, stays: true},
		"fetched and needed":  {fetched: true, needed: true, stays: true},
		"fetched and removed": {fetched: true, removed: true},
	} {
		f := newFetched(t)
		e := partialEngine(t, f)
		f.mkdir()
		f.begins()(errors.New("cut off"))
		pages, err := os.Open(filepath.Join(f.dir, runsc.PagesFile))
		if err == nil && tt.fetched {
			err = runsc.MarkFetched(pages)
		}
		pages.Close()
		if err == nil && tt.removed {
			err = os.WriteFile(filepath.Join(f.dir, removedFile), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		ends := living(t, e, "sbx-one", f.dir)
		if !tt.needed {
			ends()
		}
		if err := e.findPartials(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = os.Lstat(f.dir)
		if (err == nil) != tt.stays || isPartial(f.dir) != tt.partial || (e.partials[f.id] != nil) != tt.partial || e.isLeaving(f.id) != (tt.partial && tt.removed) {
			t.Errorf("%s: it is there: %v, partial: %v, known: %v, leaving: %v", name, err == nil, isPartial(f.dir), e.partials[f.id] != nil, e.isLeaving(f.id))
		}
		ends()
	}
}

// TestClaim checks that a checkpoint is fetched once at a time, and is unfinished until it is
// complete.
func TestClaim(t *testing.T) {
	unfinished := func(e *Engine) []string {
		ids, err := e.Unfinished(context.Background())
		if err != nil {
			t.Error(err)
		}
		return ids
	}
	f := newFetched(t)
	e := partialEngine(t, f)
	f.mkdir()
	ended, err := e.claim(f.partial)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*partial{"the same": f.partial, "another import": newPartial(f.id)} {
		if _, err := e.claim(p); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s is fetched, too: %v", name, err)
		}
	}
	end := f.begins()
	if ids := unfinished(e); !slices.Equal(ids, []string{f.id}) {
		t.Errorf("unfinished while it is fetched: %v", ids)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.FinishImport(gone, f.id, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("finished while it is fetched, by who has gone: %v", err)
	}
	end(errors.New("cut off"))
	ended()
	if ids := unfinished(e); !slices.Equal(ids, []string{f.id}) {
		t.Errorf("unfinished when it was cut off: %v", ids)
	}
	if _, err := e.claim(newPartial(f.id)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("it is imported again: %v", err)
	}
	cut := errors.New("cut off again")
	for _, want := range []error{cut, nil} {
		err := e.FinishImport(t.Context(), f.id, func(file engine.ExportFile, to io.WriterAt) error {
			if _, is := to.(engine.PartWriter); !is || file.Name != runsc.PagesFile || file.Size != int64(len(f.data)) {
				t.Errorf("%+v is fetched into a %T", file, to)
			}
			if want == nil {
				f.write(0, 8)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("finished with %v, want %v", err, want)
		}
	}
	if ids := unfinished(e); len(ids) != 0 || isPartial(f.dir) || !runsc.IsFetched(f.dir) {
		t.Errorf("unfinished at the end: %v, partial: %v, marked: %v", ids, isPartial(f.dir), runsc.IsFetched(f.dir))
	}
	if err := e.FinishImport(t.Context(), f.id, nil); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("finished twice: %v", err)
	}
}
