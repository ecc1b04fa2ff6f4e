// Package backup writes the state of a running daemon into one archive, and restores a
// state directory from such an archive.
//
// An archive is a tar stream, compressed with zstd. The first entry describes the backup,
// and the last holds the SHA-256 of everything before it, so a truncated or damaged archive
// is detected before anything from it is moved into place.
package backup

import (
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

	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
	"github.com/cove-sh/cove/sandbox"
)

// format is the version of the archive.
const format = 1

const (
	aboutName  = "backup.json"
	sumName    = "sum.json"
	configName = "config.yaml"
	database   = "cove.db"
	// workPrefix is the prefix of the directories of backups in progress.
	workPrefix = ".backup-"
	lockName   = "backup.lock"
)

// keys are files of the state directory that decrypt, sign or identify.
var keys = []string{"secrets.key", "preview-links.key", "microsandbox.key", "engine/network-ca.pem", "engine/installation", "volumes/installation"}

// templateDirs are the directories of templates that are backed up, in this order:
// references are read before what they refer to.
var templateDirs = []string{"manifests", "cache", "layers", "mask", "rootfs"}

// tries bounds how often the database is copied again because checkpoints were removed
// before they could be linked.
const tries = 5

// About describes a backup.
type About struct {
	Format  int    `json:"format"`
	Version string `json:"version"` // Cove's version
	// StateDir is the directory that was backed up. Checkpoints can be restored only in
	// a directory with the same path.
	StateDir  string    `json:"state_dir"`
	CreatedAt time.Time `json:"created_at"`
	// Templates is set if the backup includes built templates.
	Templates bool `json:"templates"`
}

// Options say what to back up.
type Options struct {
	// StateDir is the state directory of a daemon, which may be running.
	StateDir string
	// File is the path of the archive, which must not exist.
	File string
	// Config is a configuration file to include; empty is none.
	Config string
	// NoTemplates excludes templates.
	NoTemplates bool
	// Version is the version of this program.
	Version string
	// Progress is called from time to time with the bytes read so far and the current file;
	// Warn is called with what could not be backed up. Both may be nil.
	Progress func(bytes int64, at string)
	Warn     func(text string)
}

// Write makes a backup. Afterwards the file is complete, synced and readable by its owner
// only, or does not exist. A [sandbox.Error] says what to do.
func Write(ctx context.Context, o Options) (err error) {
	if o.Progress == nil {
		o.Progress = func(int64, string) {}
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if _, err := os.Stat(filepath.Join(o.StateDir, database)); err != nil {
		if _, err := os.Stat(filepath.Join(o.StateDir, "engine", "installation")); err == nil {
			return sandbox.Errorf(sandbox.CodeUnsupported, "%s has no %s: its records are in PostgreSQL, or lost; if they are in PostgreSQL, stop the server, "+
				"and keep the state directory and what pg_dump writes together", o.StateDir, database)
		}
		return sandbox.Errorf(sandbox.CodeNotFound, "%s has no %s (%v); set the server's state directory with --state-dir", o.StateDir, database, err)
	}
	if _, err := os.Lstat(o.File); err == nil {
		return sandbox.Errorf(sandbox.CodeConflict, "%s exists; name another file, or remove it first", o.File)
	}
	release, work, err := makeWorkDirs(o.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	kept, err := freeze(ctx, &o, &work)
	if err != nil {
		return err
	}
	return intoFile(o.File, func(f *os.File) error {
		a, err := newArchive(ctx, f, &o)
		if err != nil {
			return err
		}
		return errors.Join(a.fill(&work, kept), a.finish())
	})
}

// workDirs are the directories of a backup in progress: one for the copy of the database,
// and one for hard links to checkpoints, on the checkpoints' file system.
type workDirs struct{ database, checkpoints string }

// makeWorkDirs makes the directories for a backup, and removes those of backups that were
// killed.
func makeWorkDirs(stateDir string) (release func() error, w workDirs, err error) {
	lock, err := os.OpenFile(filepath.Join(stateDir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, w, sandbox.Errorf(sandbox.CodeForbidden, "the state directory cannot be used (%v); run this as the user who runs the server", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, w, sandbox.Errorf(sandbox.CodeConflict, "another backup of %s is running; wait until it is done", stateDir)
	}
	checkpoints := filepath.Join(stateDir, "engine", "checkpoints")
	err = os.MkdirAll(checkpoints, 0o700)
	for _, at := range []struct {
		in  string
		dir *string
	}{{stateDir, &w.database}, {checkpoints, &w.checkpoints}} {
		old, gerr := filepath.Glob(filepath.Join(at.in, workPrefix+"*"))
		err = errors.Join(err, gerr)
		for _, dir := range old {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		if err == nil {
			*at.dir, err = os.MkdirTemp(at.in, workPrefix) // 0700
		}
	}
	remove := func() error {
		var errs []error
		for _, dir := range []string{w.database, w.checkpoints} {
			if dir != "" {
				errs = append(errs, os.RemoveAll(dir))
			}
		}
		return errors.Join(append(errs, lock.Close())...)
	}
	if err != nil {
		return nil, w, errors.Join(fmt.Errorf("make directories for a backup: %w", err), remove())
	}
	return remove, w, nil
}

// frozen is what the database refers to and the backup includes.
type frozen struct {
	checkpoints []string
	programs    []string // programs that the checkpoints need
	volumes     []string
}

// freeze copies the database, and makes hard links to all checkpoints that it refers to, so
// that the backup has them even if the daemon removes them meanwhile.
func freeze(ctx context.Context, o *Options, w *workDirs) (frozen, error) {
	var k frozen
	from := filepath.Join(o.StateDir, "engine", "checkpoints")
	to := w.checkpoints
	for try := 1; ; try++ {
		// Checkpoints that are removed between linking and copying are detected below.
		if err := linkAll(from, to); err != nil {
			return k, err
		}
		file := filepath.Join(w.database, database)
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return k, err
		}
		if err := sqlite.Copy(ctx, filepath.Join(o.StateDir, database), file); err != nil {
			return k, err
		}
		if err := k.read(ctx, file); err != nil {
			return k, err
		}
		missing := k.missing(from, to)
		if len(missing) == 0 {
			break
		}
		if try == tries {
			o.Warn("the state of sandboxes or snapshots is missing or not yet written, and is not in the backup: " + strings.Join(missing, ", "))
			k.checkpoints = slices.DeleteFunc(k.checkpoints, func(id string) bool { return slices.Contains(missing, id) })
			break
		}
	}
	k.findPrograms(to)
	return k, nil
}

// read reads the references in a copy of the database.
func (k *frozen) read(ctx context.Context, file string) (err error) {
	s, err := sqlite.Open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if k.checkpoints, err = s.Checkpoints(ctx); err != nil {
		return err
	}
	k.volumes = nil
	for page := (sandbox.Page{Limit: sandbox.MaxPageSize}); ; {
		records, next, err := s.ListVolumes(ctx, "", page)
		if err != nil {
			return err
		}
		for _, r := range records {
			k.volumes = append(k.volumes, r.ID)
		}
		if page.Cursor = next; next == "" {
			return nil
		}
	}
}

// missing returns the checkpoints that are not linked and cannot be linked now.
func (k *frozen) missing(from, to string) (ids []string) {
	for _, id := range k.checkpoints {
		if link(from, to, id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// linkAll makes hard links to all checkpoints that are not golden.
func linkAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "ckp-") {
			continue
		}
		if err := link(from, to, e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("link checkpoint %s: %w", e.Name(), err)
		}
	}
	return nil
}

// link makes hard links to the files of one checkpoint, unless they exist. Checkpoints are
// directories of files that never change, except for one that a fork has just made: until
// its memory is written, it contains a socket, and counts as missing.
func link(from, to, id string) error {
	if _, err := os.Lstat(filepath.Join(to, id)); err == nil {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(from, id))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket }) {
		return fmt.Errorf("%s is not written yet: %w", id, fs.ErrNotExist)
	}
	draft := filepath.Join(to, ".draft-"+id)
	if err := os.Mkdir(draft, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, id, e.Name()), filepath.Join(draft, e.Name())); err != nil {
			return errors.Join(err, os.RemoveAll(draft))
		}
	}
	return os.Rename(draft, filepath.Join(to, id))
}

// findPrograms finds the programs that can restore the memory in checkpoints.
func (k *frozen) findPrograms(dir string) {
	for _, id := range k.checkpoints {
		data, err := os.ReadFile(filepath.Join(dir, id, "manifest.json"))
		var m checkpoint.Manifest
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil || m.Program == "" || filepath.Base(m.Program) != m.Program {
			continue // it is damaged, and is backed up unchanged
		}
		if !slices.Contains(k.programs, m.Program) {
			k.programs = append(k.programs, m.Program)
		}
	}
}

// intoFile makes a new file with the output of write.
func intoFile(path string, write func(*os.File) error) error {
	begun := false
	err := durable.Create(path, func(f *os.File) error {
		begun = true
		return write(f)
	})
	if err != nil && !begun {
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("%s cannot be made (%v); choose another path", path, err))
	}
	return err
}
