package image

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Here returns a root as this provider has it: records and checkpoints of another machine,
// or of a state directory that was elsewhere, name other places.
func (p *Provider) Here(r engine.Root) engine.Root {
	if !validDigest.MatchString(r.Digest) {
		return r
	}
	r.Dir = p.rootfsDir(r.Digest)
	r.Binds = slices.Clone(r.Binds)
	for i, b := range r.Binds {
		if b.Mask {
			r.Binds[i].Source = p.mask(filepath.Base(b.Source))
		}
	}
	return r
}

// HasRoot reports whether the root with a digest is here. It is then not collected for a
// while.
func (p *Provider) HasRoot(digest string) bool {
	return validDigest.MatchString(digest) && p.hold(digest) == nil
}

// PackRoot writes a root as a tar stream, in which the same root always is the same
// stream, but for the times of its files. The error is a not_found error if there is no
// such root.
func (p *Provider) PackRoot(ctx context.Context, digest string, w io.Writer) error {
	if !p.HasRoot(digest) {
		return sandbox.Wrap(sandbox.CodeNotFound, fs.ErrNotExist, fmt.Sprintf("there is no root %.80q", digest))
	}
	root, err := os.OpenRoot(p.rootfsDir(digest))
	if err != nil {
		return err
	}
	defer root.Close()
	buf := bufio.NewWriterSize(w, 256<<10)
	k := &packer{ctx: ctx, own: p.own, w: tar.NewWriter(buf), links: map[[2]uint64]string{}}
	if err := k.dir(root, "."); err != nil {
		return fmt.Errorf("pack root %s: %w", digest, err)
	}
	return errors.Join(k.w.Close(), buf.Flush())
}

// packer writes a directory as a tar stream.
type packer struct {
	ctx   context.Context
	own   bool // of [Provider]
	w     *tar.Writer
	links map[[2]uint64]string // names of files that have several
}

func (k *packer) dir(dir *os.Root, at string) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	if err := k.w.WriteHeader(k.header(tar.TypeDir, at, &st)); err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := k.entry(dir, int(d.Fd()), name, path.Join(at, name)); err != nil {
			return err
		}
	}
	return nil
}

func (k *packer) entry(dir *os.Root, fd int, name, at string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return err
		}
		defer sub.Close()
		return k.dir(sub, at)
	case unix.S_IFLNK:
		h := k.header(tar.TypeSymlink, at, &st)
		var err error
		if h.Linkname, err = dir.Readlink(name); err != nil {
			return err
		}
		h.ModTime = time.Unix(0, 0) // a tree does not set that of links
		return k.w.WriteHeader(h)
	case unix.S_IFREG:
		return k.file(dir, name, at, &st)
	}
	return fmt.Errorf("%s is neither a file nor a directory nor a link", at)
}

func (k *packer) file(dir *os.Root, name, at string, st *unix.Stat_t) error {
	h := k.header(tar.TypeReg, at, st)
	key := [2]uint64{st.Dev, st.Ino}
	if first, ok := k.links[key]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return k.w.WriteHeader(h)
	}
	// A root shares files with the store of layers by hard links too.
	if st.Nlink > 1 {
		k.links[key] = at
	}
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Size = st.Size
	if err := k.w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(k.w, f, st.Size)
	return err
}

// header describes an entry. Where owners cannot be set, all files are root's, and their
// modes on the disk are already those for a single user.
func (k *packer) header(kind byte, name string, st *unix.Stat_t) *tar.Header {
	if !k.own {
		st.Uid, st.Gid = 0, 0
	}
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()).Truncate(time.Microsecond), Format: tar.FormatPAX,
	}
}

// maxPadding bounds what follows the end of an archive.
const maxPadding = 1 << 20

// UnpackRoot makes a root from the stream of PackRoot, durably, unless it is here already.
// The stream is not trusted to be well-formed; its content is not compared with the digest.
// Check, if it is not nil, is called at the end of the stream; the root is kept only if
// check returns nil.
func (p *Provider) UnpackRoot(ctx context.Context, digest string, r io.Reader, check func() error) error {
	if !validDigest.MatchString(digest) {
		return sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not the digest of a root", digest)
	}
	if p.HasRoot(digest) {
		return nil
	}
	j := &job{as: digest}
	_, err := p.makeRoot("root", j, func() error {
		r := &cancelledReader{ctx, r}
		if err := unpack(j.tree, r, nil, nil); err != nil || check == nil {
			return err
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(r, maxPadding)); err != nil {
			return err
		}
		return check()
	})
	return err
}
