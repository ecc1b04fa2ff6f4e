package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cove-sh/cove/sandbox"
)

// PrepareStateDir makes a state directory if it is missing, for its owner only.
// It refuses one that another user of the machine has made or has put something
// into: a database with a key of theirs, or links to files of this user's.
func PrepareStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the state directory %s cannot be created (%v); choose another with --state-dir", dir, err))
	}
	if err := checkStateDir(dir); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the state directory %s belongs to another user (%v); choose another with --state-dir", dir, err))
	}
	// From here on nobody else can add to it.
	return checkStateEntries(dir)
}

// checkStateDir refuses a state directory of another user's, and a link of
// another user's that leads to one. Root may use any directory, but its owner
// could then change what is in it.
func checkStateDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the state directory: %w", err)
	}
	link, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at the state directory: %w", err)
	}
	uid := ownerOf(info)
	if uid == os.Geteuid() {
		uid = ownerOf(link) // of the same directory, if it is no link
	}
	if uid == os.Geteuid() || uid == 0 && link.Mode().Type() == fs.ModeSymlink {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "the state directory %s belongs to another user (%d); choose another with --state-dir", dir, uid)
}

// checkStateEntries refuses a state directory in which something is neither this
// user's nor root's.
func checkStateEntries(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into the state directory: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // a daemon works here
		}
		if err != nil {
			return fmt.Errorf("look into the state directory: %w", err)
		}
		if uid := ownerOf(info); uid != os.Geteuid() && uid != 0 {
			return sandbox.Errorf(sandbox.CodeUnavailable, "%s belongs to another user (%d), who may have put it there to be used; move it away, or choose another directory with --state-dir",
				filepath.Join(dir, e.Name()), uid)
		}
	}
	return nil
}

// ownerOf returns the user id of a file's owner.
func ownerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
