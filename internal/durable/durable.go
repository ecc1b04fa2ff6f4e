// Package durable writes files and renames directories so that a crash or a
// loss of power, at whatever instant, leaves the old or the new, and the new
// once the call has returned.
//
// A new file is written beside its place, synced, and given its name; then the
// directory, which holds the name, is synced. The package exists because
// github.com/google/renameio does not sync the directory, after which a key that
// was replaced can come back, and cannot create a file only if there is none.
package durable

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TempFiles is a pattern, as of [filepath.Glob], of the files that a write has
// left in a directory if a crash ended it.
const TempFiles = ".*new-*"

// WriteFile writes a file for its owner only, in place of the one that is
// there, if any.
func WriteFile(path string, data []byte) error { return Write(path, all(data)) }

// CreateFile writes a file for its owner only that is not there yet. Of
// several who try, one succeeds, and the others get [fs.ErrExist].
func CreateFile(path string, data []byte) error { return Create(path, all(data)) }

// Write makes a file of what write writes, in place of the one that is there,
// if any. It is for its owner only unless write changes that. When write fails,
// nothing has changed, and its error is returned.
func Write(path string, write func(*os.File) error) error {
	return place(path, write, os.Rename)
}

// Create makes a file that is not there yet, as [Write] and [CreateFile] do.
func Create(path string, write func(*os.File) error) error {
	return place(path, write, rename)
}

// Rename renames a file or directory, whose content is on the disk already,
// within a file system.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir writes a directory's names to the disk: of files that were made,
// renamed or removed in it.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func all(data []byte) func(*os.File) error {
	return func(f *os.File) error {
		_, err := f.Write(data)
		return err
	}
}

func place(path string, write func(*os.File) error, name func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = name(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// rename renames a file unless there is one of the new name.
func rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS):
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	// A file system that cannot, such as NFS.
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}
