package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// checkPath checks the syntax of a path on the server.
func checkPath(file string) error {
	if len(file) > sandbox.MaxPathBytes || !filepath.IsAbs(file) || strings.ContainsRune(file, 0) {
		return sandbox.Errorf(sandbox.CodeInvalid, "%.200q must be an absolute path on the server", file)
	}
	return nil
}

// openAllowed opens a file or directory at or below one of the paths that the operator has
// allowed. Links that resolve to outside that path are refused. It reveals whether a path
// exists only below allowed paths.
func (p *Provider) openAllowed(file string) (*os.File, error) {
	clean := filepath.Clean(file)
	for _, allowed := range p.allowPaths {
		rel, err := filepath.Rel(allowed, clean)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		f, err := openBelow(allowed, rel)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no %.200s on the server; check the path", clean)
		case err != nil:
			return nil, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("%.200s on the server cannot be read: it is not readable, or a link leads out of %s", clean, allowed))
		}
		if p.isState(f) {
			f.Close()
			return nil, sandbox.Errorf(sandbox.CodeForbidden, "%.200s is one of the server's own files; choose another", clean)
		}
		return f, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeForbidden, "%.200s is not in a directory that this server's operator has allowed for templates (templates.allow_paths); use one of those, or an image in a registry", clean)
}

// isState reports whether an open file or directory is in the server's state.
func (p *Provider) isState(f *os.File) bool {
	if p.stateDir == "" {
		return false
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	rel, rerr := filepath.Rel(p.stateDir, name)
	return err != nil || rerr == nil && filepath.IsLocal(rel)
}

func openBelow(dir, rel string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, unix.ENOTDIR) && rel == "." {
		return os.OpenFile(dir, os.O_RDONLY|unix.O_NONBLOCK, 0) // the allowed path is itself a file
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// directorySource makes a root from a directory on the server. The directory is
// copied, since its owner may go on changing it.
type directorySource struct {
	p    *Provider
	path string
}

func (*directorySource) kind() string { return "directory" }

func (s *directorySource) build(ctx context.Context, j *job) error {
	f, err := s.p.openAllowed(s.path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		f.Close()
		return errors.Join(err, sandbox.Errorf(sandbox.CodeInvalid, "%.200s is not a directory; use the directory of a root file system, or use archive", s.path))
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	f.Close()
	if err != nil {
		return err
	}
	defer root.Close()
	c := &copier{ctx: ctx, j: j, isState: s.p.isState, links: map[[2]uint64]string{}}
	j.report("copying", 0.05, s.path)
	if err := c.dir(root, "."); err != nil {
		return err
	}
	j.notes = append(j.notes, "directory "+s.path)
	if err := furnishImage(j.tree, ""); err != nil {
		return err
	}
	j.user = imageRoot(j.tree)
	return nil
}

// copier copies a directory on the server into a tree. A file that changes during the copy
// may be copied as a mixture of old and new.
type copier struct {
	ctx   context.Context
	j     *job
	dev   uint64
	links map[[2]uint64]string // names of files that have several
	done  int
	// isState reports whether the content of a directory is left out.
	isState  func(*os.File) bool
	reported time.Time
}

func (c *copier) dir(dir *os.Root, at string) error {
	if err := c.ctx.Err(); err != nil {
		return context.Cause(c.ctx)
	}
	d, err := dir.Open(".")
	if err != nil {
		return unreadable(err, at)
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return err
	}
	if at == "." {
		c.dev = st.Dev
	}
	if err := c.j.tree.mkdir(at, c.meta(&st)); err != nil {
		return err
	}
	if st.Dev != c.dev || c.isState(d) {
		return nil // another file system, such as /proc, or the server's state
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return unreadable(err, at)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
		if err := c.entry(dir, int(d.Fd()), name, path.Join(at, name), &st); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(dir *os.Root, fd int, name, p string, st *unix.Stat_t) error {
	if c.done++; time.Since(c.reported) > 200*time.Millisecond {
		c.reported = time.Now()
		c.j.report("copying", -1, "")
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return unreadable(err, p)
		}
		defer sub.Close()
		return c.dir(sub, p)
	case unix.S_IFLNK:
		target, err := dir.Readlink(name)
		if err != nil {
			return unreadable(err, p)
		}
		return c.j.tree.symlink(p, target, c.meta(st))
	case unix.S_IFREG:
		return c.file(fd, name, p, st)
	}
	return nil // devices, sockets and pipes
}

func (c *copier) file(dir int, name, p string, st *unix.Stat_t) error {
	key := [2]uint64{st.Dev, st.Ino}
	if st.Nlink > 1 {
		if first, ok := c.links[key]; ok {
			return c.j.tree.hardlink(p, first)
		}
		c.links[key] = p
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return unreadable(err, p)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fstat(fd, st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unreadable(errors.Join(err, errors.New("it changed meanwhile")), p)
	}
	return c.j.tree.file(p, storedMeta(c.meta(st), c.j.tree.own), st.Size, &cancelledReader{c.ctx, io.Reader(f)})
}

// meta returns the attributes of an entry. Where owners cannot be set, files of the
// server's user become root's, like all files that it makes.
func (c *copier) meta(st *unix.Stat_t) meta {
	m := meta{mode: st.Mode & 0o7777, uid: int(st.Uid), gid: int(st.Gid), mtime: time.Unix(st.Mtim.Unix())}
	if !c.j.tree.own && m.uid == os.Geteuid() {
		m.uid, m.gid = 0, 0
	}
	return m
}

func unreadable(err error, p string) error {
	return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("%.200q in the directory cannot be read by the server's user; make it readable, or remove it", p))
}
