package backup

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// draftPrefix is the prefix of directories into which archives are unpacked.
const draftPrefix = ".restore-"

// Restore restores a state directory from an archive of [Write]. The directory must exist
// and hold no daemon's state, and the caller must make sure that no daemon uses it. The
// archive may be hostile: nothing is written outside the directory, and no link is
// followed. Nothing is moved into place before the archive's sum is verified; the database
// is moved last.
//
// Sandboxes that were running when the backup was made are failed in the restored state,
// with that as the reason. A [sandbox.Error] says what to do. progress, unless nil, is
// called from time to time with the bytes unpacked so far and the current file.
func Restore(ctx context.Context, file, stateDir string, progress func(bytes int64, at string)) (about About, err error) {
	if progress == nil {
		progress = func(int64, string) {}
	}
	if name, err := occupied(stateDir); err != nil {
		return about, err
	} else if name != "" {
		return about, sandbox.Errorf(sandbox.CodeConflict, "%s already has state (%s); move the directory away, or choose another with --state-dir", stateDir, name)
	}
	f, err := os.Open(file)
	if err != nil {
		return about, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the backup cannot be read: %v", err))
	}
	defer f.Close()
	draft, err := os.MkdirTemp(stateDir, draftPrefix)
	if err != nil {
		return about, fmt.Errorf("make a directory to restore into: %w", err)
	}
	defer func() { err = errors.Join(err, removeDraft(draft)) }()
	room, err := free(stateDir)
	if err != nil {
		return about, err
	}
	about, err = unpack(ctx, f, draft, room, filepath.Clean(stateDir), progress)
	if err != nil {
		return about, err
	}
	if err := endRunning(ctx, filepath.Join(draft, database), about.CreatedAt); err != nil {
		return about, err
	}
	return about, putInPlace(draft, stateDir)
}

// occupied returns the name of a file in a directory that belongs to a daemon's state, or
// "".
func occupied(dir string) (string, error) {
	old, err := filepath.Glob(filepath.Join(dir, draftPrefix+"*"))
	for _, d := range old { // left by a restore that was killed
		err = errors.Join(err, removeDraft(d))
	}
	if err != nil {
		return "", err
	}
	for _, name := range []string{database, database + "-wal", "engine", "volumes", "templates", "orphans", "secrets.key", "preview-links.key", "microsandbox.key"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return name, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("read the state directory: %w", err)
		}
	}
	return "", nil
}

// free returns how many bytes of the disk are free.
func free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("measure free disk space: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// removeDraft removes what was unpacked, including read-only directories.
func removeDraft(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// endRunning records that the sandboxes that were running when the backup was made have
// failed.
func endRunning(ctx context.Context, path string, at time.Time) (err error) {
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the database in the backup cannot be used (%v); use another backup, or a newer cove", err))
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	reason := "it was running when the backup of " + at.Format(time.RFC3339) + " was made, which has no memory of running sandboxes; start again from a snapshot"
	var ids []string
	for page := (sandbox.Page{Limit: sandbox.MaxPageSize}); ; {
		records, next, err := s.ListSandboxes(ctx, store.SandboxFilter{
			States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StateStopping},
		}, page)
		if err != nil {
			return err
		}
		for _, r := range records {
			ids = append(ids, r.ID)
		}
		if page.Cursor = next; next == "" {
			break
		}
	}
	for _, id := range ids {
		if _, err := s.UpdateSandbox(ctx, id, store.Change{Apply: func(r *store.Record) error {
			now := time.Now().UTC()
			r.State, r.Reason, r.EndedAt = sandbox.StateFailed, reason, &now
			return nil // the daemon removes its remains when it starts
		}}); err != nil {
			return err
		}
	}
	return nil
}

// putInPlace moves what was unpacked into the state directory. The database goes last:
// without it, the daemon refuses to start with the rest.
func putInPlace(draft, stateDir string) error {
	d, err := os.Open(draft)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync the restored files: %w", err)
	}
	entries, err := os.ReadDir(draft)
	if err != nil {
		return err
	}
	last := func(e fs.DirEntry) int {
		if e.Name() == database {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(entries, func(x, y fs.DirEntry) int { return last(x) - last(y) })
	for _, e := range entries {
		if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(draft, e.Name()), unix.AT_FDCWD, filepath.Join(stateDir, e.Name()), unix.RENAME_NOREPLACE); err != nil {
			return fmt.Errorf("put %s in its place: %w; move %s away and try again", e.Name(), err, stateDir)
		}
	}
	return errors.Join(durable.SyncDir(stateDir), durable.SyncDir(filepath.Dir(stateDir)))
}

// readJSON reads a small entry.
func readJSON(t *tar.Reader, h *tar.Header, v any) error {
	if h.Size > 1<<20 {
		return bad("%s has %d bytes", h.Name, h.Size)
	}
	if err := json.NewDecoder(t).Decode(v); err != nil {
		return bad("%s cannot be read: %v", h.Name, err)
	}
	return nil
}

// bad returns the error for an archive that is damaged or was not made by [Write].
func bad(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, "this is not a complete backup of cove, and nothing was restored: %s; use another copy of it", strings.TrimSpace(fmt.Sprintf(format, args...)))
}
