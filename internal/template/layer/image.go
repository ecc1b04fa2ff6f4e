package layer

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// ImageOptions says which changes of a sandbox become a layer of an image.
type ImageOptions struct {
	// Bound are absolute paths that the template binds from the host and that a layer
	// cannot change.
	Bound []string
	// Trust leaves out the files of certificate authorities, which include the sandbox's
	// own authority.
	Trust bool
	// MaxBytes bounds the content; 0 is [MaxContentBytes].
	MaxBytes int64
}

// WriteImage turns the tar stream of a sandbox's changes into a layer of an OCI image.
// Files that belong to each sandbox itself are left out, and so are devices, pipes and
// memory. The stream is hostile: errors are as those of [Read].
func WriteImage(ctx context.Context, w io.Writer, changes io.Reader, opts ImageOptions) error {
	opts.MaxBytes = cmp.Or(opts.MaxBytes, MaxContentBytes)
	iw := imageWriter{out: tar.NewWriter(w), opts: opts, left: opts.MaxBytes, written: map[string]bool{}}
	err := walkTar(ctx, changes, func(h *tar.Header, p string, content io.Reader) error {
		if err := iw.add(h, p, content); err != nil {
			return wrapPath(h.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(iw.bound) > 0 {
		return sandbox.Errorf(sandbox.CodeUnsupported, "it changed %s, which belongs to the machine and cannot be changed in a template of it; install below /home/user, /opt or /workspace, or start from debian or an image", strings.Join(iw.bound, ", "))
	}
	return iw.out.Close()
}

type imageWriter struct {
	out     *tar.Writer
	opts    ImageOptions
	left    int64
	entries int
	// written has the paths of regular files, which hard links may refer to.
	written map[string]bool
	bound   []string // the first changed paths below Bound
}

func (iw *imageWriter) add(h *tar.Header, p string, content io.Reader) error {
	if iw.entries++; iw.entries > MaxEntries {
		return tooLarge("more than %d files were changed; remove some of them", MaxEntries)
	}
	// Files that are left out count too: a few bytes of stream can stand for a file of any
	// size, which is read to its end. Holes are written as zeros.
	if iw.left -= h.Size; h.Size < 0 || iw.left < 0 {
		return tooLarge("the changed files are larger than %d bytes together; remove some of them", iw.opts.MaxBytes)
	}
	if h.Typeflag == tar.TypeLink {
		return iw.link(h, p)
	}
	e, err := metadata(h)
	if err != nil {
		return err
	}
	switch {
	case p == "/" || isExcluded(p) || iw.belowExcluded(p) || iw.leavesOut(p):
		return nil
	case iw.belowBound(p):
		return iw.refuse(p, e)
	case strings.HasPrefix(path.Base(p), Whiteout):
		return sandbox.Errorf(sandbox.CodeInvalid, "a file is named %.80q, which marks a removed file in images; remove or rename it", p)
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
	// A whiteout, or a file that hides the template's file and cannot be in a template.
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

// link writes a hard link to a file that was written. Links to files that were left out
// are left out too.
func (iw *imageWriter) link(h *tar.Header, p string) error {
	target, err := cleanName(h.Linkname, h.Typeflag)
	if err != nil {
		return fmt.Errorf("link target: %w", err)
	}
	switch {
	case isExcluded(p) || iw.belowExcluded(p) || iw.leavesOut(p):
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

// leavesOut reports whether a path belongs to each sandbox itself, and is left out.
func (iw *imageWriter) leavesOut(p string) bool {
	authorities := strings.HasSuffix(p, ".crt") || strings.HasSuffix(p, ".pem")
	return sandboxOwned(p) && (iw.opts.Trust || !authorities)
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

// refuse records a change of a path that cannot be changed. Some changes are harmless:
// overlays copy up directories for changes of their content, Python writes caches
// wherever it may, and when the agent renames a file into place, the removal of its
// temporary name remains, even if the file belongs to the sandbox itself.
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
