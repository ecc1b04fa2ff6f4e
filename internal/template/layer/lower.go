package layer

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cove-sh/cove/sandbox"
)

// Lower is the file system below layers. Paths are absolute and clean, and no part of
// them except the last is a symbolic link: callers have checked each part. Methods are
// safe for concurrent use.
type Lower interface {
	// Stat describes a path, without following a link, in an Entry that belongs to the
	// caller, or returns [fs.ErrNotExist]. It does not read the content.
	Stat(path string) (*Entry, error)
	// Open reads a regular file.
	Open(path string) (io.ReadCloser, error)
	// List returns the names in a directory.
	List(path string) ([]string, error)
}

// maxListNames bounds a directory of a template.
const maxListNames = 1 << 20

// Bind mounts the host's Source, a directory or file, at Target.
type Bind struct {
	Source string
	Target string
}

// Dir is a root file system on the host: a directory, and other directories and files
// that are mounted in it.
type Dir struct {
	root  *os.Root
	binds []mount
	// at has the indexes of binds by their targets. A later bind covers earlier ones at or
	// below its target.
	at     map[string]int
	mapIDs func(uid, gid uint32) (uint32, uint32)
}

type mount struct {
	target string
	root   *os.Root // for a directory
	file   string   // or a file
}

// OpenDir opens a root file system. Binds are in the order in which they are mounted; a
// source that is a symbolic link is followed, as mount does. mapIDs maps the owners on
// the host to those in a sandbox; nil is the identity. The caller closes the result.
func OpenDir(dir string, binds []Bind, mapIDs func(uid, gid uint32) (uint32, uint32)) (*Dir, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{root: root, at: map[string]int{}, mapIDs: mapIDs}
	for _, b := range binds {
		m := mount{target: filepath.Clean("/" + b.Target), file: b.Source}
		info, err := os.Stat(b.Source)
		if err == nil && info.IsDir() {
			m.root, err = os.OpenRoot(b.Source)
		}
		if err != nil {
			_ = d.Close()
			return nil, err
		}
		d.at[m.target] = len(d.binds)
		d.binds = append(d.binds, m)
	}
	return d, nil
}

// Close closes the directories.
func (d *Dir) Close() error {
	err := d.root.Close()
	for _, m := range d.binds {
		if m.root != nil {
			err = errors.Join(err, m.root.Close())
		}
	}
	return err
}

// locate finds what a path belongs to: the last bind at or above it, or the root. The
// root is nil for a bind of a file, and for paths below one.
func (d *Dir) locate(path string) (root *os.Root, name, file string) {
	best := -1
	for p := path; ; p = filepath.Dir(p) {
		if i, ok := d.at[p]; ok {
			best = max(best, i)
		}
		if p == "/" {
			break
		}
	}
	root, name = d.root, strings.TrimPrefix(path, "/")
	if best >= 0 {
		m := d.binds[best]
		name = strings.TrimPrefix(strings.TrimPrefix(path, m.target), "/")
		root = m.root
		if root == nil && name == "" {
			file = m.file
		}
	}
	if name == "" {
		name = "."
	}
	return root, name, file
}

// isAbsent reports whether an error means that a sandbox sees nothing at a path: gVisor
// cannot show what the host's user may not read.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission)
}

// Stat implements [Lower].
func (d *Dir) Stat(path string) (*Entry, error) {
	root, name, file := d.locate(path)
	var info fs.FileInfo
	var err error
	switch {
	case file != "":
		info, err = os.Stat(file)
	case root == nil:
		err = fs.ErrNotExist
	default:
		info, err = root.Lstat(name)
	}
	if err != nil {
		if isAbsent(err) {
			return nil, fs.ErrNotExist
		}
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("layer: the system does not describe files as Linux does")
	}
	e := &Entry{Kind: kindOf(info.Mode()), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, ModTime: info.ModTime()}
	if d.mapIDs != nil {
		e.UID, e.GID = d.mapIDs(e.UID, e.GID)
	}
	switch e.Kind {
	case KindFile:
		e.Size = st.Size
	case KindSymlink:
		if e.Target, err = root.Readlink(name); err != nil {
			return nil, err
		}
	case KindCharDevice, KindBlockDevice:
		e.Major = uint32(st.Rdev>>8&0xfff | st.Rdev>>32&^0xfff)
		e.Minor = uint32(st.Rdev&0xff | st.Rdev>>12&^0xff)
	}
	return e, nil
}

// Open implements [Lower].
func (d *Dir) Open(path string) (io.ReadCloser, error) {
	root, name, file := d.locate(path)
	switch {
	case file != "":
		return os.Open(file)
	case root == nil:
		return nil, fs.ErrNotExist
	}
	// A file that became a pipe meanwhile must not block.
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}

// List implements [Lower].
func (d *Dir) List(path string) ([]string, error) {
	root, name, _ := d.locate(path)
	if root == nil {
		return nil, fs.ErrNotExist
	}
	f, err := root.Open(name)
	if err != nil {
		if isAbsent(err) {
			return nil, fs.ErrNotExist
		}
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxListNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) == maxListNames {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "a directory of the template has %d files or more; ask for paths below it", maxListNames)
	}
	slices.Sort(names)
	return names, nil
}
