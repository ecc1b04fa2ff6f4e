package layer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// buffers are for copying file content.
var buffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// copyContent is io.Copy with a larger buffer.
func copyContent(w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}

// summary is what hashContent finds out about a file.
type summary struct {
	hash Hash
	size int64
	// pageBytes is how much is written of its pages.
	pageBytes int64
}

// hashContent copies a file to whole, and its pages as [apply.TypeSparse] has them to pages.
func hashContent(r io.Reader, whole, pages io.Writer) (s summary, err error) {
	sum := sha256.New()
	p := pageWriter{w: io.MultiWriter(sum, pages)}
	if s.size, err = copyContent(io.MultiWriter(whole, &p), r); err != nil {
		return s, err
	}
	if err := p.flush(); err != nil {
		return s, err
	}
	sum.Sum(s.hash[:0])
	s.pageBytes = p.written
	return s, nil
}

var zeroPage [apply.PageSize]byte

// pageWriter writes the pages of a file that are not zero, each after its offset.
type pageWriter struct {
	w       io.Writer
	at      int64  // the offset of the page that comes next
	part    []byte // of that page
	written int64
}

func (p *pageWriter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(apply.PageSize-len(p.part), len(rest))
		page := rest[:n]
		if rest = rest[n:]; n < apply.PageSize {
			p.part = append(p.part, page...)
			page = p.part
		}
		if len(page) < apply.PageSize {
			break // of b
		}
		if err := p.page(page); err != nil {
			return 0, err
		}
		p.part = p.part[:0]
	}
	return len(b), nil
}

// flush writes the last page, which may be shorter.
func (p *pageWriter) flush() error { return p.page(p.part) }

func (p *pageWriter) page(page []byte) error {
	at := p.at
	if p.at += int64(len(page)); bytes.Equal(page, zeroPage[:len(page)]) {
		return nil
	}
	for _, b := range [][]byte{binary.LittleEndian.AppendUint64(nil, uint64(at)), page} {
		if _, err := p.w.Write(b); err != nil {
			return err
		}
		p.written += int64(len(b))
	}
	return nil
}

// isSparse reports whether a file's holes are not in the stream.
func isSparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}
