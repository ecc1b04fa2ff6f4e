package memory

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// kept is a checkpoint: a copy of an instance's files.
type kept struct {
	engine.Checkpoint
	dir string
}

// Keeper is an [Engine] that is also an [engine.Checkpointer].
type Keeper struct {
	*Engine
}

var (
	_ engine.Engine       = (*Keeper)(nil)
	_ engine.Checkpointer = (*Keeper)(nil)
	_ engine.Admitter     = (*Keeper)(nil)
)

// NewKeeper returns an engine over s that can save states.
func NewKeeper(s *State) *Keeper { return &Keeper{New(s)} }

// Admit implements [engine.Admitter]. There is always room.
func (e *Keeper) Admit(ctx context.Context, _ int, _ engine.Source, _ *engine.Spec) error {
	return e.step(ctx, StepAdmit, func() error { return nil })
}

// Kept lists the checkpoints by their ids.
func (s *State) Kept() []engine.Checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]engine.Checkpoint, 0, len(s.kept))
	for _, id := range slices.Sorted(maps.Keys(s.kept)) {
		all = append(all, s.kept[id].Checkpoint)
	}
	return all
}

// Warm returns what [Keeper.Warm] was last given.
func (s *State) Warm() []engine.WarmSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warm)
}

func (s *State) forget(id string) error {
	s.mu.Lock()
	k := s.kept[id]
	delete(s.kept, id)
	s.mu.Unlock()
	if k == nil {
		return nil
	}
	return removeAll(k.dir)
}

// writeInitialFiles writes the files with which a new instance starts.
func (s *State) writeInitialFiles(dir string, spec *engine.Spec) error {
	if spec.Checkpoint == "" {
		return os.Mkdir(filepath.Join(dir, workDir), 0o700)
	}
	s.mu.Lock()
	k := s.kept[spec.Checkpoint]
	s.mu.Unlock()
	switch {
	case k == nil:
		return sandbox.Errorf(sandbox.CodeNotFound, "the kept state is gone; nothing can be restored from it")
	case k.FilesOnly && !spec.FilesOnly:
		return fmt.Errorf("checkpoint %s has no memory", k.ID)
	case k.Root.Digest != spec.Root.Digest || k.Resources.DiskMiB != spec.Resources.DiskMiB:
		return fmt.Errorf("checkpoint %s is of another root or disk", k.ID)
	}
	return copyTree(dir, k.dir)
}

// Checkpoint implements [engine.Checkpointer].
func (e *Keeper) Checkpoint(ctx context.Context, name, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	var c engine.Checkpoint
	began := time.Now()
	err := e.step(ctx, StepCheckpoint, func() (err error) {
		c, err = e.state.keep(name, id, &opts)
		return err
	})
	if err != nil {
		if c.ID != "" {
			err = errors.Join(err, e.state.forget(id)) // on an error nothing is kept
		}
		return engine.Checkpoint{}, err
	}
	if opts.Commit == nil {
		c.Stopped = max(1, time.Since(began))
		return c, nil
	}
	if err := e.commit(ctx, c, opts.Commit); err != nil {
		return engine.Checkpoint{}, err
	}
	// If the instance cannot be ended now, the next start ends it, as with cells.
	if e.state.runTraps(ctx, StepDestroy, Before) != nil {
		return c, nil
	}
	return c, e.state.destroy(name)
}

// commit calls the caller's Commit. If the trap after it fails, the caller has recorded
// the checkpoint, but nothing else happens.
func (e *Keeper) commit(ctx context.Context, c engine.Checkpoint, f func(engine.Checkpoint) error) error {
	err := e.state.runTraps(ctx, StepCommit, Before)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = f(c)
	}
	if errors.Is(err, engine.ErrUndecided) {
		return err
	}
	if err != nil {
		return errors.Join(err, e.state.forget(c.ID))
	}
	return e.state.runTraps(ctx, StepCommit, After)
}

// keep copies the files of an instance.
func (s *State) keep(name, id string, opts *engine.CheckpointOptions) (engine.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[name]
	if i == nil || i.failed {
		return engine.Checkpoint{}, engine.ErrNotFound
	}
	if s.kept[id] != nil {
		return engine.Checkpoint{}, fmt.Errorf("there is a checkpoint %s", id)
	}
	k := &kept{dir: filepath.Join(s.dir, "checkpoint-"+id), Checkpoint: engine.Checkpoint{
		ID: id, FilesOnly: opts.FilesOnly, Root: i.spec.Root, Resources: i.spec.Resources, SizeBytes: 1, CreatedAt: time.Now().UTC(), Label: opts.Label, Owner: opts.Owner,
	}}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return engine.Checkpoint{}, err
	}
	if err := copyTree(k.dir, i.dir); err != nil {
		return engine.Checkpoint{}, errors.Join(err, removeAll(k.dir))
	}
	s.kept[id] = k
	return k.Checkpoint, nil
}

// Checkpoints implements [engine.Checkpointer].
func (e *Keeper) Checkpoints(ctx context.Context) (all []engine.Checkpoint, err error) {
	err = e.step(ctx, StepCheckpoints, func() error { all = e.state.Kept(); return nil })
	if err != nil {
		return nil, err
	}
	return all, nil
}

// RemoveCheckpoint implements [engine.Checkpointer].
func (e *Keeper) RemoveCheckpoint(ctx context.Context, id string) error {
	return e.step(ctx, StepRemoveCheckpoint, func() error { return e.state.forget(id) })
}

// metaSuffix is the suffix of the file that describes a checkpoint that was set aside.
const metaSuffix = ".json"

// SetAside implements [engine.Checkpointer].
func (e *Keeper) SetAside(ctx context.Context, id, to string) error {
	return e.step(ctx, StepSetAside, func() error {
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		k := e.state.kept[id]
		if k == nil {
			return fs.ErrNotExist
		}
		data, err := json.Marshal(k.Checkpoint)
		if err == nil {
			err = os.WriteFile(filepath.Join(k.dir, id+metaSuffix), data, 0o600)
		}
		if err == nil {
			err = os.Rename(k.dir, to)
		}
		if err == nil {
			delete(e.state.kept, id)
		}
		return err
	})
}

// BringBack implements [engine.Checkpointer].
func (e *Keeper) BringBack(ctx context.Context, id, from string) (c engine.Checkpoint, err error) {
	err = e.step(ctx, StepBringBack, func() error {
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		meta := filepath.Join(from, id+metaSuffix)
		data, err := os.ReadFile(meta)
		if err == nil {
			err = json.Unmarshal(data, &c)
		}
		if err != nil {
			return err
		}
		k := &kept{dir: filepath.Join(e.state.dir, "checkpoint-"+id), Checkpoint: c}
		if e.state.kept[id] != nil {
			return fmt.Errorf("there is a checkpoint %s", id)
		}
		if err := errors.Join(os.Remove(meta), os.Rename(from, k.dir)); err != nil {
			return err
		}
		e.state.kept[id] = k
		return nil
	})
	return c, err
}

// Changes implements [engine.Checkpointer]. An instance's changes are the files in its
// directory.
func (e *Keeper) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	var out bytes.Buffer
	err := e.step(ctx, StepChanges, func() error {
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		if k := e.state.kept[of.Checkpoint]; k != nil && of.Instance == "" {
			return writeTree(&out, k.dir)
		}
		if i := e.state.instances[of.Instance]; i != nil && !i.failed && of.Checkpoint == "" {
			return writeTree(&out, i.dir)
		}
		return engine.ErrNotFound
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(&out), nil
}

// Warm implements [engine.Checkpointer]. It only records specs, see [State.Warm].
func (e *Keeper) Warm(specs []engine.WarmSpec) {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	e.state.warm = slices.Clone(specs)
}

// walk calls f for a directory and everything below it. Programs may change it meanwhile.
func walk(dir string, f func(path, name string, fi fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			var fi fs.FileInfo
			if fi, err = d.Info(); err == nil {
				err = f(path, strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"), fi)
			}
		}
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil
		}
		return err
	})
}

// copyTree copies directories, files and symbolic links.
func copyTree(to, from string) error {
	return walk(from, func(path, name string, fi fs.FileInfo) error {
		target := filepath.Join(to, name)
		switch fi.Mode().Type() {
		case fs.ModeDir:
			if name == "" {
				return nil
			}
			return os.Mkdir(target, fi.Mode().Perm()|0o700)
		case fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, fi.Mode().Perm())
		}
		return nil
	})
}

// writeTree writes the same entries as a layer.
func writeTree(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := walk(dir, func(path, name string, fi fs.FileInfo) error {
		if t := fi.Mode().Type(); t != 0 && t != fs.ModeDir && t != fs.ModeSymlink {
			return nil
		}
		var link string
		var data []byte
		var err error
		switch fi.Mode().Type() {
		case fs.ModeSymlink:
			link, err = os.Readlink(path)
		case 0:
			data, err = os.ReadFile(path)
		}
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(fi, link)
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("no status of %s", path)
		}
		h.Name, h.Uname, h.Gname, h.Uid, h.Gid = "./"+name, "", "", int(st.Uid), int(st.Gid)
		if fi.Mode().IsRegular() {
			h.Size = int64(len(data))
		}
		if fi.IsDir() && name != "" {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	return errors.Join(err, tw.Close())
}
