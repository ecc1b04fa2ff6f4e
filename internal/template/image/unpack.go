package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
)

// unpack writes a tar stream into the tree. The stream is hostile: paths and links
// stay inside the root, device files are not made at all, extended attributes are
// dropped, and size and number are bounded. Entries for which skip is true are left
// out. progress is called with the bytes written so far.
func unpack(t *tree, r io.Reader, skip func(string) bool, progress func(int64)) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		p, err := cleanPath(h.Name)
		if err != nil {
			return err
		}
		if skip != nil && skip(p) {
			continue
		}
		if err := unpackEntry(t, h, p, tr); err != nil {
			return err
		}
		if progress != nil {
			progress(t.bytes)
		}
	}
}

func unpackEntry(t *tree, h *tar.Header, p string, r io.Reader) error {
	if h.Uid < 0 || h.Gid < 0 || h.Uid > 1<<31-2 || h.Gid > 1<<31-2 {
		return fmt.Errorf("%w: owner of %.80q", errHostile, p)
	}
	m := meta{mode: uint32(h.Mode & 0o7777), uid: h.Uid, gid: h.Gid, mtime: h.ModTime}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.mkdir(p, m)
	case tar.TypeReg, tar.TypeGNUSparse:
		return t.file(p, m, h.Size, r)
	case tar.TypeSymlink:
		return t.symlink(p, h.Linkname, m)
	case tar.TypeLink:
		return t.hardlink(p, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		// A sandbox has a /dev of its own; elsewhere devices have no honest use.
		if strings.HasPrefix(p, "dev/") {
			return nil
		}
		return fmt.Errorf("%w: device or pipe %.80q", errHostile, p)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%w: %.80q is of unknown type %q", errHostile, p, h.Typeflag)
}
