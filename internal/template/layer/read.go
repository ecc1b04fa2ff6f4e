package layer

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

// Bounds of a layer.
const (
	// MaxEntries bounds the paths of a layer.
	MaxEntries = 4_000_000
	// MaxPathBytes bounds a path, MaxNameBytes each of its parts, and MaxDepth the
	// number of parts.
	MaxPathBytes = 4096
	MaxNameBytes = 255
	MaxDepth     = 255
	// MaxIndexBytes bounds the memory of the index: entryCost for each entry, its path, and
	// the target of a link.
	MaxIndexBytes = 1 << 30
	// MaxContentBytes bounds the content of all files together.
	MaxContentBytes = 1 << 40
	// MaxSparseBytes bounds the files with holes together: a few bytes of stream can stand
	// for a file of any size, whose zeros are read at 5 to 30 GB/s.
	MaxSparseBytes = 256 << 30
	// DefaultKeepBytes bounds the content that is kept in memory.
	DefaultKeepBytes = 64 << 20
)

// entryCost is about the memory of an entry with its node, in bytes.
const entryCost = 256

// ReadOptions say how a layer is read. The zero value is ready to use.
type ReadOptions struct {
	// MaxEntries, MaxContentBytes and MaxSparseBytes, unless 0, replace the constants of
	// the same names.
	MaxEntries      int
	MaxContentBytes int64
	MaxSparseBytes  int64
	// Keep, if set, reports whether to keep the content of a file. Files that are not text
	// or larger than [sandbox.MaxPatchFileBytes] are never kept, and neither is content
	// that exceeds KeepBytes, which is [DefaultKeepBytes] if it is 0.
	Keep      func(path string) bool
	KeepBytes int64
}

// Read makes the index of a layer from the tar stream that gVisor writes. A stream that
// exceeds a bound is refused with [sandbox.CodeTooLarge]; one that is malformed, or ends
// before its end marker, with a plain error. Read reads r up to the end of the tar
// stream. To stop it, end ctx and close r: holes are not read from r.
func Read(ctx context.Context, r io.Reader, opts ReadOptions) (*Layer, error) {
	opts.MaxEntries = cmp.Or(opts.MaxEntries, MaxEntries)
	opts.MaxContentBytes = cmp.Or(opts.MaxContentBytes, MaxContentBytes)
	opts.MaxSparseBytes = cmp.Or(opts.MaxSparseBytes, MaxSparseBytes)
	opts.KeepBytes = cmp.Or(opts.KeepBytes, DefaultKeepBytes)
	rd := reader{opts: opts, layer: &Layer{}}
	err := walkTar(ctx, r, func(h *tar.Header, path string, content io.Reader) error {
		if err := rd.add(h, path, content); err != nil {
			return wrapPath(h.Name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rd.layer, nil
}

// wrapPath adds the entry to an error, unless the error is for users.
func wrapPath(name string, err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	return fmt.Errorf("layer: entry %.200q: %w", name, err)
}

func tooLarge(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeTooLarge, format, args...)
}

// countingReader counts bytes. It hides that a file can seek, so that a tar reader cannot
// skip missing content.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// walkTar calls f for each entry of a layer's tar stream with its clean absolute path, and
// makes sure that the stream is complete.
func walkTar(ctx context.Context, r io.Reader, f func(h *tar.Header, path string, content io.Reader) error) error {
	counted := &countingReader{r: r}
	tr := tar.NewReader(counted)
	content := &contextReader{ctx, tr}
	for {
		before := counted.n
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The end marker is two blocks; package tar does not insist on it.
			if counted.n-before < 1024 {
				return errors.New("layer: the stream ends before its end marker")
			}
			return nil
		}
		if err != nil && (h == nil || !errors.Is(err, tar.ErrInsecurePath)) {
			return fmt.Errorf("layer: %w", err)
		}
		path, err := cleanName(h.Name, h.Typeflag)
		if err != nil {
			return wrapPath(h.Name, err)
		}
		if err := f(h, path, content); err != nil {
			return err
		}
		if _, err := copyContent(io.Discard, content); err != nil {
			return fmt.Errorf("layer: %w", err)
		}
	}
}

// cleanName turns a name in the stream, "./etc/hosts", into "/etc/hosts".
func cleanName(name string, typeflag byte) (string, error) {
	if len(name) > MaxPathBytes {
		return "", tooLarge("a path in the sandbox is longer than %d bytes; shorten it or remove it", MaxPathBytes)
	}
	if typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
		if name == "." {
			return "/", nil
		}
	}
	name = strings.TrimPrefix(name, "./")
	parts := 0
	for part := range strings.SplitSeq(name, "/") {
		switch parts++; {
		case part == "" || part == "." || part == "..":
			return "", errors.New("the name is not clean")
		case strings.IndexByte(part, 0) >= 0:
			return "", errors.New("the name holds a NUL byte")
		case len(part) > MaxNameBytes:
			return "", tooLarge("a file name in the sandbox is longer than %d bytes; shorten it or remove it", MaxNameBytes)
		}
	}
	if parts > MaxDepth {
		return "", tooLarge("the sandbox has directories nested more than %d deep; remove some", MaxDepth)
	}
	return "/" + name, nil
}

// reader builds a Layer.
type reader struct {
	opts   ReadOptions
	layer  *Layer
	cost   int64
	sparse int64 // bytes of files with holes
	kept   int64
}

func (rd *reader) add(h *tar.Header, path string, content io.Reader) error {
	l := rd.layer
	if l.entries++; l.entries > rd.opts.MaxEntries {
		return tooLarge("the sandbox has changed more than %d files; remove some of them", rd.opts.MaxEntries)
	}
	rd.cost += entryCost + int64(len(path)+len(h.Linkname))
	if rd.cost > MaxIndexBytes {
		return tooLarge("the sandbox has changed too many files to compare; remove some of them")
	}
	entry, err := rd.entry(h, path, content)
	if err != nil {
		return err
	}
	return l.insert(path, entry)
}

// insert adds an entry at a path, once. Directories come before their content.
func (l *Layer) insert(path string, entry *Entry) error {
	if path == "/" {
		if l.root != nil {
			return errors.New("the root is not the first entry, or not the only one")
		}
		l.root = &node{entry: entry}
		return nil
	}
	cut := strings.LastIndexByte(path, '/')
	parent := l.find(path[:cut])
	if l.root == nil || parent == nil || parent.entry.Kind != KindDirectory {
		return errors.New("its directory does not come before it")
	}
	name := path[cut+1:]
	if parent.children[name] != nil {
		return errors.New("it is there twice")
	}
	if parent.children == nil {
		parent.children = make(map[string]*node)
	}
	// A copy, so that the name does not keep the whole path in memory.
	parent.children[strings.Clone(name)] = &node{entry: entry}
	return nil
}

// entry returns the entry for a header and its content.
func (rd *reader) entry(h *tar.Header, path string, content io.Reader) (*Entry, error) {
	if h.Typeflag == tar.TypeLink {
		target, err := cleanName(h.Linkname, h.Typeflag)
		if err != nil {
			return nil, fmt.Errorf("link target: %w", err)
		}
		e := rd.layer.Entry(target)
		if rd.layer.root == nil || e == nil || e.Kind == KindDirectory {
			return nil, errors.New("the target of the hard link does not come before it")
		}
		return e, nil
	}
	e, err := metadata(h)
	if err != nil {
		return nil, err
	}
	if path == "/" && e.Kind != KindDirectory {
		return nil, errors.New("the root is not a directory")
	}
	if e.Kind == KindFile {
		rd.layer.bytes += e.Size
		if e.Size > rd.opts.MaxContentBytes || rd.layer.bytes > rd.opts.MaxContentBytes {
			return nil, tooLarge("the files that the sandbox has changed are larger than %d bytes together; remove some of them", rd.opts.MaxContentBytes)
		}
		if e.sparse = isSparse(h); e.sparse {
			rd.sparse += e.Size
		}
		if rd.sparse > rd.opts.MaxSparseBytes {
			return nil, tooLarge("the changed files with holes are larger than %d bytes together; remove some of them", rd.opts.MaxSparseBytes)
		}
		if err := rd.content(e, path, content); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// metadata returns the entry for a header, without the content.
func metadata(h *tar.Header) (*Entry, error) {
	e := &Entry{Mode: uint32(h.Mode & 0o7777), ModTime: h.ModTime}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Kind, e.Size = KindFile, h.Size
	case tar.TypeDir:
		e.Kind, e.Opaque = KindDirectory, h.PAXRecords[OverlayOpaque] == "y"
	case tar.TypeSymlink:
		e.Kind = KindSymlink
		if h.Linkname == "" || len(h.Linkname) > MaxPathBytes || strings.IndexByte(h.Linkname, 0) >= 0 {
			return nil, errors.New("a symbolic link has no proper target")
		}
		e.Target = strings.Clone(h.Linkname)
	case tar.TypeFifo:
		e.Kind = KindFIFO
	case tar.TypeChar:
		e.Kind = KindCharDevice
	case tar.TypeBlock:
		e.Kind = KindBlockDevice
	default:
		return nil, fmt.Errorf("type %q is unknown", h.Typeflag)
	}
	if e.Kind != KindFile && h.Size != 0 {
		return nil, errors.New("it has content, but is not a regular file")
	}
	var ok [4]bool
	e.UID, ok[0] = id(int64(h.Uid))
	e.GID, ok[1] = id(int64(h.Gid))
	e.Major, ok[2] = id(h.Devmajor)
	e.Minor, ok[3] = id(h.Devminor)
	if ok != [4]bool{true, true, true, true} {
		return nil, errors.New("an owner or device number is out of range")
	}
	if e.Kind == KindCharDevice && e.Major == 0 && e.Minor == 0 {
		e.Kind = KindWhiteout
	}
	if e.Kind != KindCharDevice && e.Kind != KindBlockDevice {
		e.Major, e.Minor = 0, 0
	}
	return e, nil
}

func id(n int64) (uint32, bool) { return uint32(n), n >= 0 && n <= math.MaxUint32 }

// content hashes a file, and keeps its content if the options say so.
func (rd *reader) content(e *Entry, path string, content io.Reader) error {
	keep := rd.opts.Keep != nil && e.Size <= sandbox.MaxPatchFileBytes && rd.kept+e.Size <= rd.opts.KeepBytes && rd.opts.Keep(path)
	var text bytes.Buffer
	whole := io.Discard
	if keep {
		whole = &text
	}
	sum, err := hashContent(content, whole, io.Discard)
	if err != nil {
		return err
	}
	if sum.size != e.Size {
		return fmt.Errorf("it has %d bytes and should have %d", sum.size, e.Size)
	}
	e.hash, e.hashed, e.pageBytes = sum.hash, true, sum.pageBytes
	if keep && isText(text.Bytes()) {
		e.content, e.kept = bytes.Clone(text.Bytes()), true
		rd.kept += e.Size
	}
	return nil
}

// isText reports whether content can be shown as lines of text.
func isText(b []byte) bool { return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) }
