package runsc

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// cloneBytes is the smallest range that is cloned. Copying smaller ranges is faster, and
// leaves fewer extents.
const cloneBytes = 64 << 10

// The sizes of gVisor's requests, and the number it sends before it waits.
const (
	// Reads are small, since a page for which a program waits is read after all earlier
	// requests. Cloning a range costs the same for any length.
	readBytes       = 256 << 10
	sharedReadBytes = 2 << 20
	readsAhead      = 8
	writeBytes      = 8 << 20
	writesAhead     = 16
	// writeRanges limits the ranges of one write.
	writeRanges = 512
)

// maxMemoryFiles limits the files of pages of a sandbox.
const maxMemoryFiles = 64

// checkpointDir serves the files of a checkpoint to gVisor, as a
// stateipc.AsyncFileServerImpl. Its client may be hostile: each of [CheckpointFiles] can
// be opened once.
type checkpointDir struct {
	path string
	// shares means that what the sandbox has written is shared, not copied.
	shares bool
	// sums, if not nil, are the checksums against which pages are checked as they are read.
	// damaged is called for a page that does not match, before gVisor gets an error.
	sums    pageSums
	damaged func(error)
	// reads, if not nil, is called with the file of pages that is being read.
	reads func(*os.File)
	// reserve, if not nil, is made when gVisor is about to load the written files.
	reserve *reservation
	// rest, if not nil, gets pages that may not be in the file of pages yet.
	rest Rest
	// later, if not nil, receives what is not written to the file of pages yet.
	later *backlog

	mu     sync.Mutex
	opened []string // guarded by mu
}

func (*checkpointDir) Destroy() {}

func (d *checkpointDir) OpenRead(name string) (stateio.AsyncReader, error) {
	f, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	r := &pageReader{pageFile: pageFile{f: f}, bytes: readBytes}
	if d.shares {
		r.bytes = sharedReadBytes
	}
	if name == PagesFile {
		r.sums, r.damaged = d.sums, d.damaged
		r.reserve, r.rest = d.reserve, d.rest
		if d.reads != nil {
			d.reads(f)
		}
	}
	r.start(min(4, runtime.GOMAXPROCS(0)), readsAhead, r.read)
	return r, nil
}

func (d *checkpointDir) OpenWrite(name string) (stateio.AsyncWriter, error) {
	f, err := d.open(name, os.O_CREATE|os.O_EXCL|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	w := &pageWriter{pageFile: pageFile{f: f}}
	if name == PagesFile && d.later != nil {
		if err := d.later.opened(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		w.later = d.later
	}
	// The kernel allows one write to a file at a time.
	w.start(1, writesAhead, w.write)
	return w, nil
}

func (d *checkpointDir) open(name string, flags int) (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(CheckpointFiles, name) || slices.Contains(d.opened, name) {
		return nil, fs.ErrPermission
	}
	d.opened = append(d.opened, name)
	return os.OpenFile(filepath.Join(d.path, name), flags, 0o600)
}

// pageFile copies pages between a file of a checkpoint and gVisor's own files.
type pageFile struct {
	f    *os.File
	dev  uint64
	jobs chan job
	done chan stateio.Completion
	wg   sync.WaitGroup

	// inflight belongs to the goroutine that adds jobs and waits for them.
	inflight int

	mu    sync.Mutex
	peers []*memoryFile // guarded by mu
}

// memoryFile is a file of gVisor: its memory, or what the sandbox has written.
type memoryFile struct {
	fd int
	// clones reports whether the file is on the checkpoint's file system.
	clones bool
	// later, if not nil, is the file of the backlog, whose ranges are written later.
	later *frozenFile
}

// job is one copy between off in the checkpoint's file and ranges of one of gVisor's
// files.
type job struct {
	id     int
	off    int64
	peer   *memoryFile
	ranges []memmap.FileRange
	maps   stateio.LocalClientRanges
}

// start starts workers, which Close ends. Up to ahead jobs are queued.
func (p *pageFile) start(workers, ahead int, move func(j *job, r memmap.FileRange, m []byte, off int64) (int, error)) {
	var st unix.Stat_t
	if unix.Fstat(int(p.f.Fd()), &st) == nil {
		p.dev = st.Dev
	}
	p.jobs = make(chan job, ahead)
	p.done = make(chan stateio.Completion, ahead)
	for range workers {
		p.wg.Go(func() {
			for j := range p.jobs {
				c := stateio.Completion{ID: j.id}
				for i, m := range j.maps.Mappings {
					var n int
					n, c.Err = move(&j, j.ranges[i], m, j.off+int64(c.N))
					c.N += uint64(n)
					if c.Err != nil {
						break
					}
				}
				p.done <- c
			}
		})
	}
}

func (p *pageFile) Close() error {
	close(p.jobs)
	p.wg.Wait()
	for _, m := range p.peers {
		unix.Close(m.fd)
	}
	return p.f.Close()
}

func (p *pageFile) MaxParallel() int { return cap(p.jobs) }

// register holds a file of gVisor open until Close. st is the file's status.
func (p *pageFile) register(fd int32, st *unix.Stat_t) (*memoryFile, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.peers) == maxMemoryFiles {
		return nil, unix.EMFILE
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	m := &memoryFile{fd: own, clones: st.Mode&unix.S_IFMT == unix.S_IFREG && st.Dev == p.dev}
	p.peers = append(p.peers, m)
	return m, nil
}

func (p *pageFile) add(j job) {
	p.inflight++
	p.jobs <- j
}

func (p *pageFile) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	had := len(cs)
	cs, err := stateio.CompletionChanWait(p.done, cs, min(least, p.inflight))
	p.inflight -= len(cs) - had
	return cs, err
}

// pageReader implements stateio.AsyncReader.
type pageReader struct {
	pageFile
	bytes   int // in one request
	sums    pageSums
	damaged func(error)
	reserve *reservation
	rest    Rest // or nil
}

func (r *pageReader) MaxReadBytes() uint64 { return uint64(r.bytes) }

func (r *pageReader) MaxRanges() int { return r.bytes / pageSize }

func (r *pageReader) NeedRegisterDestinationFD() bool { return true }

func (r *pageReader) RegisterDestinationFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.DestinationFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return nil, err
	}
	if err := r.reserve.make(int(fd), &st); err != nil {
		return nil, err
	}
	return r.register(fd, &st)
}

func (r *pageReader) AddRead(id int, off int64, to stateio.DestinationFile, fr memmap.FileRange, m []byte) {
	r.add(job{id: id, off: off, peer: to.(*memoryFile), ranges: []memmap.FileRange{fr}, maps: stateio.LocalClientMapping(m)})
}

func (r *pageReader) AddReadv(id int, off int64, _ uint64, to stateio.DestinationFile, ranges []memmap.FileRange, maps []unix.Iovec) {
	r.add(job{id: id, off: off, peer: to.(*memoryFile), ranges: ranges, maps: stateio.LocalClientMappings(maps)})
}

func (r *pageReader) Close() error {
	if r.rest != nil {
		r.rest.close() // who waits for a page gets an error
	}
	return r.pageFile.Close()
}

var buffers = sync.Pool{New: func() any { return new([sharedReadBytes]byte) }}

// read copies pages to gVisor's file. Writing to the file is cheaper than reading into a
// mapping of it, and a missing page is an error rather than a signal. Pages are checked
// against their checksums before gVisor can see them.
func (r *pageReader) read(j *job, fr memmap.FileRange, m []byte, off int64) (int, error) {
	if len(m) > sharedReadBytes {
		return 0, unix.EINVAL
	}
	buf := buffers.Get().(*[sharedReadBytes]byte)
	defer buffers.Put(buf)
	sent := false
	if r.rest != nil {
		var err error
		if sent, err = r.rest.fetch(buf[:len(m)], off); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				r.damaged(err)
			}
			return 0, unix.EIO
		}
	}
	if !sent && j.peer.clones && cloneRange(j.peer.fd, int64(fr.Start), int(r.f.Fd()), off, int64(fr.Length())) {
		return len(m), nil
	}
	n, end := len(m), error(nil)
	if !sent {
		// The file of the kernel's state may be shorter than the request; the file of pages
		// may not.
		if n, end = r.f.ReadAt(buf[:len(m)], off); end != nil && (r.sums != nil || !errors.Is(end, io.EOF)) {
			return 0, end
		}
	}
	if r.sums != nil {
		if err := r.sums.check(buf[:n], off); err != nil {
			r.damaged(err)
			return 0, unix.EIO
		}
	}
	for done := 0; done < n; {
		w, err := unix.Pwrite(j.peer.fd, buf[done:n], int64(fr.Start)+int64(done))
		if err != nil {
			return done, err
		}
		done += w
	}
	return n, end
}

// pageWriter implements stateio.AsyncWriter.
type pageWriter struct {
	pageFile
	next  int64
	later *backlog // or nil
}

func (w *pageWriter) MaxWriteBytes() uint64 { return writeBytes }

func (w *pageWriter) MaxRanges() int { return writeRanges }

func (w *pageWriter) NeedRegisterSourceFD() bool { return true }

func (w *pageWriter) RegisterSourceFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.SourceFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return nil, err
	}
	m, err := w.register(fd, &st)
	if err != nil || w.later == nil {
		return m, err
	}
	m.later, err = w.later.holds(m.fd, &st)
	return m, err
}

func (w *pageWriter) Close() error {
	err := w.pageFile.Close()
	if w.later != nil {
		w.later.closed(w.next)
	}
	return err
}

func (w *pageWriter) AddWrite(id int, from stateio.SourceFile, fr memmap.FileRange, m []byte) {
	w.add(job{id: id, off: w.next, peer: from.(*memoryFile), ranges: []memmap.FileRange{fr}, maps: stateio.LocalClientMapping(m)})
	w.next += int64(len(m))
}

func (w *pageWriter) AddWritev(id int, total uint64, from stateio.SourceFile, ranges []memmap.FileRange, maps []unix.Iovec) {
	w.add(job{id: id, off: w.next, peer: from.(*memoryFile), ranges: ranges, maps: stateio.LocalClientMappings(maps)})
	w.next += int64(total)
}

func (w *pageWriter) Reserve(uint64) {}

func (w *pageWriter) Finalize() error { return nil }

// write writes a range, except for what the backlog takes.
func (w *pageWriter) write(j *job, fr memmap.FileRange, m []byte, off int64) (int, error) {
	if j.peer.later == nil {
		return w.writeNow(j, fr, m, off)
	}
	for done := int64(0); done < int64(len(m)); {
		at := memmap.FileRange{Start: fr.Start + uint64(done), End: fr.End}
		n, later := w.later.add(j.peer.later, at, off+done)
		if !later {
			at.End = at.Start + uint64(n)
			if now, err := w.writeNow(j, at, m[done:done+n], off+done); err != nil {
				return int(done) + now, err
			}
		}
		done += n
	}
	return len(m), nil
}

func (w *pageWriter) writeNow(j *job, fr memmap.FileRange, m []byte, off int64) (int, error) {
	if j.peer.clones && cloneRange(int(w.f.Fd()), off, j.peer.fd, int64(fr.Start), int64(fr.Length())) {
		return len(m), nil
	}
	return w.f.WriteAt(m, off)
}

// cloneRange makes a range of one file share the content of another file, and reports
// whether that succeeded.
func cloneRange(to int, toOff int64, from int, fromOff, n int64) bool {
	if n < cloneBytes || (toOff|fromOff|n)%pageSize != 0 {
		return false
	}
	err := unix.IoctlFileCloneRange(to, &unix.FileCloneRange{
		Src_fd: int64(from), Src_offset: uint64(fromOff), Src_length: uint64(n), Dest_offset: uint64(toOff),
	})
	return err == nil
}

// clones reports whether a new file in a directory can share a file's content. A relative
// dir is relative to the open directory at.
func clones(at int, dir string, from *os.File) bool {
	fd, err := unix.Openat(at, dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.IoctlFileCloneRange(fd, &unix.FileCloneRange{Src_fd: int64(from.Fd()), Src_length: pageSize})
	return err == nil
}
