package runsc

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
)

// gVisor describes the files that a sandbox has changed as a tree: a tar stream in which
// a regular file's content is replaced by its size and the offsets of its data in the
// file of all written pages. gVisor does not write the contents too, because it would
// load each file into memory as a whole, and die of a sparse file of a terabyte or of a
// file larger than the memory limit.

// pageSize is the unit of the file of pages.
const pageSize = 4096

// maxSegments limits the segments of one file, at 24 bytes each.
const maxSegments = 4 << 20

// errTree means that a tree is not in gVisor's format.
var errTree = errors.New("invalid tree of files")

// segment is a part of a file: the bytes from Start to End are at the offset At of the
// file of pages.
type segment struct{ Start, End, At int64 }

// writeTar writes a tree as a tar stream with contents, which it reads from pages. Files
// with holes are in the format PAX sparse 1.0. It refuses a tree with more than limit
// bytes of data, which must contain pages twice.
func writeTar(w io.Writer, tree io.Reader, pages io.ReaderAt, limit int64) error {
	in, out := tar.NewReader(tree), tar.NewWriter(w)
	t := treeWriter{w: w, out: out, pages: pages, left: limit, buf: make([]byte, 256<<10), removals: map[string]bool{}}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("read tree of files: %w", err)
		}
		if err := t.entry(h, in); err != nil {
			return err
		}
	}
}

type treeWriter struct {
	w     io.Writer
	out   *tar.Writer
	pages io.ReaderAt
	left  int64
	buf   []byte
	// removals are the names of devices that stand for removed files.
	removals map[string]bool
}

// maxRemovals limits removals. gVisor writes one for each mode.
const maxRemovals = 64

func (t *treeWriter) entry(h *tar.Header, in io.Reader) error {
	if h.Typeflag != tar.TypeReg {
		t.removed(h)
		h.Format = tar.FormatUnknown
		return t.out.WriteHeader(h)
	}
	size, segments, err := readSegments(in, h.Size)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", errTree, h.Name, err)
	}
	h.Size = size
	var data int64
	for _, s := range segments {
		data += s.End - s.Start
	}
	if t.left -= data; t.left < 0 {
		return fmt.Errorf("%w: it holds more than its file system can", errTree)
	}
	segments = coalesce(segments, minHole)
	stored := int64(0)
	for _, p := range segments {
		stored += p.End - p.Start
	}
	if size-stored < minHole {
		h.Format = tar.FormatUnknown
		if err := t.out.WriteHeader(h); err != nil {
			return err
		}
		return t.content(t.out, segments, size)
	}
	if err := t.out.Flush(); err != nil {
		return err
	}
	return t.sparse(h, segments, stored)
}

// removed turns a hard link to a device that stands for a removed file into such a
// device: gVisor makes the device once and links to it.
func (t *treeWriter) removed(h *tar.Header) {
	switch {
	case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 && len(t.removals) < maxRemovals:
		t.removals[h.Name] = true
	case h.Typeflag == tar.TypeLink && t.removals[h.Linkname]:
		h.Typeflag, h.Linkname = tar.TypeChar, ""
	}
}

// readSegments reads the description of a file's content: its size, and its segments in
// order.
func readSegments(r io.Reader, n int64) (size int64, list []piece, err error) {
	const each = 24
	if n < 8 || (n-8)%each != 0 || (n-8)/each > maxSegments {
		return 0, nil, fmt.Errorf("a description of %d bytes", n)
	}
	var buf [each]byte
	if _, err := io.ReadFull(r, buf[:8]); err != nil {
		return 0, nil, err
	}
	size = int64(binary.LittleEndian.Uint64(buf[:8]))
	if size < 0 {
		return 0, nil, errors.New("a size out of range")
	}
	var end int64
	for range (n - 8) / each {
		if _, err := io.ReadFull(r, buf[:]); err != nil {
			return 0, nil, err
		}
		s := segment{
			Start: int64(binary.LittleEndian.Uint64(buf[:])),
			End:   int64(binary.LittleEndian.Uint64(buf[8:])),
			At:    int64(binary.LittleEndian.Uint64(buf[16:])),
		}
		if s.Start < end || s.End <= s.Start || s.At < 0 || s.At > 1<<60 {
			return 0, nil, errors.New("segments out of order")
		}
		end = s.End
		// The last page may extend beyond the end of the file.
		if s.Start >= size {
			continue
		}
		s.End = min(s.End, size)
		list = append(list, piece{Start: s.Start, End: s.End, parts: []segment{s}})
	}
	return size, list, nil
}

// piece is a part of a file that is stored without holes.
type piece struct {
	Start, End int64
	parts      []segment
}

// minHole is the smallest hole that is not written as zeros, and maxPieces limits the
// table of a sparse file: readers refuse tables of more than 1 MiB.
const (
	minHole   = 64 << 10
	maxPieces = 16 << 10
)

// coalesce joins pieces with holes smaller than hole between them, and with larger holes
// if there are too many pieces.
func coalesce(list []piece, hole int64) []piece {
	for {
		out := list[:0:0]
		for _, p := range list {
			if last := len(out) - 1; last >= 0 && p.Start-out[last].End < hole {
				out[last].End = p.End
				out[last].parts = append(out[last].parts, p.parts...)
				continue
			}
			p.parts = slices.Clip(p.parts)
			out = append(out, p)
		}
		if len(out) <= maxPieces || hole > 1<<60 {
			return out
		}
		list, hole = out, hole*2
	}
}

// content writes pieces and zeros between them, up to size.
func (t *treeWriter) content(w io.Writer, pieces []piece, size int64) error {
	at := int64(0)
	for _, p := range pieces {
		if err := t.zeros(w, p.Start-at); err != nil {
			return err
		}
		if err := t.piece(w, p); err != nil {
			return err
		}
		at = p.End
	}
	return t.zeros(w, size-at)
}

func (t *treeWriter) piece(w io.Writer, p piece) error {
	at := p.Start
	for _, s := range p.parts {
		if err := t.zeros(w, s.Start-at); err != nil {
			return err
		}
		section := io.NewSectionReader(t.pages, s.At, s.End-s.Start)
		n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{section}, t.buf)
		if err != nil {
			return fmt.Errorf("read contents: %w", err)
		}
		// Data beyond the end of the file of pages was never written.
		if err := t.zeros(w, s.End-s.Start-n); err != nil {
			return err
		}
		at = s.End
	}
	return nil
}

var zeroes [64 << 10]byte

func (t *treeWriter) zeros(w io.Writer, n int64) error {
	for n > 0 {
		m, err := w.Write(zeroes[:min(n, int64(len(zeroes)))])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

// pageRange is a stored part of the file of pages: the bytes from Start to End are stored
// at the offset At.
type pageRange struct{ Start, End, At int64 }

// keptPages reads a file of pages of which only some ranges are stored; the rest is zero.
type keptPages struct {
	ranges []pageRange // in order
	data   io.ReaderAt
}

// ReadAt reads zeros beyond the last range, without an end.
func (k *keptPages) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	i := sort.Search(len(k.ranges), func(i int) bool { return k.ranges[i].End > off })
	for done < len(p) {
		at := off + int64(done)
		rest := p[done:]
		if i == len(k.ranges) {
			clear(rest)
			return len(p), nil
		}
		r := k.ranges[i]
		if at < r.Start {
			rest = rest[:min(int64(len(rest)), r.Start-at)]
			clear(rest)
			done += len(rest)
			continue
		}
		rest = rest[:min(int64(len(rest)), r.End-at)]
		n, err := k.data.ReadAt(rest, r.At+at-r.Start)
		done += n
		if n < len(rest) {
			return done, fmt.Errorf("the kept pages are incomplete: %w", err)
		}
		if at+int64(n) == r.End {
			i++
		}
	}
	return done, nil
}
