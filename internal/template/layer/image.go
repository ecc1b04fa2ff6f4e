package layer

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// ImageOptions says what of a sandbox's changes becomes a layer of an image.
type ImageOptions struct {
	// Bound are absolute paths that the template shows from elsewhere and that
	// a layer cannot change.
	Bound []string
	// Trust leaves out the files in which certificate authorities are: one of
	// the sandbox's own is among them.
	Trust bool
	// MaxBytes bounds the content; 0 is [MaxContentBytes].
	MaxBytes int64
}

// WriteImage turns the tar stream of what a sandbox has changed into a layer of
// an OCI image. What is each sandbox's own is left out, and so are devices,
// pipes and memory. The stream is hostile: errors for callers are as of [Read].
func WriteImage(w io.Writer, changes io.Reader, opts ImageOptions) error {
	opts.MaxBytes = cmp.Or(opts.MaxBytes, MaxContentBytes)
	iw := imageWriter{out: tar.NewWriter(w), opts: opts, left: opts.MaxBytes, written: map[string]bool{}}
	err := walkTar(changes, func(h *tar.Header, p string, content io.Reader) error {
		if err := iw.add(h, p, content); err != nil {
			return wrapPath(h.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(iw.bound) > 0 {
		return sandbox.Errorf(sandbox.CodeUnsupported, "it changed %s, which is the machine's own and cannot be changed in a template of it; install below /home/user, /opt or /workspace, or begin from debian or an image", strings.Join(iw.bound, ", "))
	}
	return iw.out.Close()
}

type imageWriter struct {
	out     *tar.Writer
	opts    ImageOptions
	left    int64
	entries int
	// written are regular files by their paths, which hard links may name.
	written map[string]bool
	bound   []string // what was changed there, the first few
}

func (iw *imageWriter) add(h *tar.Header, p string, content io.Reader) error {
	if iw.entries++; iw.entries > MaxEntries {
		return tooLarge("more than %d files were changed; remove some of them", MaxEntries)
	}
	// What is left out counts too: a few bytes of stream can stand for a file of
	// any size, which is read to its end.
	if iw.left -= h.Size; h.Size < 0 || iw.left < 0 {
		return tooLarge("the changed files are larger than %d bytes together; remove some of them", iw.opts.MaxBytes)
	}
	if h.Typeflag == tar.TypeLink {
		return iw.link(h, p)
	}
	// Holes are written out: what they stand for counts.
	maps.DeleteFunc(h.PAXRecords, func(k, _ string) bool { return strings.HasPrefix(k, "GNU.sparse.") })
	e, err := metadata(h)
	if err != nil {
		return err
	}
	switch {
	case p == "/" || isExcluded(p) || iw.belowExcluded(p) || iw.own(p):
		return nil
	case iw.belowBound(p):
		return iw.refuse(p, e)
	case strings.HasPrefix(path.Base(p), Whiteout):
		return sandbox.Errorf(sandbox.CodeInvalid, "a file has the name %.80q, which stands for a removed one in images; remove or rename it", p)
	}
	switch e.Kind {
	case KindDirectory:
		if err := iw.header(&tar.Header{Typeflag: tar.TypeDir, Name: p[1:] + "/"}, e); err != nil || !e.Opaque {
			return err
		}
		return iw.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p[1:] + "/" + Opaque, Mode: 0o600})
	case KindSymlink:
		return iw.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: p[1:], Linkname: e.Target}, e)
	case KindFile:
		return iw.file(p, e, content)
	}
	// A whiteout, or what takes a file's place and has none in a template.
	dir, name := path.Split(p)
	return iw.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir[1:] + Whiteout + name, Mode: 0o600})
}

func (iw *imageWriter) file(p string, e *Entry, content io.Reader) error {
	if err := iw.header(&tar.Header{Typeflag: tar.TypeReg, Name: p[1:], Size: e.Size}, e); err != nil {
		return err
	}
	if n, err := copyContent(iw.out, content); err != nil {
		return err
	} else if n != e.Size {
		return fmt.Errorf("it has %d bytes and should have %d", n, e.Size)
	}
	iw.written[p] = true
	return nil
}

func (iw *imageWriter) header(h *tar.Header, e *Entry) error {
	h.Mode, h.Uid, h.Gid, h.ModTime = int64(e.Mode), int(e.UID), int(e.GID), e.ModTime
	h.Format = tar.FormatPAX
	return iw.out.WriteHeader(h)
}

// link writes one more name of a file that was written. One of a file that was
// left out is left out too.
func (iw *imageWriter) link(h *tar.Header, p string) error {
	target, err := cleanName(h.Linkname, h.Typeflag)
	if err != nil {
		return fmt.Errorf("link target: %w", err)
	}
	switch {
	case isExcluded(p) || iw.belowExcluded(p) || iw.own(p):
		return nil
	case iw.belowBound(p):
		return iw.refuse(p, &Entry{Kind: KindFile})
	case !iw.written[target]:
		return nil
	case strings.HasPrefix(path.Base(p), Whiteout):
		return errors.New("its name stands for a removed file")
	}
	iw.written[p] = true
	return iw.out.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: p[1:], Linkname: target[1:], Format: tar.FormatPAX})
}

// own says of a path that what is there is each sandbox's own.
func (iw *imageWriter) own(p string) bool {
	authorities := strings.HasSuffix(p, ".crt") || strings.HasSuffix(p, ".pem")
	return named(p) && (iw.opts.Trust || !authorities)
}

func (iw *imageWriter) belowExcluded(p string) bool {
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if isExcluded(dir) {
			return true
		}
	}
	return false
}

func (iw *imageWriter) belowBound(p string) bool {
	return slices.ContainsFunc(iw.opts.Bound, func(b string) bool { return p == b || below(p, b) })
}

// refuse notes a change of what cannot be changed. Directories are copied up
// for what is in them, Python writes its caches where it may, and where the
// agent has put a file in its place, the removal of the name that it had first
// is left: also of files that are the sandbox's own.
func (iw *imageWriter) refuse(p string, e *Entry) error {
	staged := strings.HasPrefix(path.Base(p), ".cove-") && strings.HasSuffix(p, ".tmp")
	if e.Kind == KindDirectory && !e.Opaque || e.Kind == KindWhiteout && staged || strings.Contains(p, "/__pycache__") {
		return nil
	}
	if len(iw.bound) < 3 {
		iw.bound = append(iw.bound, p)
	} else if len(iw.bound) == 3 {
		iw.bound = append(iw.bound, "and more")
	}
	return nil
}
