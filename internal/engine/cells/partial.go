package cells

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
	"github.com/cove-sh/cove/internal/machine"
)

var _ engine.EarlyImporter = (*Engine)(nil)

// A checkpoint that is fetched to this machine can be used before its file of pages is
// complete. Until then it has a [cell.FetchSocket], on which this engine answers the cells
// that continue from it. If the engine ends, they wait for the next one to go on. A checkpoint
// that is removed stays while a cell needs the rest of it.

const (
	// sourceFile is in the directory of a cell that has continued from a partial checkpoint,
	// and has its id.
	sourceFile = "source"
	// removedFile is in the directory of a partial checkpoint that is to be removed when no
	// cell needs it any more.
	removedFile = "removed"
	// maxFetchers limits the connections of cells to a partial checkpoint. A cell has at most
	// four.
	maxFetchers = 1024
)

// partial is a checkpoint whose file of pages is not complete. It is an [engine.PartWriter]
// for that file.
type partial struct {
	id     string
	wanted chan engine.Part
	// unneeded is closed when nobody needs the rest.
	unneeded chan struct{}

	// running is closed when nobody fetches the rest any more; nil if nobody has. Guarded by
	// Engine.mu, as are removed and dropped.
	running chan struct{}
	removed bool
	dropped bool // unneeded is closed

	mu      sync.Mutex
	pages   *os.File      // nil if it is not being fetched; guarded by mu
	has     spans         // guarded by mu
	changed chan struct{} // closed and replaced when has or pages change; guarded by mu
}

func newPartial(id string) *partial {
	return &partial{id: id, wanted: make(chan engine.Part), unneeded: make(chan struct{}), changed: make(chan struct{})}
}

// Wanted implements [engine.PartWriter].
func (p *partial) Wanted() <-chan engine.Part { return p.wanted }

// Unneeded implements [engine.PartWriter].
func (p *partial) Unneeded() <-chan struct{} { return p.unneeded }

// WriteAt implements [io.WriterAt].
func (p *partial) WriteAt(data []byte, at int64) (int, error) {
	p.mu.Lock()
	pages := p.pages
	p.mu.Unlock()
	if pages == nil {
		return 0, os.ErrClosed
	}
	n, err := pages.WriteAt(data, at)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.has.add(at, at+int64(n))
	p.announce()
	return n, err
}

// announce wakes those who wait for a part. The caller holds mu.
func (p *partial) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until a part is in the file. It fails if nobody fetches the rest any more.
func (p *partial) await(off, n int64) error {
	wanted := p.wanted
	for {
		p.mu.Lock()
		has, fetches, changed := p.has.contain(off, off+n), p.pages != nil, p.changed
		p.mu.Unlock()
		switch {
		case has:
			return nil
		case !fetches:
			return os.ErrClosed
		}
		select {
		case wanted <- engine.Part{Offset: off, Size: n}:
			wanted = nil // once is enough
		case <-changed:
		}
	}
}

// begin makes or opens the file of pages in a directory, and serves cells until the returned
// function is called, with why the rest is not fetched any more. An error that is not
// [engine.ErrLost] means that somebody is to go on with it.
func (p *partial) begin(dir string, size int64) (end func(error), err error) {
	f, err := os.OpenFile(filepath.Join(dir, runsc.PagesFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// The fetch does not end because the disk became full after sandboxes have continued.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("reserve disk space for a checkpoint: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	l, err := listenFetch(dir)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.pages, p.has = f, spans{}
	p.mu.Unlock()
	serves := runsc.NewFetching(size, p.await)
	var answers sync.WaitGroup
	serving, hangUp := context.WithCancel(context.Background())
	answers.Go(func() {
		cell.AnswerEach(l, maxFetchers, &answers, func(conn net.Conn) {
			defer context.AfterFunc(serving, func() { conn.Close() })()
			serves.Answer(conn)
		})
	})
	return func(why error) {
		if why == nil || errors.Is(why, engine.ErrLost) {
			serves.End(why)
		}
		p.mu.Lock()
		p.pages = nil
		p.announce()
		p.mu.Unlock()
		l.Close()
		if why != nil && !errors.Is(why, engine.ErrLost) {
			hangUp() // the cells connect again when somebody goes on
		}
		answers.Wait()
		hangUp()
		f.Close()
	}, nil
}

// listenFetch listens on the [cell.FetchSocket] of a directory. If there was one, there is one
// at any time: without it, the checkpoint would seem to be complete.
func listenFetch(dir string) (net.Listener, error) {
	const next = cell.FetchSocket + ".next"
	l, err := cell.Listen(dir, next)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(dir, next), filepath.Join(dir, cell.FetchSocket)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// complete notes on the disk that all is there. The directory may be renamed meanwhile.
func (p *partial) complete(at *os.File) error {
	p.mu.Lock()
	f := p.pages
	p.mu.Unlock()
	if err := f.Sync(); err != nil {
		return err
	}
	if err := runsc.MarkFetched(f); err != nil {
		return err
	}
	if err := unix.Unlinkat(int(at.Fd()), cell.FetchSocket, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Fsync(int(at.Fd()))
}

// ImportEarly implements [engine.EarlyImporter]. A checkpoint is usable early if its pages are
// checked as they are loaded.
func (e *Engine) ImportEarly(ctx context.Context, c engine.Checkpoint, data []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	return e.importWith(ctx, c, data, fetch, usable)
}

// canBeEarly reports whether sandboxes can continue from a checkpoint before its file of
// pages is complete. Its other files are in dir.
func (e *Engine) canBeEarly(m *checkpoint.Manifest, dir string) bool {
	pages := m.File(runsc.PagesFile)
	return pages != nil && pages.Size >= 0 && pages.Size <= m.SizeBytes && pages.CRC32C == nil && !m.FilesOnly && m.Program == filepath.Base(e.program) && runsc.Patched() && runsc.ChecksAsLoaded(dir)
}

// importPages makes a draft visible that lacks only its file of pages, calls usable, and
// fetches the file.
func (e *Engine) importPages(draft *checkpoint.Draft, m checkpoint.Manifest, fetch engine.Fetch, usable func(engine.Checkpoint)) (err error) {
	p := newPartial(m.ID)
	ended, err := e.claim(p)
	if err != nil {
		return err
	}
	defer ended()
	size := m.File(runsc.PagesFile).Size
	end, err := p.begin(draft.Dir(), size)
	if err != nil {
		return err
	}
	at, err := os.OpenFile(draft.Dir(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		defer at.Close()
		err = draft.Copy(m)
	}
	if err != nil {
		end(engine.ErrLost) // nobody has seen it
		return err
	}
	usable(m.Checkpoint)
	return e.fetchPages(p, at, size, fetch, end)
}

// fetchPages fetches the rest of a checkpoint, and ends it.
func (e *Engine) fetchPages(p *partial, at *os.File, size int64, fetch engine.Fetch, end func(error)) error {
	err := fetch(engine.ExportFile{Name: runsc.PagesFile, Size: size}, p)
	if err == nil {
		err = p.complete(at)
	}
	e.mu.Lock()
	if p.dropped {
		err = engine.ErrUnneeded
	}
	e.mu.Unlock()
	end(err)
	if errors.Is(err, engine.ErrLost) || errors.Is(err, engine.ErrUnneeded) {
		e.removeNow(p.id)
	}
	return err
}

// claim notes that a partial checkpoint is being fetched, until the returned function is
// called.
func (e *Engine) claim(p *partial) (ended func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if before := e.partials[p.id]; before != nil && before != p || p.running != nil {
		return nil, fmt.Errorf("checkpoint %s is being fetched: %w", p.id, fs.ErrExist)
	}
	e.partials[p.id] = p
	running := make(chan struct{})
	p.running = running
	return func() {
		e.mu.Lock()
		p.running = nil
		whole := !isPartial(e.checkpoints.Path(p.id))
		if whole {
			delete(e.partials, p.id)
		}
		remove := whole && p.removed
		e.mu.Unlock()
		if remove {
			e.removeNow(p.id)
		}
		close(running)
	}, nil
}

// removeNow removes a checkpoint that was to be removed later.
func (e *Engine) removeNow(id string) {
	if err := e.checkpoints.Remove(id); err != nil {
		e.cfg.Log.Error("remove a checkpoint that no sandbox needs any more", "checkpoint", id, "error", err)
	}
}

// isPartial reports whether the checkpoint in a directory lacks pages that are to be fetched.
func isPartial(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, cell.FetchSocket))
	return err == nil && !runsc.IsFetched(dir)
}

// findPartials finds the checkpoints that an earlier engine was fetching, and removes those
// that no cell needs: they can be fetched again.
func (e *Engine) findPartials() error {
	socks, err := filepath.Glob(filepath.Join(e.checkpoints.Path("*"), cell.FetchSocket))
	for _, sock := range socks {
		id := filepath.Base(filepath.Dir(sock))
		fetched, removed := runsc.IsFetched(filepath.Dir(sock)), wasRemoved(filepath.Dir(sock))
		switch {
		case fetched && !removed:
			err = errors.Join(err, os.Remove(sock))
		case !fetched && e.isNeeded(id):
			e.partials[id] = newPartial(id)
			e.partials[id].removed = removed
		default:
			err = errors.Join(err, e.checkpoints.Remove(id))
		}
	}
	return err
}

// wasRemoved reports whether the partial checkpoint in a directory is to be removed.
func wasRemoved(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, removedFile))
	return err == nil
}

// Unfinished implements [engine.EarlyImporter].
func (e *Engine) Unfinished(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.partials)), nil
}

// FinishImport implements [engine.EarlyImporter].
func (e *Engine) FinishImport(ctx context.Context, id string, fetch engine.Fetch) error {
	p, err := e.idlePartial(ctx, id)
	if err != nil {
		return err
	}
	ended, err := e.claim(p)
	if err != nil {
		return err
	}
	defer ended()
	dir := e.checkpoints.Path(id)
	info, err := os.Stat(filepath.Join(dir, runsc.PagesFile))
	if err != nil {
		return err
	}
	size := info.Size()
	end, err := p.begin(dir, size)
	if err != nil {
		return err
	}
	at, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		end(err)
		return err
	}
	defer at.Close()
	return e.fetchPages(p, at, size, fetch, end)
}

// idlePartial returns a partial checkpoint when nobody fetches the rest of it: who did may
// not have noticed yet that its connection has ended.
func (e *Engine) idlePartial(ctx context.Context, id string) (*partial, error) {
	for {
		e.mu.Lock()
		p := e.partials[id]
		var running chan struct{}
		if p != nil {
			running = p.running
		}
		e.mu.Unlock()
		switch {
		case p == nil:
			return nil, engine.ErrNotFound
		case running == nil:
			return p, nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isNeeded reports whether a cell may need pages of a partial checkpoint.
func (e *Engine) isNeeded(id string) bool {
	cells, err := os.ReadDir(e.cellsDir())
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(cells, func(entry fs.DirEntry) bool {
		of, err := os.ReadFile(filepath.Join(e.cellDir(entry.Name()), sourceFile))
		if err != nil {
			return machine.Scarce(err) // it may be the one
		}
		return string(of) == id && e.alive(entry.Name())
	})
}

// noteSource notes in the directory of a cell that it continues from a partial checkpoint.
func (e *Engine) noteSource(cellDir, checkpointDir string) error {
	if checkpointDir == "" || !isPartial(checkpointDir) {
		return nil
	}
	return durable.WriteFile(filepath.Join(cellDir, sourceFile), []byte(filepath.Base(checkpointDir)))
}

// removePartial removes a partial checkpoint, or notes that it is to be removed when no cell
// needs it any more. It reports whether it did so, and false for any other checkpoint.
func (e *Engine) removePartial(ctx context.Context, id string) (done bool, err error) {
	e.mu.Lock()
	p := e.partials[id]
	if p != nil {
		p.removed = true
	}
	e.mu.Unlock()
	if p == nil {
		return false, nil
	}
	if e.isNeeded(id) {
		err := durable.WriteFile(filepath.Join(e.checkpoints.Path(id), removedFile), nil)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it has just been completed, and removed
		}
		return true, err
	}
	running, err := e.drop(p)
	if running == nil {
		return true, err
	}
	select { // who fetches it removes it
	case <-running:
		return true, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// drop removes a partial checkpoint that no cell needs, or has who fetches it do so. Then
// running is closed when that is done.
func (e *Engine) drop(p *partial) (running <-chan struct{}, err error) {
	e.mu.Lock()
	if !p.dropped {
		p.dropped = true
		close(p.unneeded)
	}
	fetches := p.running
	if fetches == nil {
		delete(e.partials, p.id)
	}
	e.mu.Unlock()
	if fetches != nil {
		return fetches, nil
	}
	return nil, e.checkpoints.Remove(p.id)
}

// dropUnneeded removes partial checkpoints that are to be removed, and that no cell needs any
// more.
func (e *Engine) dropUnneeded() {
	e.mu.Lock()
	var removed []*partial
	for _, p := range e.partials {
		if p.removed && !p.dropped {
			removed = append(removed, p)
		}
	}
	e.mu.Unlock()
	for _, p := range removed {
		if e.isNeeded(p.id) {
			continue
		}
		if _, err := e.drop(p); err != nil {
			e.cfg.Log.Error("remove a checkpoint that was not fetched to its end", "checkpoint", p.id, "error", err)
		}
	}
}

// isLeaving reports whether a checkpoint only waits to be removed.
func (e *Engine) isLeaving(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.partials[id]
	return p != nil && p.removed
}
