package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxWindow bounds the decoder's memory, maxDirs that of the list of directories.
	maxWindow = 128 << 20
	maxDirs   = 4 << 20
	// leaveFree is how much disk space a restore leaves free, in bytes.
	leaveFree = 64 << 20
	// hole is the length of a run of zeros that becomes a hole in a file.
	hole = 64 << 10
)

// content matches paths whose content is arbitrary: the files of volumes and templates.
// There are no links elsewhere.
var content = lazyregexp.New(`^(volumes/[a-z0-9][a-z0-9-]{0,62}/data|templates)/`)

// reader unpacks an archive.
type reader struct {
	ctx      context.Context
	root     *os.Root
	tar      *tar.Reader
	hash     hash.Hash
	room     int64 // bytes left to write
	bytes    int64
	progress func(int64, string)
	// dirs has the headers of the directories that were made, by name, and order their
	// names in the order in which they were made. Entries are created only in these
	// directories, so that no link is ever followed.
	dirs  map[string]*tar.Header
	order []string
}

// unpack unpacks an archive into an empty directory, and verifies its sum.
func unpack(ctx context.Context, from io.Reader, dir string, room int64, stateDir string, progress func(int64, string)) (About, error) {
	var about About
	zip, err := zstd.NewReader(from, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return about, bad("%v", err)
	}
	defer zip.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return about, err
	}
	defer root.Close()
	r := &reader{ctx: ctx, root: root, hash: sha256.New(), room: room - leaveFree, progress: progress, dirs: map[string]*tar.Header{}}
	r.tar = tar.NewReader(io.TeeReader(zip, r.hash))
	h, err := r.next()
	if err != nil || h.Name != aboutName {
		return about, bad("it does not begin like one")
	}
	if err := readJSON(r.tar, h, &about); err != nil {
		return about, err
	}
	if err := r.drain(); err != nil {
		return about, err
	}
	if about.Format != format {
		return about, sandbox.Errorf(sandbox.CodeUnsupported, "the backup has format %d, this cove knows %d; use the version that made it (%s)", about.Format, format, about.Version)
	}
	if about.StateDir != stateDir {
		return about, sandbox.Errorf(sandbox.CodeInvalid, "the backup is of the state directory %s, which kept states of sandboxes need to be in; restore it with --state-dir %s", about.StateDir, about.StateDir)
	}
	if err := r.all(); err != nil {
		return about, err
	}
	if _, err := root.Lstat(database); err != nil {
		return about, bad("it has no %s", database)
	}
	return about, nil
}

// next advances to the next entry.
func (r *reader) next() (*tar.Header, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	h, err := r.tar.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, bad("its end is missing")
	case err != nil:
		return nil, bad("%v", err)
	}
	return h, nil
}

// drain reads the rest of an entry, which the sum covers.
func (r *reader) drain() error {
	if _, err := io.Copy(io.Discard, r.tar); err != nil {
		return bad("%v", err)
	}
	return nil
}

// all unpacks the entries up to the sum.
func (r *reader) all() error {
	for {
		have := r.hash.Sum(nil)
		h, err := r.next()
		if err != nil {
			return err
		}
		if h.Name == sumName {
			return r.end(h, hex.EncodeToString(have))
		}
		if err := r.entry(h); err != nil {
			if _, ok := errors.AsType[*sandbox.Error](err); ok || r.ctx.Err() != nil {
				return err
			}
			return fmt.Errorf("restore %s: %w", h.Name, err)
		}
		if err := r.drain(); err != nil {
			return err
		}
	}
}

// end verifies the sum, and sets the attributes of directories.
func (r *reader) end(h *tar.Header, have string) error {
	var want sum
	if err := readJSON(r.tar, h, &want); err != nil {
		return err
	}
	if want.SHA256 != have {
		return bad("it is damaged: its sum is %s instead of %s", have, want.SHA256)
	}
	if err := r.drain(); err != nil {
		return err
	}
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		return bad("it continues after its end")
	}
	for _, name := range slices.Backward(r.order) {
		f, err := r.root.Open(name)
		if err != nil {
			return err
		}
		if err := errors.Join(r.attributes(f, r.dirs[name]), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// checkName returns the name of an entry if it may be created: in a directory of this
// archive, or one of the known names at the top.
func (r *reader) checkName(h *tar.Header) (string, error) {
	name := strings.TrimSuffix(h.Name, "/")
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) || len(name) > maxPath+256 {
		return "", bad("it has a file named %.200q", h.Name)
	}
	if in := path.Dir(name); in != "." && r.dirs[in] == nil {
		return "", bad("%.200q is in no directory", h.Name)
	}
	if top, _, below := strings.Cut(name, "/"); !below && h.Typeflag != tar.TypeDir {
		if top != database && top != configName && !slices.Contains(keys, top) {
			return "", bad("it has a file named %.200q", h.Name)
		}
	} else if !slices.Contains([]string{"engine", "volumes", "templates"}, top) {
		return "", bad("it has a directory named %.200q", h.Name)
	}
	return name, nil
}

func (r *reader) entry(h *tar.Header) error {
	name, err := r.checkName(h)
	if err != nil {
		return err
	}
	if h.Size < 0 || h.Size > r.room {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the disk has too little space for the backup; free space, and try again")
	}
	r.room -= max(h.Size, 4096)
	switch h.Typeflag {
	case tar.TypeDir:
		if len(r.dirs) >= maxDirs {
			return bad("it has more than %d directories", maxDirs)
		}
		if err := r.root.Mkdir(name, 0o700); err != nil {
			return duplicate(err, h)
		}
		r.dirs[name] = h
		r.order = append(r.order, name)
		return nil
	case tar.TypeReg:
		return r.file(name, h)
	case tar.TypeSymlink:
		if !content.MatchString(name) {
			break
		}
		if err := r.root.Symlink(h.Linkname, name); err != nil {
			return duplicate(err, h)
		}
		if os.Geteuid() == 0 {
			return r.root.Lchown(name, h.Uid, h.Gid)
		}
		return nil
	case tar.TypeLink:
		if !content.MatchString(name) || tree(h.Linkname) != tree(name) || !fs.ValidPath(h.Linkname) || r.dirs[path.Dir(h.Linkname)] == nil {
			break
		}
		if info, err := r.root.Lstat(h.Linkname); err != nil || !info.Mode().IsRegular() {
			break
		}
		return duplicate(r.root.Link(h.Linkname, name), h)
	}
	return bad("%.200q is a link or a device", h.Name)
}

// tree returns the volume that a name is in, or the templates: hard links stay within one
// tree.
func tree(name string) string { return content.FindString(name) }

// duplicate explains an error for a name that exists already.
func duplicate(err error, h *tar.Header) error {
	if errors.Is(err, fs.ErrExist) {
		return bad("it has %.200q twice", h.Name)
	}
	return err
}

func (r *reader) file(name string, h *tar.Header) error {
	f, err := r.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return duplicate(err, h)
	}
	err = r.copy(f, h)
	if err == nil {
		err = r.attributes(f, h)
	}
	return errors.Join(err, f.Close())
}

// copy writes the content of an entry, with holes for long runs of zeros.
func (r *reader) copy(f *os.File, h *tar.Header) error {
	buf, empty := make([]byte, hole), make([]byte, hole)
	for {
		n, err := io.ReadFull(r.tar, buf)
		if n == hole && bytes.Equal(buf, empty) {
			if _, err := f.Seek(hole, io.SeekCurrent); err != nil {
				return err
			}
		} else if _, werr := f.Write(buf[:n]); werr != nil {
			return werr
		}
		r.bytes += int64(n)
		r.progress(r.bytes, h.Name)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if done, serr := f.Seek(0, io.SeekCurrent); serr != nil || done != h.Size {
				return bad("%.200q is cut off", h.Name)
			}
			return f.Truncate(h.Size)
		case err != nil:
			return bad("%v", err)
		case r.ctx.Err() != nil:
			return r.ctx.Err()
		}
	}
}

// attributes sets the owner, mode, extended attributes and time of a file or directory.
func (r *reader) attributes(f *os.File, h *tar.Header) error {
	if os.Geteuid() == 0 {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return err
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || !keepsXattr(name) {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	if err := unix.Fchmod(int(f.Fd()), uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	if h.ModTime.Before(time.Unix(0, 0)) {
		return nil // no file of ours is that old
	}
	at := unix.NsecToTimeval(h.ModTime.UnixNano())
	return unix.Futimes(int(f.Fd()), []unix.Timeval{at, at})
}
