package oci

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Open opens the layer's uncompressed tar stream. If the received bytes do not match the
// manifest, the stream fails before its end; the caller checks that the content has the
// DiffID. progress, unless nil, is called with the bytes received so far.
func (l *Layer) Open(ctx context.Context, progress func(int64)) (io.ReadCloser, error) {
	src, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	in := &stored{r: src, hash: sha256.New(), max: maxStored, progress: progress}
	if l.Size >= 0 {
		in.max = l.Size
	}
	plain, done, err := decompress(bufio.NewReaderSize(in, 256<<10))
	if err != nil {
		src.Close()
		return nil, err
	}
	return &checked{layer: l, src: src, in: in, plain: plain, done: done}, nil
}

// Plain decompresses a stream that may be compressed by gzip or zstd, and closes it. A
// stream with a suspicious compression ratio fails.
func Plain(ctx context.Context, src io.ReadCloser) (io.ReadCloser, error) {
	l := &Layer{Size: -1, open: func(context.Context) (io.ReadCloser, error) { return src, nil }}
	return l.Open(ctx, nil)
}

// stored counts and hashes a layer as transferred.
type stored struct {
	r        io.Reader
	hash     hash.Hash
	n, max   int64
	progress func(int64)
	reported time.Time
}

func (s *stored) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && notAsNamed(err) {
		return 0, bad("a layer is not what its manifest says: %v", err)
	}
	s.hash.Write(p[:n])
	if s.n += int64(n); s.n > s.max {
		return 0, bad("a layer is larger than its manifest says, or than %d bytes", int64(maxStored))
	}
	if s.progress != nil && (err != nil || time.Since(s.reported) > 100*time.Millisecond) {
		s.reported = time.Now()
		s.progress(s.n)
	}
	return n, err
}

// maxWindow bounds the memory of one decompressor. All levels of zstd but the two highest
// stay within it.
const maxWindow = 32 << 20

// swollen reports whether a compression ratio is higher than that of any honest stream.
func swollen(sent, plain int64) bool { return plain > freeBytes && plain/maxRatio > sent }

// decompress detects a stream's compression by its first bytes, since image manifests are
// sometimes wrong about it.
func decompress(br *bufio.Reader) (io.Reader, func(), error) {
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err := kgzip.NewReader(br)
		if err != nil {
			return nil, nil, bad("a layer is not valid gzip: %v", err)
		}
		return r, func() { r.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		r, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, bad("a layer is not valid zstd: %v", err)
		}
		return r, r.Close, nil
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X'}):
		return nil, nil, bad("a layer uses a compression that images do not use; use gzip or zstd")
	}
	return br, func() {}, nil
}

// checked is the tar stream of a layer.
type checked struct {
	layer *Layer
	src   io.Closer
	in    *stored
	plain io.Reader
	done  func()
	n     int64
	err   error
}

func (c *checked) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.plain.Read(p)
	c.n += int64(n)
	switch {
	case swollen(c.in.n, c.n):
		c.err = bad("a layer expands to more than %d times its size, which is not plausible for an image", maxRatio)
		return 0, c.err
	case errors.Is(err, io.EOF):
		err = c.check()
	case err != nil:
		err = broken(err)
	}
	c.err = err
	if err != nil && !errors.Is(err, io.EOF) {
		n = 0
	}
	return n, err
}

// broken translates the errors of a damaged compressed stream into errors for callers.
func broken(err error) error {
	for _, e := range []error{gzip.ErrChecksum, gzip.ErrHeader, kgzip.ErrChecksum, kgzip.ErrHeader, zstd.ErrMagicMismatch, zstd.ErrReservedBlockType,
		zstd.ErrCRCMismatch, zstd.ErrWindowSizeExceeded, zstd.ErrDecoderSizeExceeded, zstd.ErrFrameSizeExceeded, zstd.ErrFrameSizeMismatch} {
		if errors.Is(err, e) {
			return bad("a layer's compression is broken: %v", err)
		}
	}
	return err
}

// check is called at the end of the stream. It returns [io.EOF] if the stream matches the
// manifest.
func (c *checked) check() error {
	// Bytes after the compressed stream count too.
	if _, err := io.Copy(io.Discard, c.in); err != nil {
		return err
	}
	switch {
	case c.layer.Size >= 0 && c.in.n != c.layer.Size:
		return fmt.Errorf("a layer has %d bytes, not %d: %w", c.in.n, c.layer.Size, io.ErrUnexpectedEOF)
	case c.layer.digest.Hex != "" && sum(c.in.hash) != c.layer.digest.Hex:
		return bad("a layer is sha256:%s, not %s as its manifest says", sum(c.in.hash), c.layer.digest)
	}
	return io.EOF
}

func (c *checked) Close() error {
	c.done()
	return c.src.Close()
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }
