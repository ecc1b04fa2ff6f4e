package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/readahead"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/template/layer"
)

// aufsRecord is the prefix of names of aufs's own metadata.
const aufsRecord = ".wh..wh."

// unpack stores a tar stream as a new layer. want is its digest, or "".
func (s *layerStore) unpack(ctx context.Context, want string, open openLayer) (info layerInfo, err error) {
	s.mu.Lock()
	s.unpacks++
	s.mu.Unlock()
	dir, err := os.MkdirTemp(s.tmp, "layer-")
	if err != nil {
		return info, fmt.Errorf("unpack layer: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return info, fmt.Errorf("unpack layer: %w", err)
	}
	defer func() {
		if rerr := removeTree(dir); rerr != nil {
			s.log.Warn("remove partly unpacked layer", "directory", dir, "error", rerr)
		}
		unlock()
	}()
	content := filepath.Join(dir, "layer")
	if err := os.MkdirAll(filepath.Join(content, layerFilesDir), 0o700); err != nil {
		return info, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := open(ctx)
	if err != nil {
		return info, err
	}
	// The source of the stream (a decompressor, a network) and its consumer work
	// concurrently.
	ahead, err := readahead.NewReaderSize(&cancelledReader{ctx, r}, 4, 512<<10)
	if err != nil {
		return info, errors.Join(err, r.Close())
	}
	info, err = s.read(content, ahead)
	cancel() // stop a pending read
	ahead.Close()
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return layerInfo{}, err
	}
	if want != "" && info.Digest != want {
		return layerInfo{}, fmt.Errorf("%w: the layer's content is %s, not %s", errHostile, info.Digest, want)
	}
	return info, s.adopt(content, info)
}

// adopt makes a complete layer visible. The layer need not be on the disk yet: until
// [layerStore.markDurable], it is valid only during this boot of the machine.
func (s *layerStore) adopt(content string, info layerInfo) error {
	if err := writeLayerInfo(content, info, bootID()); err != nil {
		return err
	}
	s.mu.Lock()
	s.used[info.Digest] = time.Now()
	s.mu.Unlock()
	err := os.Rename(content, s.layerDir(info.Digest))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil // another caller stored the same layer
	}
	if err != nil {
		return fmt.Errorf("keep layer: %w", err)
	}
	return nil
}

// read unpacks a stream into a directory of its own.
func (s *layerStore) read(content string, r io.Reader) (layerInfo, error) {
	h := sha256.New()
	src := &endTracker{r: r}
	stream := bufio.NewReaderSize(io.TeeReader(src, h), 1<<20)
	w, err := newLayerWriter(content, s.own, s.maxBytes, s.maxEntries)
	if err != nil {
		return layerInfo{}, err
	}
	err = w.readAll(tar.NewReader(stream))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && src.ended:
		err = fmt.Errorf("%w: it is cut short", errHostile) // truncated by its maker, not by the network
	case errors.Is(err, errUnreadable) && !src.failed:
		err = fmt.Errorf("%w: %w", errHostile, err)
	}
	if err == nil {
		// The digest covers what follows the archive's end.
		_, err = io.Copy(io.Discard, io.LimitReader(stream, s.maxBytes))
	}
	if err := errors.Join(err, w.close()); err != nil {
		return layerInfo{}, err
	}
	return layerInfo{Digest: "sha256-" + sum(h), Bytes: w.bytes, Entries: w.entries}, nil
}

// endTracker records whether a stream ended properly or failed.
type endTracker struct {
	r             io.Reader
	ended, failed bool
}

func (e *endTracker) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.ended = err == io.EOF
	e.failed = err != nil && !e.ended
	return n, err
}

// cancelledReader fails when its context has ended.
type cancelledReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelledReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// layerWriter stores the entries of a hostile tar stream one by one.
type layerWriter struct {
	own                  bool
	maxBytes, maxEntries int64
	// gone has the entries that remove something, index the others.
	gone, index *indexWriter
	files       *os.Root
	// dir is the directory of the current thousand of files.
	dir      *os.Root
	thousand int64

	bytes, entries, n int64
}

func newLayerWriter(content string, own bool, maxBytes, maxEntries int64) (*layerWriter, error) {
	gone, err := newIndexWriter(content, layerGoneFile)
	if err != nil {
		return nil, err
	}
	index, err := newIndexWriter(content, layerIndexFile)
	if err != nil {
		gone.close()
		return nil, err
	}
	files, err := os.OpenRoot(filepath.Join(content, layerFilesDir))
	if err != nil {
		return nil, errors.Join(err, gone.close(), index.close())
	}
	return &layerWriter{own: own, maxBytes: maxBytes, maxEntries: maxEntries, gone: gone, index: index, files: files, thousand: -1}, nil
}

func (w *layerWriter) close() error {
	if w.dir != nil {
		w.dir.Close()
	}
	return errors.Join(w.files.Close(), w.gone.close(), w.index.close())
}

// errUnreadable marks errors of the archive's format, and of reading the stream.
var errUnreadable = errors.New("cannot be read as an archive")

func (w *layerWriter) readAll(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		if err := w.add(h, tr); err != nil {
			return err
		}
	}
}

func (w *layerWriter) add(h *tar.Header, r io.Reader) error {
	if w.entries++; w.entries > w.maxEntries {
		return fmt.Errorf("%w: more than %d files", errHostile, w.maxEntries)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	p, err := cleanPath(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || h.Uid > 1<<31-2 || h.Gid > 1<<31-2 {
		return fmt.Errorf("%w: owner of %.80q", errHostile, p)
	}
	if gone, err := w.whiteout(h, p); gone || err != nil {
		return err
	}
	e := layerEntry{Path: p, Mode: uint32(h.Mode & 0o7777), UID: h.Uid, GID: h.Gid, Time: layerTime(h.ModTime)}
	switch h.Typeflag {
	case tar.TypeDir:
		if h.PAXRecords[layer.OverlayOpaque] == "y" {
			if err := w.gone.add(layerEntry{Kind: 'o', Path: p}); err != nil {
				return err
			}
		}
		e.Kind = 'd'
	case tar.TypeReg, tar.TypeGNUSparse:
		e.Kind, e.Size = 'f', h.Size
		if sparse := h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != ""; sparse {
			r = holes{r}
		}
		if err := w.file(&e, r); err != nil {
			return fmt.Errorf("write %.80q: %w", p, err)
		}
	case tar.TypeSymlink:
		e.Kind, e.Link = 'l', h.Linkname
		if e.Link == "" || len(e.Link) > 4095 || strings.ContainsRune(e.Link, 0) {
			return fmt.Errorf("%w: symbolic link %.80q", errHostile, p)
		}
	case tar.TypeLink:
		e.Kind = 'h'
		if e.Link, err = cleanPath(h.Linkname); err != nil {
			return err
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		// A sandbox has a /dev of its own, and no use for other devices.
		return nil
	default:
		return fmt.Errorf("%w: %.80q is of unknown type %q", errHostile, p, h.Typeflag)
	}
	return w.index.add(e)
}

// whiteout handles entries that hide something of lower layers, and reports whether h is
// one. Entries marked by their names may have any type.
func (w *layerWriter) whiteout(h *tar.Header, p string) (bool, error) {
	dir, name := path.Split(p)
	switch {
	case name == layer.Opaque:
		return true, w.gone.add(layerEntry{Kind: 'o', Path: path.Clean(dir)})
	case strings.HasPrefix(p, aufsRecord), strings.Contains(p, "/"+aufsRecord):
		return true, nil
	case strings.HasPrefix(name, layer.Whiteout):
		name = name[len(layer.Whiteout):]
		if name == "" || name == "." || name == ".." {
			return true, fmt.Errorf("%w: whiteout %.80q", errHostile, p)
		}
		return true, w.gone.add(layerEntry{Kind: 'w', Path: path.Join(dir, name)})
	case h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0:
		if p == "." {
			return true, fmt.Errorf("%w: the top is not a directory", errHostile)
		}
		return true, w.gone.add(layerEntry{Kind: 'w', Path: p})
	}
	return false, nil
}

// layerTime limits times to the range that every file system supports.
func layerTime(t time.Time) int64 {
	const latest = 1<<32 - 1 // in seconds: the year 2106
	return min(max(t.Unix(), 0), latest)*int64(time.Second) + int64(t.Nanosecond())
}

// file stores the content of a file under the next number, with the attributes that
// all hard links to it share.
func (w *layerWriter) file(e *layerEntry, r io.Reader) error {
	if e.Size < 0 || e.Size > w.maxBytes-w.bytes {
		return fmt.Errorf("%w: more than %d bytes", errHostile, w.maxBytes)
	}
	e.File = w.n
	w.n++
	if e.File/1000 != w.thousand {
		if err := w.nextDir(e.File); err != nil {
			return err
		}
	}
	f, err := w.dir.OpenFile(path.Base(storedName(e.File)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := fillFile(f, r, e.Size)
	if err == nil && n != e.Size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = dress(f, storedMeta(e.meta(), w.own), w.own)
	}
	w.bytes += n
	return errors.Join(err, f.Close())
}

// holes marks the content of a sparse file: a few bytes of archive must not fill the
// disk with zeros.
type holes struct{ io.Reader }

// fillFile writes the content of a file and returns its size.
func fillFile(f *os.File, r io.Reader, size int64) (int64, error) {
	sparse, ok := r.(holes)
	if !ok {
		return io.Copy(f, io.LimitReader(r, size))
	}
	r = io.LimitReader(sparse.Reader, size)
	buf, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := io.ReadFull(r, buf)
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return at, err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && at == size {
			return at, f.Truncate(at)
		}
		if err != nil {
			return at, err
		}
	}
}

func (w *layerWriter) nextDir(n int64) error {
	name := path.Dir(storedName(n))
	if err := w.files.Mkdir(name, 0o700); err != nil {
		return err
	}
	dir, err := w.files.OpenRoot(name)
	if err != nil {
		return err
	}
	if w.dir != nil {
		w.dir.Close()
	}
	w.dir, w.thousand = dir, n/1000
	return nil
}

// storedMeta returns the attributes that a file has on the disk. Where owners cannot be
// set, all files belong to the sandbox's root: then others get the owner's permissions, and
// setuid programs that would have become another user do not become root. Root inside may
// read files whatever their mode, so their owner here must be able to as well.
func storedMeta(m meta, own bool) meta {
	if own {
		return m
	}
	m.mode |= 0o400
	if m.uid != 0 {
		m.mode = m.mode&^unix.S_ISUID | m.mode>>6&7*0o11
	}
	if m.gid != 0 {
		m.mode = m.mode&^unix.S_ISGID | m.mode>>3&7
	}
	return m
}
