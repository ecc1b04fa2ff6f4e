// Package volume keeps the files of volumes: a directory each, below one that
// only the daemon's user can enter. What is in a volume is made by sandboxes and
// hostile: nothing here follows a symbolic link in it, and neither depth nor
// number of what it holds can take more than is given.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/durable"
)

// MinEntryBytes is what a file, directory or link counts for at least, so that a
// volume's size bounds their number too.
const MinEntryBytes = 4096

// gone begins the names of directories that are being removed.
const gone = ".gone-"

// ids are of volumes, and safe as names of directories.
var ids = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Dir holds the volumes of a daemon. Only one process at a time may use it.
type Dir struct {
	path string
	// most bounds the memory in bytes that one measurement takes for directories
	// that it has not been in yet.
	most int
}

// maxHeld is how much memory a measurement takes at most: names of some hundred
// thousand directories beside each other.
const maxHeld = 64 << 20

// Open returns the directory at path, which is made if it is missing.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("open the directory of volumes: %w", err)
	}
	return &Dir{resolved, maxHeld}, nil
}

// Path returns the directory that sandboxes see as the volume. It has no
// symbolic links.
func (d *Dir) Path(id string) string { return filepath.Join(d.path, id, "data") }

// labelFile, beside the files of a volume, says what volume it is.
const labelFile = "volume.json"

// maxLabel bounds what is read of a label.
const maxLabel = 64 << 10

// Create makes an empty volume, writable for every user of its sandboxes. The
// label is for [Dir.Label]; nil is none. It survives a loss of power.
func (d *Dir) Create(id string, label []byte) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	if err := os.MkdirAll(d.Path(id), 0o700); err != nil {
		return fmt.Errorf("make volume %s: %w", id, err)
	}
	mode := 0o777 | fs.ModeSticky
	if os.Geteuid() != 0 {
		mode = 0o777 // links are all root's then, and could not be removed by who made them
	}
	if err := os.Chmod(d.Path(id), mode); err != nil {
		return fmt.Errorf("make volume %s: %w", id, err)
	}
	if label != nil {
		if err := d.SetLabel(id, label); err != nil {
			return err
		}
	}
	return d.Sync(id)
}

// SetLabel says of a volume what it is, where no sandbox can write, for the case
// that its record is lost.
func (d *Dir) SetLabel(id string, label []byte) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	if err := durable.WriteFile(filepath.Join(d.path, id, labelFile), label); err != nil {
		return fmt.Errorf("label volume %s: %w", id, err)
	}
	return nil
}

// Label returns what a volume was labelled with, or nil.
func (d *Dir) Label(id string) []byte {
	if !ids.MatchString(id) {
		return nil
	}
	f, err := os.Open(filepath.Join(d.path, id, labelFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	label, err := io.ReadAll(io.LimitReader(f, maxLabel))
	if err != nil {
		return nil
	}
	return label
}

// Empty reports whether a volume is there and nothing is in it.
func (d *Dir) Empty(id string) bool {
	fd, err := d.open(id)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	names, err := namesIn(fd)
	return err == nil && len(names) == 0
}

// MoveOut moves a volume, which no sandbox may have, to a path that nothing has,
// on the same file system.
func (d *Dir) MoveOut(id, to string) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	return os.Rename(filepath.Join(d.path, id), to)
}

// MoveIn makes a volume of what MoveOut has moved away. An id that there is fails.
func (d *Dir) MoveIn(id, from string) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	if _, err := os.Lstat(filepath.Join(from, "data")); err != nil {
		return fmt.Errorf("volume %s has no files: %w", id, err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, filepath.Join(d.path, id), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("bring volume %s back: %w", id, err)
	}
	return d.Sync(id)
}

// IDs lists the volumes that are there, and removes what an earlier process has
// begun to remove.
func (d *Dir) IDs() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var list []string
	var errs []error
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), gone):
			errs = append(errs, RemoveTree(d.path, e.Name()))
		case e.IsDir() && ids.MatchString(e.Name()):
			list = append(list, e.Name())
		}
	}
	return list, errors.Join(errs...)
}

// Remove removes a volume, which no sandbox may have; one that is not there is
// not an error.
func (d *Dir) Remove(id string) error {
	if !ids.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	err := os.Rename(filepath.Join(d.path, id), filepath.Join(d.path, gone+id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = RemoveTree(d.path, gone+id)
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

// Sync writes what a volume holds to the disk.
func (d *Dir) Sync(id string) error {
	fd, err := d.open(id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync volume %s: %w", id, err)
	}
	return nil
}

func (d *Dir) open(id string) (int, error) {
	if !ids.MatchString(id) {
		return -1, fmt.Errorf("invalid volume id %q", id)
	}
	fd, err := openDir(unix.AT_FDCWD, d.Path(id))
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", id, err)
	}
	return fd, nil
}

// openDir opens a directory that is no symbolic link.
func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// ErrUnmeasured says that a volume holds directories which cannot be looked
// into.
var ErrUnmeasured = errors.New("the volume holds directories that cannot be measured")

// Used returns how many bytes a volume takes on disk. It stops counting over
// enough. What sandboxes change meanwhile may be counted or not.
func (d *Dir) Used(ctx context.Context, id string, enough int64) (int64, error) {
	fd, err := d.open(id)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	m := measure{ctx: ctx, top: fd, enough: enough, most: d.most}
	m.push(nil, ".")
	for len(m.todo) > 0 && m.bytes <= enough {
		next := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		m.held -= next.weight()
		if err := m.dir(next); err != nil {
			return m.bytes, err
		}
	}
	return m.bytes, nil
}

// measure adds up a tree.
type measure struct {
	ctx    context.Context
	top    int
	enough int64
	bytes  int64
	todo   []*place
	held   int
	most   int
}

// place is a directory below top.
type place struct {
	in   *place
	name string
}

func (p *place) weight() int { return 64 + len(p.name) }

func (p *place) path() string {
	if p.in == nil {
		return p.name
	}
	return filepath.Join(p.in.path(), p.name)
}

func (m *measure) push(in *place, name string) {
	p := &place{in, name}
	m.todo = append(m.todo, p)
	m.held += p.weight()
}

// beneath is how names in a volume are looked up: nothing leads out of it.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

func (m *measure) dir(p *place) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Openat2(m.top, p.path(), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath,
	})
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", ErrUnmeasured, err)
	case err != nil:
		return nil // it was removed, or replaced, meanwhile
	}
	f := os.NewFile(uintptr(fd), p.name)
	defer f.Close()
	for m.bytes <= m.enough {
		names, err := f.Readdirnames(256)
		for _, n := range names {
			m.entry(fd, p, n)
		}
		if m.held > m.most {
			return fmt.Errorf("%w: there are too many of them beside each other", ErrUnmeasured)
		}
		if err != nil {
			return nil // the end, mostly
		}
	}
	return nil
}

func (m *measure) entry(at int, in *place, name string) {
	var st unix.Stat_t
	if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	bytes := st.Blocks * 512
	if !isDir && st.Nlink > 1 {
		bytes /= int64(st.Nlink) // its other names are in the volume too
	}
	m.bytes += max(MinEntryBytes, bytes)
	if isDir {
		m.push(in, name)
	}
}

// RemoveTree removes the directory name of dir with all that is in it, whatever
// its depth. Nobody else may change what it holds meanwhile; no link in it is
// followed.
func RemoveTree(dir, name string) error {
	base, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer unix.Close(base)
	_ = unix.Fchmodat(base, name, 0o700, 0)
	top, err := openDir(base, name)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	// Directories are brought to the top before they are emptied.
	moved := 0
	for {
		left, err := namesIn(top)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
		}
		for _, n := range left {
			if err := flatten(top, n, &moved); err != nil {
				return err
			}
		}
	}
}

// namesIn returns some names of a directory, none if it is empty.
func namesIn(fd int) ([]string, error) {
	again, err := openDir(fd, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), ".")
	defer f.Close()
	names, err := f.Readdirnames(1024)
	if len(names) > 0 {
		return names, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return nil, nil
}

// flatten removes one entry of top; the directories in it are moved into top.
func flatten(top int, name string, moved *int) error {
	err := unix.Unlinkat(top, name, 0)
	if err == nil || !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// Nobody else changes it any more, so this is no link.
	if err := unix.Fchmodat(top, name, 0o700, 0); err != nil {
		return err
	}
	fd, err := openDir(top, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		names, err := namesIn(fd)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return unix.Unlinkat(top, name, unix.AT_REMOVEDIR)
		}
		for _, n := range names {
			err := unix.Unlinkat(fd, n, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
				*moved++
				// To be moved, a directory must be writable itself.
				_ = unix.Fchmodat(fd, n, 0o700, 0)
				err = unix.Renameat2(fd, n, top, gone+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
			}
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
	}
}
