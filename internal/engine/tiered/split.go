package tiered

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
)

// Sizes of chunks, in bytes. A chunk is a whole number of pages, except for the last one of
// a file, and has 1 MiB on average: smaller ones would share more and need more requests.
const (
	pageSize = 4096
	minChunk = 128 * pageSize
	maxChunk = 512 * pageSize
	// A page after the first minChunk bytes ends a chunk with a chance of 1 in cutOdds, which
	// is at most 256.
	cutOdds = 128
)

// splitter cuts a stream into chunks. The files of a checkpoint are the pages that a sandbox
// uses, one after another: a page that comes into use moves all later ones. So it is the
// content of pages that decides where a chunk ends, and the same pages become the same
// chunks wherever they are. The decision has a key, because the bucket's owner, who sees the
// sizes of chunks, could otherwise recognise content.
type splitter struct {
	r    *bufio.Reader
	hash hash.Hash
	sum  []byte
}

func (s *scope) split(r io.Reader) *splitter {
	return &splitter{r: bufio.NewReaderSize(r, 64*pageSize), hash: hmac.New(sha256.New, s.cutting)}
}

// next reads a chunk into a buffer of maxChunk bytes. The error is [io.EOF] with the last
// chunk, which may be empty.
func (p *splitter) next(buf []byte) (n int, err error) {
	for n < maxChunk {
		got, err := io.ReadFull(p.r, buf[n:n+pageSize])
		n += got
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return n, io.EOF
		case err != nil:
			return n, err
		case n >= minChunk && p.ends(buf[n-pageSize:n]):
			return n, nil
		}
	}
	return n, nil
}

// ends reports whether a page ends a chunk.
func (p *splitter) ends(page []byte) bool {
	p.hash.Reset()
	p.hash.Write(page)
	p.sum = p.hash.Sum(p.sum[:0])
	return p.sum[0]%cutOdds == 0
}
