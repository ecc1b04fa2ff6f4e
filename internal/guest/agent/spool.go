package agent

import (
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// minSegment and maxSegment bound the files of a spool, in bytes.
	minSegment = 64 << 10
	maxSegment = 4 << 20
	// spoolShare limits all spools to one part in so many of the sandbox's disk.
	spoolShare = 4
	// spoolTries bounds the attempts to write one piece of output.
	spoolTries = 8
)

// spooler keeps output of jobs that is no longer in memory on the sandbox's disk. Its
// files have no names: programs in the sandbox do not come across them, comparisons of
// files do not include them, and they survive pauses, snapshots and forks as every open
// file does. Root in the sandbox can reach them through the agent's descriptors, as it
// can reach the agent's memory; all it can do there is make output wrong or missing.
type spooler struct {
	// dir is a directory on the sandbox's disk, opened before the first program ran:
	// what is mounted over its path later has no effect.
	dir int

	mu     sync.Mutex
	spools map[*spool]struct{} // guarded by mu; those that hold something
	used   int64               // guarded by mu; bytes in all spools
	next   int64               // guarded by mu; number of the next segment
}

// newSpooler makes a spooler on the file system of dir.
func newSpooler(dir string) (*spooler, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &spooler{dir: fd, spools: map[*spool]struct{}{}}, nil
}

// Preconditions: all spools are closed.
func (s *spooler) close() { _ = unix.Close(s.dir) }

// limits returns how much one job and all jobs may take, and the size of a segment;
// all are 0 on a disk that is too small for spools.
func (s *spooler) limits() (job, all, segment int64) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.dir, &st); err != nil || st.Bsize <= 0 {
		return 0, 0, 0
	}
	all = int64(min(st.Blocks, 1<<40)) * min(st.Bsize, 1<<20) / spoolShare
	job = min(sandbox.MaxJobOutputBytes, all)
	if job < 4*minSegment {
		return 0, 0, 0
	}
	return job, all, min(max(job/64, minSegment), maxSegment)
}

// spool holds a part of one job's output. A nil spool holds nothing. Each stream has
// one writer; its other methods are safe for concurrent use.
type spool struct {
	in *spooler

	// All are guarded by in.mu.
	streams [2][]*segment // oldest first
	used    int64
	closed  bool
}

// segment is a file with a part of a stream.
type segment struct {
	file   *os.File
	start  int64 // position of its first byte in the stream
	number int64 // in the order of creation
	// These are guarded by spooler.mu.
	size    int64
	charged int64 // size and what is being written
	dropped bool
}

func (g *segment) end() int64 { return g.start + g.size }

func (s *spooler) newSpool() *spool {
	if s == nil {
		return nil
	}
	return &spool{in: s}
}

// write adds p, which is at position pos of the stream. If there is no room, the oldest
// segments are dropped, and p as a last resort.
func (sp *spool) write(stream int, pos int64, p []byte) {
	for range spoolTries {
		if len(p) == 0 {
			return
		}
		g, room := sp.reserve(stream, pos, len(p))
		if g == nil {
			return
		}
		n, err := g.file.WriteAt(p[:room], pos-g.start)
		sp.wrote(g, n, room)
		pos += int64(n)
		p = p[n:]
		if err != nil && !errors.Is(err, os.ErrClosed) && !sp.shrink() {
			return
		}
	}
}

// reserve makes room for n bytes from position pos on. It returns the segment to write
// to, and how many of the bytes fit.
func (sp *spool) reserve(stream int, pos int64, n int) (*segment, int) {
	s := sp.in
	s.mu.Lock()
	defer s.mu.Unlock()
	job, all, size := s.limits()
	if sp.closed || size == 0 {
		return nil, 0
	}
	g := sp.last(stream)
	if g == nil || g.end() != pos || g.size >= size {
		if g = s.newSegment(pos); g == nil {
			return nil, 0
		}
		sp.streams[stream] = append(sp.streams[stream], g)
		s.spools[sp] = struct{}{}
	}
	n = int(min(int64(n), size-g.size))
	for sp.used+int64(n) > job && sp.dropOldest(g) {
	}
	for s.used+int64(n) > all && s.largest().dropOldest(g) {
	}
	g.charged += int64(n)
	sp.used += int64(n)
	s.used += int64(n)
	return g, n
}

// wrote records that n of the reserved bytes have been written.
func (sp *spool) wrote(g *segment, n, reserved int) {
	s := sp.in
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.dropped {
		return
	}
	rest := int64(reserved - n)
	g.size += int64(n)
	g.charged -= rest
	sp.used -= rest
	s.used -= rest
}

// shrink frees the job's oldest segment that has content, since the disk is full, and
// reports whether there was one.
func (sp *spool) shrink() bool {
	s := sp.in
	s.mu.Lock()
	defer s.mu.Unlock()
	before := sp.used
	for sp.used == before && sp.dropOldest(nil) {
	}
	return sp.used < before
}

// Preconditions: in.mu is held.
func (sp *spool) last(stream int) *segment {
	if list := sp.streams[stream]; len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

// dropOldest frees the job's oldest segment other than except, and reports whether
// there was one.
//
// Preconditions: in.mu is held.
func (sp *spool) dropOldest(except *segment) bool {
	var oldest *segment
	for _, list := range sp.streams {
		for _, g := range list {
			if g != except && (oldest == nil || g.number < oldest.number) {
				oldest = g
			}
		}
	}
	if oldest == nil {
		return false
	}
	sp.drop(oldest)
	return true
}

// Preconditions: in.mu is held.
func (sp *spool) drop(g *segment) {
	if g.dropped {
		return
	}
	g.dropped = true
	_ = g.file.Close()
	sp.used -= g.charged
	sp.in.used -= g.charged
	for i, list := range sp.streams {
		sp.streams[i] = slices.DeleteFunc(list, func(o *segment) bool { return o == g })
	}
	if len(sp.streams[0])+len(sp.streams[1]) == 0 {
		delete(sp.in.spools, sp)
	}
}

// largest returns the spool that takes most.
//
// Preconditions: s.mu is held, and a spool holds something.
func (s *spooler) largest() (most *spool) {
	for sp := range s.spools {
		if most == nil || sp.used > most.used {
			most = sp
		}
	}
	return most
}

// newSegment makes a file without a name, or returns nil.
//
// Preconditions: s.mu is held.
func (s *spooler) newSegment(start int64) *segment {
	name := tempName()
	fd, err := unix.Openat(s.dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Unlinkat(s.dir, name, 0); err != nil {
		_ = f.Close()
		return nil
	}
	s.next++
	return &segment{file: f, start: start, number: s.next}
}

// read copies a part of a stream, from position off on or from the next position that
// the spool has, which it returns; n is 0 if the spool has no more.
func (sp *spool) read(stream int, off int64, p []byte) (pos int64, n int) {
	for {
		g, end := sp.find(stream, off)
		if g == nil {
			return off, 0
		}
		pos = max(off, g.start)
		n, _ = g.file.ReadAt(p[:min(int64(len(p)), end-pos)], pos-g.start)
		if n > 0 || len(p) == 0 {
			return pos, n
		}
		// It was dropped just now, or is damaged.
		sp.in.mu.Lock()
		sp.drop(g)
		sp.in.mu.Unlock()
	}
}

// find returns the first segment with bytes at off or later, and where it ends.
func (sp *spool) find(stream int, off int64) (*segment, int64) {
	sp.in.mu.Lock()
	defer sp.in.mu.Unlock()
	for _, g := range sp.streams[stream] {
		if g.end() > off {
			return g, g.end()
		}
	}
	return nil, 0
}

// close frees all segments; the spool takes no more output.
func (sp *spool) close() {
	if sp == nil {
		return
	}
	sp.in.mu.Lock()
	defer sp.in.mu.Unlock()
	sp.closed = true
	for sp.dropOldest(nil) {
	}
}
