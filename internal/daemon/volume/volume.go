// Package volume stores the files of volumes: a directory for each volume, in a directory
// that only the daemon's user can enter. Sandboxes write the content of volumes, so it is
// hostile: nothing here follows a symbolic link in it, and the resources used are bounded,
// whatever the depth and number of its files.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/lazyregexp"
)

// MinEntryBytes is the minimum that each file, directory or link counts towards a volume's
// size, so that a bound on the size also bounds their number.
const MinEntryBytes = 4096

// removedPrefix is the prefix of directories that are being removed.
const removedPrefix = ".gone-"

// validID matches the ids of volumes, which are safe as names of directories.
var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Dir holds the volumes of a daemon. Only one process at a time may use it.
type Dir struct {
	path string
	// maxQueued bounds the memory, in bytes, that one measurement needs for directories
	// that it has yet to visit.
	maxQueued int
}

// defaultMaxQueued is enough for a few hundred thousand sibling directories.
const defaultMaxQueued = 64 << 20

// Open opens the directory at path, and makes it if missing.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("open the directory of volumes: %w", err)
	}
	return &Dir{resolved, defaultMaxQueued}, nil
}

// Path returns the directory that is mounted as the volume. The path has no symbolic
// links.
func (d *Dir) Path(id string) string { return filepath.Join(d.path, id, "data") }

// labelFile is a file next to a volume's content that holds its label.
const labelFile = "volume.json"

// maxLabel bounds the size of a label.
const maxLabel = 64 << 10

// Create makes an empty volume that every user of its sandboxes can write to. The label is
// returned by [Dir.Label]; nil means none. The volume is durable when Create returns.
func (d *Dir) Create(id string, label []byte) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	if err := os.MkdirAll(d.Path(id), 0o700); err != nil {
		return fmt.Errorf("make volume %s: %w", id, err)
	}
	mode := 0o777 | fs.ModeSticky
	if os.Geteuid() != 0 {
		mode = 0o777 // all links belong to root then, and a sticky directory would keep their makers from removing them
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

// SetLabel stores a description of a volume where no sandbox can write, in case the
// volume's record is lost.
func (d *Dir) SetLabel(id string, label []byte) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	if err := durable.WriteFile(filepath.Join(d.path, id, labelFile), label); err != nil {
		return fmt.Errorf("label volume %s: %w", id, err)
	}
	return nil
}

// Label returns the label of a volume, or nil.
func (d *Dir) Label(id string) []byte {
	if !validID.MatchString(id) {
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

// Empty reports whether a volume exists and is empty.
func (d *Dir) Empty(id string) bool {
	fd, err := d.open(id)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	names, err := namesIn(fd)
	return err == nil && len(names) == 0
}

// MoveOut moves a volume that no sandbox uses to a path that does not exist, on the same
// file system.
func (d *Dir) MoveOut(id, to string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	return os.Rename(filepath.Join(d.path, id), to)
}

// MoveIn moves back a volume that MoveOut has moved. It fails if the id is in use.
func (d *Dir) MoveIn(id, from string) error {
	if !validID.MatchString(id) {
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

// IDs returns the ids of all volumes, and finishes removals that an earlier process began.
func (d *Dir) IDs() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var list []string
	var errs []error
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), removedPrefix):
			errs = append(errs, RemoveTree(d.path, e.Name()))
		case e.IsDir() && validID.MatchString(e.Name()):
			list = append(list, e.Name())
		}
	}
	return list, errors.Join(errs...)
}

// Remove removes a volume that no sandbox uses. A missing volume is not an error.
func (d *Dir) Remove(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid volume id %q", id)
	}
	err := os.Rename(filepath.Join(d.path, id), filepath.Join(d.path, removedPrefix+id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = RemoveTree(d.path, removedPrefix+id)
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

// Sync writes the content of a volume to the disk.
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
	if !validID.MatchString(id) {
		return -1, fmt.Errorf("invalid volume id %q", id)
	}
	fd, err := openDir(unix.AT_FDCWD, d.Path(id))
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", id, err)
	}
	return fd, nil
}

// openDir opens a directory, and fails for a symbolic link.
func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// ErrUnmeasured is the error for a volume with directories that cannot be measured.
var ErrUnmeasured = errors.New("the volume holds directories that cannot be measured")

// Used returns how many bytes a volume takes on disk. It stops counting once it exceeds
// enough. Concurrent changes may or may not be counted.
func (d *Dir) Used(ctx context.Context, id string, enough int64) (int64, error) {
	fd, err := d.open(id)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	m := measure{ctx: ctx, top: fd, enough: enough, maxQueued: d.maxQueued}
	m.push(nil, ".")
	for len(m.todo) > 0 && m.bytes <= enough {
		next := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		m.queued -= next.weight()
		if err := m.dir(next); err != nil {
			return m.bytes, err
		}
	}
	return m.bytes, nil
}

// measure adds up the sizes in a tree.
type measure struct {
	ctx       context.Context
	top       int
	enough    int64
	bytes     int64
	todo      []*subdir
	queued    int // memory of todo, at most maxQueued
	maxQueued int
}

// subdir is a directory below top.
type subdir struct {
	in   *subdir
	name string
}

func (p *subdir) weight() int { return 64 + len(p.name) }

func (p *subdir) path() string {
	if p.in == nil {
		return p.name
	}
	return filepath.Join(p.in.path(), p.name)
}

func (m *measure) push(in *subdir, name string) {
	p := &subdir{in, name}
	m.todo = append(m.todo, p)
	m.queued += p.weight()
}

// beneath restricts the resolution of paths to the volume.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

func (m *measure) dir(p *subdir) error {
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
		if m.queued > m.maxQueued {
			return fmt.Errorf("%w: too many sibling directories", ErrUnmeasured)
		}
		if err != nil {
			return nil // usually io.EOF
		}
	}
	return nil
}

func (m *measure) entry(at int, in *subdir, name string) {
	var st unix.Stat_t
	if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	bytes := st.Blocks * 512
	if !isDir && st.Nlink > 1 {
		bytes /= int64(st.Nlink) // the other links are in the volume too
	}
	m.bytes += max(MinEntryBytes, bytes)
	if isDir {
		m.push(in, name)
	}
}

// RemoveTree removes the directory name of dir with everything below it, whatever its
// depth. Nothing else may change the tree meanwhile. It follows no links.
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
	// Directories are moved to the top before they are emptied.
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

// namesIn returns some of the names in a directory, or none if it is empty.
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

// flatten removes one entry of top, and moves the directories in it to top.
func flatten(top int, name string, moved *int) error {
	err := unix.Unlinkat(top, name, 0)
	if err == nil || !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// Nothing else changes the tree, so this is not a link.
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
				// A directory must be writable to be moved.
				_ = unix.Fchmodat(fd, n, 0o700, 0)
				err = unix.Renameat2(fd, n, top, removedPrefix+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
			}
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
	}
}
