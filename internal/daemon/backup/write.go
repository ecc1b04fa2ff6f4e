package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	// maxDepth and maxPath bound the tree of a volume, which is hostile.
	maxDepth = 512
	maxPath  = 8 << 10
	// xattrPrefix is the prefix of tar's records for extended attributes.
	xattrPrefix = "SCHILY.xattr."
	maxXattr    = 64 << 10
)

// sum is the last entry of an archive.
type sum struct {
	SHA256 string `json:"sha256"`
}

// archive writes the entries of a backup.
type archive struct {
	ctx   context.Context
	o     *Options
	tar   *tar.Writer
	zip   *zstd.Encoder
	hash  hash.Hash
	about About
	bytes int64
	links map[inode]string // names in the archive of files with several hard links
}

type inode struct{ dev, ino uint64 }

func newArchive(ctx context.Context, w io.Writer, o *Options) (*archive, error) {
	zip, err := zstd.NewWriter(w, zstd.WithEncoderCRC(true))
	if err != nil {
		return nil, err
	}
	a := &archive{ctx: ctx, o: o, zip: zip, hash: sha256.New(), links: map[inode]string{}}
	a.tar = tar.NewWriter(io.MultiWriter(zip, a.hash))
	a.about = About{Format: format, Version: o.Version, StateDir: filepath.Clean(o.StateDir), CreatedAt: time.Now().UTC(), Templates: !o.NoTemplates}
	return a, nil
}

// fill writes all entries but the last.
func (a *archive) fill(w *workDirs, k frozen) error {
	if err := a.json(aboutName, a.about); err != nil {
		return err
	}
	for _, dir := range []string{"engine", "engine/checkpoints", "engine/bin", "volumes"} {
		if err := a.dir(dir); err != nil {
			return err
		}
	}
	if err := a.file(w.database, database, database); err != nil {
		return err
	}
	for _, name := range keys {
		if err := a.file(a.o.StateDir, name, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if a.o.Config != "" {
		if err := a.file(filepath.Dir(a.o.Config), filepath.Base(a.o.Config), configName); err != nil {
			return err
		}
	}
	for _, name := range k.programs {
		if err := a.file(a.o.StateDir, "engine/bin/"+name, "engine/bin/"+name); errors.Is(err, fs.ErrNotExist) {
			a.o.Warn("the program " + name + " is gone: of the states that it kept, only the files can be restored")
		} else if err != nil {
			return err
		}
	}
	if err := a.subtree(a.o.StateDir, "engine/agent", "engine/agent"); err != nil {
		return err
	}
	for _, id := range k.checkpoints {
		if err := a.subtree(w.checkpoints, id, "engine/checkpoints/"+id); err != nil {
			return err
		}
	}
	if !a.o.NoTemplates {
		if err := a.dir("templates"); err != nil {
			return err
		}
		for _, dir := range templateDirs {
			if err := a.subtree(filepath.Join(a.o.StateDir, "templates"), dir, "templates/"+dir); err != nil {
				return err
			}
		}
	}
	for _, id := range k.volumes {
		clear(a.links)
		if err := a.subtree(filepath.Join(a.o.StateDir, "volumes"), id, "volumes/"+id); err != nil {
			return err
		}
	}
	return nil
}

// finish writes the sum of what was written, and closes the archive.
func (a *archive) finish() error {
	// The padding of the last entry is not in the sum: it is not written yet, and
	// [reader.all] has not read it when it computes the sum.
	return errors.Join(a.json(sumName, sum{hex.EncodeToString(a.hash.Sum(nil))}), a.tar.Close(), a.zip.Close())
}

func (a *archive) json(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: a.about.CreatedAt}
	return a.put(h, bytes.NewReader(data))
}

func (a *archive) dir(name string) error {
	return a.put(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: a.about.CreatedAt, Uid: os.Geteuid(), Gid: os.Getegid()}, nil)
}

// put writes an entry with exactly the size in its header: a file that has shrunk meanwhile
// is padded with zeros.
func (a *archive) put(h *tar.Header, r io.Reader) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	h.Format = tar.FormatPAX
	if err := a.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("back up %s: %w", h.Name, err)
	}
	if r == nil || h.Size == 0 {
		return nil
	}
	n, err := io.Copy(a.tar, &progressReader{a, io.LimitReader(r, h.Size), h.Name})
	if err == nil && n < h.Size {
		a.o.Warn(h.Name + " changed while it was read; zeros stand for what is gone")
		_, err = io.CopyN(a.tar, zeros{}, h.Size-n)
	}
	if err != nil {
		return fmt.Errorf("back up %s: %w", h.Name, err)
	}
	return nil
}

// progressReader reports the progress of a copy, and fails when its context has ended.
type progressReader struct {
	a    *archive
	r    io.Reader
	name string
}

func (c *progressReader) Read(p []byte) (int, error) {
	if err := c.a.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.a.bytes += int64(n)
	c.a.o.Progress(c.a.bytes, c.name)
	return n, err
}

// zeros is an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// file writes a regular file of a directory.
func (a *archive) file(dir, name, as string) error {
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("back up %s: %w", as, err)
	}
	f := os.NewFile(uintptr(fd), as)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("back up %s: it is not a regular file", as)
	}
	h := header(&st, as)
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	return a.put(h, f)
}

// subtree writes a directory with everything below it, if it exists.
func (a *archive) subtree(dir, name, as string) error {
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(at)
		err = a.entry(at, name, as, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// entry writes an entry of a directory. It follows no links, and leaves out files that
// vanish meanwhile, pipes, sockets and devices.
func (a *archive) entry(at int, name, as string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unlessGone(err)
	}
	if depth > maxDepth || len(as) > maxPath {
		a.o.Warn(fmt.Sprintf("%.200s is too deep, and is left out", as))
		return nil
	}
	h := header(&st, as)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return a.tree(at, name, h, depth)
	case unix.S_IFREG:
		return a.regular(at, name, &st, h)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(at, name, buf)
		if err != nil {
			return unlessGone(err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
		return a.put(h, nil)
	}
	return nil
}

// unlessGone returns err, or nil if err means that a file has vanished or changed its type.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func (a *archive) tree(at int, name string, h *tar.Header, depth int) error {
	as := h.Name
	h.Typeflag, h.Name = tar.TypeDir, as+"/"
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrPermission) {
		a.o.Warn(as + " cannot be read: what is in it is left out")
		return a.put(h, nil)
	}
	if err != nil {
		return unlessGone(err)
	}
	f := os.NewFile(uintptr(fd), as)
	defer f.Close()
	a.xattrs(fd, h)
	if err := a.put(h, nil); err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return unlessGone(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := a.entry(fd, n, path.Join(as, n), depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) regular(at int, name string, st *unix.Stat_t, h *tar.Header) error {
	h.Typeflag = tar.TypeReg
	id := inode{st.Dev, st.Ino}
	if first, ok := a.links[id]; ok && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return a.put(h, nil)
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrPermission) {
		if st.Size > 0 {
			a.o.Warn(h.Name + " cannot be read, and is left out")
			return nil
		}
		return a.put(h, nil)
	}
	if err != nil {
		return unlessGone(err)
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	if err := unix.Fstat(fd, st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	h.Size = st.Size
	a.xattrs(fd, h)
	if err := a.put(h, f); err != nil {
		return err
	}
	if st.Nlink > 1 {
		a.links[id] = h.Name
	}
	return nil
}

func header(st *unix.Stat_t, as string) *tar.Header {
	return &tar.Header{
		Name: as, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()),
	}
}

// keepsXattr reports whether an extended attribute is part of a file's content.
func keepsXattr(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability"
}

// xattrs adds extended attributes to a header.
func (a *archive) xattrs(fd int, h *tar.Header) {
	buf := make([]byte, maxXattr)
	n, err := unix.Flistxattr(fd, buf)
	if err != nil || n == 0 {
		return // most file systems and files have none
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		if !keepsXattr(name) || strings.Contains(name, "=") {
			continue
		}
		value := make([]byte, maxXattr)
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrPrefix+name] = string(value[:n])
	}
}
