package layer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
)

// hashUnit is the part of a file that a [Hash] leaves out if it is zero: a page, so that
// no more is hashed than a sandbox holds.
const hashUnit = 4 << 10

var zeroUnit [hashUnit]byte

// buffers are for copying file content.
var buffers = sync.Pool{New: func() any { b := make([]byte, 64*hashUnit); return &b }}

// hashContent copies all of r to w, which may be nil, and returns its size and hash.
func hashContent(w io.Writer, r io.Reader) (n int64, h Hash, err error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	sum := sha256.New()
	for !errors.Is(err, io.EOF) {
		var m int
		if m, err = fill(*buf, r); err != nil && !errors.Is(err, io.EOF) {
			return n, h, err
		}
		part := (*buf)[:m]
		for at := 0; at < m; at += hashUnit {
			unit := part[at:min(at+hashUnit, m)]
			if bytes.Equal(unit, zeroUnit[:len(unit)]) {
				continue
			}
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)+uint64(at)))
			sum.Write(unit)
		}
		n += int64(m)
		if w != nil {
			if _, err := w.Write(part); err != nil {
				return n, h, err
			}
		}
	}
	sum.Sum(h[:0])
	return n, h, nil
}

// fill reads until buf is full or r ends, with an error.
func fill(buf []byte, r io.Reader) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
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

// copyContent is io.Copy with a larger buffer.
func copyContent(w io.Writer, r io.Reader) (int64, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}
