package runsc

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// part says that n bytes of a checkpoint's file of pages, from off, are those of one of
// gVisor's files at from.
type part struct {
	file         *frozenFile
	off, from, n int64
}

// frozenFile is a file of gVisor of which parts are written later: its memory, or what
// the sandbox has written.
type frozenFile struct {
	dev, ino uint64
	// ranges are the ranges of the file that gVisor can freeze. They are sorted and do not
	// touch.
	ranges []memmap.FileRange

	// The following are guarded by [backlog.mu].

	// room is how many more bytes may be added of this file, and of those that share it.
	room *int64
	// f is the file, once gVisor has begun to save it.
	f *os.File
}

// Each part is frozen separately. It then has a mapping of its own in each process of the
// host that runs programs with this memory, and so does the memory between two parts. The
// host's kernel allows 65,530 mappings per process. Memory of which only scattered pages
// are in use is therefore copied at once.
const (
	leastPart = 64 << 10
	maxParts  = 1 << 13
)

// backlog is what a checkpoint's file of pages still lacks when gVisor has saved its
// state: memory and files of programs that gVisor freezes. The writer of the file adds to
// it until it is sealed.
type backlog struct {
	files []*frozenFile // immutable

	mu     sync.Mutex // guards the following until sealed is true; then nothing changes
	sealed bool
	parts  []part // in the order of off, joined where possible
	pages  *os.File
	size   int64 // of the complete file of pages; 0 if gVisor has not closed it
}

// seal ends the writer's use of the backlog. gVisor may be hostile, and may still write
// to the file after it has said that its state is saved.
func (b *backlog) seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
}

// opened is called with the file of pages.
func (b *backlog) opened(pages *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed || b.pages != nil {
		return unix.EPERM
	}
	var err error
	b.pages, err = dupFile(int(pages.Fd()), pages.Name())
	return err
}

// closed is called when the file of pages is written, except for the backlog.
func (b *backlog) closed(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sealed {
		b.size = size
	}
}

// holds returns which of the backlog's files a file is, or nil, and keeps it.
func (b *backlog) holds(fd int, st *unix.Stat_t) (*frozenFile, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	i := slices.IndexFunc(b.files, func(f *frozenFile) bool { return f.dev == st.Dev && f.ino == st.Ino })
	if i < 0 || b.files[i].f != nil {
		return nil, nil
	}
	var err error
	if b.files[i].f, err = dupFile(fd, "frozen"); err != nil {
		return nil, err
	}
	return b.files[i], nil
}

func dupFile(fd int, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), name), nil
}

// add takes the longest prefix of a range of a file that is entirely in the backlog or
// entirely outside, and returns its length. A prefix that is inside is written at off
// later.
func (b *backlog) add(file *frozenFile, fr memmap.FileRange, off int64) (n int64, inside bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ranges := file.ranges
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].End > fr.Start })
	switch {
	case i == len(ranges) || ranges[i].Start >= fr.End:
		return int64(fr.Length()), false
	case ranges[i].Start > fr.Start:
		return int64(ranges[i].Start - fr.Start), false
	}
	p := part{file: file, off: off, from: int64(fr.Start), n: int64(min(ranges[i].End, fr.End) - fr.Start)}
	if b.sealed || p.n > *file.room {
		return p.n, false
	}
	if last := len(b.parts) - 1; last >= 0 && b.parts[last].continuedBy(p) {
		b.parts[last].n += p.n
	} else if p.n < leastPart || len(b.parts) == maxParts {
		return p.n, false
	} else {
		b.parts = append(b.parts, p)
	}
	*file.room -= p.n
	return p.n, true
}

// continuedBy reports whether a part follows immediately.
func (p part) continuedBy(next part) bool {
	return p.file == next.file && p.off+p.n == next.off && p.from+p.n == next.from
}

// bytes is the size of the backlog.
func (b *backlog) bytes() (sum int64) {
	for _, p := range b.parts {
		sum += p.n
	}
	return sum
}

// bytesOf is how much of the backlog is of one file.
func (b *backlog) bytesOf(file *frozenFile) (sum int64) {
	for _, p := range b.parts {
		if p.file == file {
			sum += p.n
		}
	}
	return sum
}

// taken returns the ranges of files in the backlog, in the form of gVisor's methods.
//
// This and the following methods require that b is sealed.
func (b *backlog) taken() (files []fileRanges) {
	for _, f := range b.files {
		if r := b.takenOf(f); len(r) > 0 {
			files = append(files, fileRanges{Device: f.dev, Inode: f.ino, Ranges: r})
		}
	}
	return files
}

func (b *backlog) takenOf(file *frozenFile) (flat []uint64) {
	sorted := slices.DeleteFunc(slices.Clone(b.parts), func(p part) bool { return p.file != file })
	slices.SortFunc(sorted, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	for _, p := range sorted {
		if last := len(flat) - 1; last > 0 && flat[last] == uint64(p.from) {
			flat[last] = uint64(p.from + p.n)
			continue
		}
		flat = append(flat, uint64(p.from), uint64(p.from+p.n))
	}
	return flat
}

// partsIn returns the parts that have some of a range of the file of pages.
func (b *backlog) partsIn(start, end int64) []part {
	first := sort.Search(len(b.parts), func(i int) bool { return b.parts[i].off+b.parts[i].n > start })
	last := first
	for start < end && last < len(b.parts) && b.parts[last].off < end {
		last++
	}
	return b.parts[first:last]
}

// writeLaterBytes is how much is written to a file of pages at a time.
const writeLaterBytes = 256 << 10

// move copies from a file of gVisor to the file of pages.
func (b *backlog) move(file *frozenFile, buf []byte, off, from int64) error {
	if err := file.read(buf, from); err != nil {
		return err
	}
	if _, err := b.pages.WriteAt(buf, off); err != nil {
		return fmt.Errorf("write the memory of a checkpoint: %w", err)
	}
	return nil
}

// read reads what is frozen.
func (f *frozenFile) read(buf []byte, from int64) error {
	n, err := f.f.ReadAt(buf, from)
	if n < len(buf) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read frozen memory: %w", err)
	}
	return nil
}

func (b *backlog) close() error {
	opened := []*os.File{b.pages}
	for _, f := range b.files {
		opened = append(opened, f.f)
	}
	var err error
	for _, f := range opened {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
