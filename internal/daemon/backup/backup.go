// Package backup writes what a daemon keeps into one archive, while it runs, and
// makes a state directory of such an archive again.
//
// An archive is a tar stream, compressed with zstd. Its first entry says of what
// it is a backup, its last one has the SHA-256 of all that is before it: one that
// was cut off or damaged is found out before anything of it is in place.
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
	// workPrefix begins the names of directories of backups that are being made.
	workPrefix = ".backup-"
	lockName   = "backup.lock"
)

// keys are files of the state directory that open, sign or identify.
var keys = []string{"secrets.key", "preview-links.key", "microsandbox.key", "engine/network-ca.pem", "engine/installation", "volumes/installation"}

// templateDirs are the parts of templates that are kept, in this order: what
// names others is read before them.
var templateDirs = []string{"manifests", "cache", "layers", "mask", "rootfs"}

// tries bounds how often a copy of the database is taken whose checkpoints are
// removed while they are looked for.
const tries = 5

// About says of what an archive is a backup.
type About struct {
	Format  int    `json:"format"`
	Version string `json:"version"` // of Cove
	// StateDir is the directory that it was made of. Kept states of sandboxes
	// need it to be there again.
	StateDir  string    `json:"state_dir"`
	CreatedAt time.Time `json:"created_at"`
	// Templates says whether built templates are in it.
	Templates bool `json:"templates"`
}

// Options say what is backed up.
type Options struct {
	// StateDir is the daemon's; it may run.
	StateDir string
	// File is the archive to be made, which nothing has.
	File string
	// Config is a configuration file to be put into it too; empty is none.
	Config string
	// NoTemplates leaves templates out.
	NoTemplates bool
	// Version is this program's.
	Version string
	// Progress is told now and then how many bytes were read, and where it is;
	// Warn of what could not be backed up. Both may be nil.
	Progress func(bytes int64, at string)
	Warn     func(text string)
}

// Write makes a backup. It is there whole, synced and for its owner only, or not
// at all. Errors that are [sandbox.Error] say what to do.
func Write(ctx context.Context, o Options) (err error) {
	if o.Progress == nil {
		o.Progress = func(int64, string) {}
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if _, err := os.Stat(filepath.Join(o.StateDir, database)); err != nil {
		return sandbox.Errorf(sandbox.CodeNotFound, "%s has no %s (%v); name the server's state directory with --state-dir", o.StateDir, database, err)
	}
	if _, err := os.Lstat(o.File); err == nil {
		return sandbox.Errorf(sandbox.CodeConflict, "%s exists; name another file, or remove it first", o.File)
	}
	release, work, err := workplace(o.StateDir)
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

// work has the directories of a backup that is being made: one for the copy of the
// database, and one for second names of checkpoints, on their file system.
type work struct{ database, checkpoints string }

// workplace makes the directories for a backup, and removes those of backups that
// were killed.
func workplace(stateDir string) (release func() error, w work, err error) {
	lock, err := os.OpenFile(filepath.Join(stateDir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, w, sandbox.Errorf(sandbox.CodeForbidden, "the state directory cannot be used (%v); run this as the user who runs the server", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, w, sandbox.Errorf(sandbox.CodeConflict, "another backup of %s is being made; wait for its end", stateDir)
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
		return nil, w, errors.Join(fmt.Errorf("make room for a backup: %w", err), remove())
	}
	return remove, w, nil
}

// frozen is what a backup holds of what the database names.
type frozen struct {
	checkpoints []string
	programs    []string // that they need
	volumes     []string
}

// freeze takes a copy of the database and second names of all checkpoints that it
// names, so that they stay although the daemon may remove them.
func freeze(ctx context.Context, o *Options, w *work) (frozen, error) {
	var k frozen
	from := filepath.Join(o.StateDir, "engine", "checkpoints")
	to := w.checkpoints
	for try := 1; ; try++ {
		// What is removed between the two is found out after them.
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
			o.Warn("the state of sandboxes or snapshots is gone, and is not in the backup: " + strings.Join(missing, ", "))
			k.checkpoints = slices.DeleteFunc(k.checkpoints, func(id string) bool { return slices.Contains(missing, id) })
			break
		}
	}
	k.needs(to)
	return k, nil
}

// read asks a copy of the database what belongs to it.
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

// missing returns the checkpoints that are not among those linked, and cannot be
// linked now.
func (k *frozen) missing(from, to string) (ids []string) {
	for _, id := range k.checkpoints {
		if link(from, to, id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// linkAll gives all checkpoints that are not golden second names.
func linkAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for checkpoints: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "ckp-") {
			continue
		}
		if err := link(from, to, e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hold checkpoint %s: %w", e.Name(), err)
		}
	}
	return nil
}

// link gives one checkpoint a second name, if it has none yet. Checkpoints are
// directories of files that never change.
func link(from, to, id string) error {
	if _, err := os.Lstat(filepath.Join(to, id)); err == nil {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(from, id))
	if err != nil {
		return err
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

// needs notes the programs without which the memory in checkpoints is worth
// nothing.
func (k *frozen) needs(dir string) {
	for _, id := range k.checkpoints {
		data, err := os.ReadFile(filepath.Join(dir, id, "manifest.json"))
		var m checkpoint.Manifest
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil || m.Program == "" || filepath.Base(m.Program) != m.Program {
			continue // it is damaged, and stays so
		}
		if !slices.Contains(k.programs, m.Program) {
			k.programs = append(k.programs, m.Program)
		}
	}
}

// intoFile makes a file, which nothing has, of what write writes.
func intoFile(path string, write func(*os.File) error) error {
	begun := false
	err := durable.Create(path, func(f *os.File) error {
		begun = true
		return write(f)
	})
	if err != nil && !begun {
		return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("%s cannot be made (%v); choose another place", path, err))
	}
	return err
}
