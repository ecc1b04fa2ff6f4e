// Package durable writes files and renames directories atomically and durably: a crash or
// a power failure, at any instant, leaves either the old or the new content, and the new
// content once the call has returned.
//
// A new file is written next to its destination, synced, and renamed; then the directory,
// which contains the name, is synced. The package exists because
// github.com/google/renameio does not sync the directory, so that a replaced key can come
// back, and cannot create a file only if it does not exist.
package durable

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TempFiles is a pattern for [filepath.Glob] that matches the files that a write leaves
// in a directory after a crash.
const TempFiles = ".*new-*"

// WriteFile writes a file that only its owner can access, and replaces an existing one.
func WriteFile(path string, data []byte) error { return Write(path, all(data)) }

// CreateFile writes a new file that only its owner can access. Of several concurrent
// calls, one succeeds, and the others get [fs.ErrExist].
func CreateFile(path string, data []byte) error { return Create(path, all(data)) }

// Write calls write to fill a file, and replaces an existing one. Only its owner can
// access the file, unless write changes that. If write fails, nothing changes, and its
// error is returned.
func Write(path string, write func(*os.File) error) error {
	return place(path, write, os.Rename)
}

// Create is [Write] for a new file, with the errors of [CreateFile].
func Create(path string, write func(*os.File) error) error {
	return place(path, write, rename)
}

// Rename renames a file or directory within a file system. Its content must already be on
// the disk.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir syncs the names in a directory to the disk, after files were created, renamed
// or removed in it.
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

// rename renames a file unless the new name exists.
func rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS):
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	// The file system does not support it, such as NFS.
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}
