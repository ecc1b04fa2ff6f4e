// Package checkpoint stores checkpoints of sandboxes as directories.
//
// A checkpoint is written under a temporary name and then renamed, so that it is visible
// either completely or not at all. Its manifest is written last and contains what a
// restore needs to know: the program that made the checkpoint, the processor's features,
// and the size and checksum of each file.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/machine"
)

// format is the version of the directory's layout.
const format = 1

const (
	manifestFile = "manifest.json"
	// draftPrefix is the prefix of checkpoints that are being written.
	draftPrefix = ".draft-"
	// maxManifestBytes limits a manifest.
	maxManifestBytes = 4 << 20
)

// ErrDamaged means that a checkpoint differs from what was written.
var ErrDamaged = errors.New("the checkpoint is damaged")

// validID matches ids, which are names of directories.
var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,80}$`)

// Manifest describes a checkpoint.
type Manifest struct {
	Format int `json:"format"`
	engine.Checkpoint
	// Program is the file in the engine's directory of programs that made the checkpoint:
	// only the same build of gVisor can restore it.
	Program string `json:"program"`
	// AgentDir is the directory of the sandbox's agent.
	AgentDir string `json:"agent_dir"`
	// Cell is the version of the program's cell protocol; see package cell.
	Cell int `json:"cell,omitempty"`
	// CPU are the features of the processor that were visible to the sandbox's programs.
	CPU   []string `json:"cpu"`
	Files []File   `json:"files"`
}

// File is one file of a checkpoint.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// CRC32C is set in durable checkpoints, except for files with checksums of their own. It
	// detects damage, not manipulation.
	CRC32C *uint32 `json:"crc32c,omitempty"`
	// Summed is how many bytes from the start the checksum covers; 0 means all. Only older
	// versions wrote other values.
	Summed int64 `json:"summed,omitempty"`
}

// File returns the file of a name, or nil.
func (m *Manifest) File(name string) *File {
	if i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == name }); i >= 0 {
		return &m.Files[i]
	}
	return nil
}

// Dir is a directory of checkpoints. Its methods are safe for concurrent use.
type Dir struct{ path string }

// Open opens a directory of checkpoints, creates it if needed, and removes drafts. Only
// one process at a time may use it.
func Open(path string) (Dir, error) {
	d := Dir{path: path}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return d, fmt.Errorf("open checkpoints: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return d, fmt.Errorf("open checkpoints: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), draftPrefix) {
			if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
				return d, fmt.Errorf("remove an incomplete checkpoint: %w", err)
			}
		}
	}
	return d, nil
}

// Path returns the directory of a checkpoint.
func (d Dir) Path(id string) string { return filepath.Join(d.path, id) }

// Draft is a checkpoint that is being written.
type Draft struct {
	d   Dir
	id  string
	dir string
	// unsummed are the arguments of NoSum.
	unsummed []string
}

// Begin starts a checkpoint. The draft must be committed or discarded.
func (d Dir) Begin(id string) (*Draft, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("invalid checkpoint id %q", id)
	}
	if _, err := os.Lstat(d.Path(id)); err == nil {
		return nil, fmt.Errorf("checkpoint %s: %w", id, fs.ErrExist)
	}
	dir := filepath.Join(d.path, draftPrefix+id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("begin checkpoint: %w", err)
	}
	return &Draft{d: d, id: id, dir: dir}, nil
}

// Dir returns the directory for the checkpoint's files.
func (w *Draft) Dir() string { return w.dir }

// Discard removes the draft. After Commit it does nothing.
func (w *Draft) Discard() error { return os.RemoveAll(w.dir) }

// NoSum omits the checksum of a file that has checksums of its own.
func (w *Draft) NoSum(name string) { w.unsummed = append(w.unsummed, name) }

// Commit makes the checkpoint visible, with all files in the draft, and returns its
// manifest with their sizes. If synced, the checkpoint has checksums and survives a power
// failure from now on.
func (w *Draft) Commit(m Manifest, synced bool) (Manifest, error) {
	m.Format, m.ID = format, w.id
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return m, fmt.Errorf("write checkpoint: %w", err)
	}
	// Others may already continue from it, for which it has a socket.
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket })
	m.Files, m.SizeBytes = make([]File, len(entries)), 0
	var g errgroup.Group
	for i, e := range entries {
		g.Go(func() (err error) {
			m.Files[i], err = finishFile(w.dir, e.Name(), !slices.Contains(w.unsummed, e.Name()), synced)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return m, fmt.Errorf("write checkpoint: %w", err)
	}
	for _, f := range m.Files {
		m.SizeBytes += f.Size
	}
	if err := writeManifest(w.dir, &m, synced); err != nil {
		return m, fmt.Errorf("write checkpoint: %w", err)
	}
	rename := os.Rename
	if synced {
		rename = durable.Rename
	}
	if err := rename(w.dir, w.d.Path(w.id)); err != nil {
		return m, fmt.Errorf("write checkpoint: %w", err)
	}
	return m, nil
}

// Copy makes a checkpoint visible that was copied from elsewhere with its manifest. It
// survives a power failure from now on. The draft must have exactly the manifest's files.
func (w *Draft) Copy(m Manifest) error {
	if m.ID != w.id {
		return damaged(fmt.Errorf("it is the manifest of %q", m.ID))
	}
	if err := m.Check(); err != nil {
		return err
	}
	for _, want := range m.Files {
		got, err := finishFile(w.dir, want.Name, false, true)
		if err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		if got.Size != want.Size {
			return damaged(fmt.Errorf("%s has %d bytes instead of %d", want.Name, got.Size, want.Size))
		}
	}
	err := writeManifest(w.dir, &m, true)
	if err == nil {
		err = durable.Rename(w.dir, w.d.Path(w.id))
	}
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// finishFile returns a file's entry in the manifest. For a synced checkpoint, it syncs
// the file and computes its checksum at the same time.
func finishFile(dir, name string, summed, synced bool) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	out := File{Name: name, Size: info.Size()}
	if !synced {
		return out, nil
	}
	if !summed {
		return out, f.Sync()
	}
	var g errgroup.Group
	g.Go(f.Sync)
	sum, err := checksum(filepath.Join(dir, name), 0)
	if err := errors.Join(err, g.Wait()); err != nil {
		return File{}, err
	}
	out.CRC32C = &sum
	return out, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum of the first n bytes of a file, or of all if n is 0.
func checksum(path string, n int64) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if n == 0 {
		n = math.MaxInt64
	}
	h := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, io.LimitReader(f, n), make([]byte, 1<<20)); err != nil {
		return 0, err
	}
	return h.Sum32(), nil
}

func writeManifest(dir string, m *Manifest, synced bool) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, manifestFile)
	if synced {
		return durable.CreateFile(path, data)
	}
	// The file must be new: the cell can write here too.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Sync makes a checkpoint durable that was committed without syncing.
func (d Dir) Sync(id string) error {
	f, err := os.Open(d.Path(id))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Manifest reads a checkpoint's manifest. The error is [fs.ErrNotExist] if there is no
// checkpoint, and [ErrDamaged] if files are missing or have another size.
func (d Dir) Manifest(id string) (Manifest, error) {
	var m Manifest
	if !validID.MatchString(id) {
		return m, fs.ErrNotExist
	}
	if _, err := os.Stat(d.Path(id)); err != nil {
		return m, err
	}
	f, err := os.Open(filepath.Join(d.Path(id), manifestFile))
	if machine.Scarce(err) {
		return m, err
	}
	if err != nil {
		return m, damaged(err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxManifestBytes)).Decode(&m); err != nil {
		return m, damaged(err)
	}
	if m.ID != id {
		return m, damaged(fmt.Errorf("it is the manifest of %q", m.ID))
	}
	if err := m.Check(); err != nil {
		return m, err
	}
	for _, want := range m.Files {
		info, err := os.Lstat(filepath.Join(d.Path(id), want.Name))
		if err != nil {
			return m, damaged(err)
		}
		if !info.Mode().IsRegular() {
			return m, damaged(fmt.Errorf("%s is not a regular file", want.Name))
		}
		if info.Size() != want.Size {
			return m, damaged(fmt.Errorf("%s has %d bytes instead of %d", want.Name, info.Size(), want.Size))
		}
	}
	return m, nil
}

// Check checks what a manifest says, without looking at its files. The error is
// [ErrDamaged], unless the manifest has another format.
func (m *Manifest) Check() error {
	switch {
	case m.Format != format:
		return fmt.Errorf("the checkpoint has format %d, this program knows %d", m.Format, format)
	case !validID.MatchString(m.ID):
		return damaged(fmt.Errorf("it is the manifest of %q", m.ID))
	case !isName(m.Program) && m.Program != "":
		return damaged(fmt.Errorf("it names the program %q", m.Program))
	}
	names := map[string]bool{manifestFile: true}
	for _, f := range m.Files {
		if !isName(f.Name) || names[f.Name] {
			return damaged(fmt.Errorf("it names the file %q", f.Name))
		}
		names[f.Name] = true
	}
	return nil
}

// isName reports whether a name is the name of a directory entry, without a path.
func isName(name string) bool {
	return filepath.Base(name) == name && filepath.IsLocal(name) && name != "."
}

func damaged(err error) error { return fmt.Errorf("%w: %w", ErrDamaged, err) }

// Verify compares the files of a durable checkpoint with their checksums. The error is
// [ErrDamaged] if one does not match.
func (d Dir) Verify(m *Manifest) error {
	var g errgroup.Group
	for _, f := range m.Files {
		if f.CRC32C == nil {
			continue
		}
		g.Go(func() error {
			sum, err := checksum(filepath.Join(d.Path(m.ID), f.Name), f.Summed)
			if err != nil {
				return err
			}
			if sum != *f.CRC32C {
				return damaged(fmt.Errorf("%s has different content", f.Name))
			}
			return nil
		})
	}
	return g.Wait()
}

// List returns the manifests of all intact checkpoints, and the ids of the others.
func (d Dir) List() (whole []Manifest, broken []string, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, fmt.Errorf("list checkpoints: %w", err)
	}
	for _, e := range entries {
		if !validID.MatchString(e.Name()) {
			continue
		}
		m, err := d.Manifest(e.Name())
		if machine.Scarce(err) {
			return nil, nil, fmt.Errorf("list checkpoints: %w", err)
		}
		if err != nil {
			broken = append(broken, e.Name())
			continue
		}
		whole = append(whole, m)
	}
	return whole, broken, nil
}

// Remove removes a checkpoint. An unknown one is not an error.
func (d Dir) Remove(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	// Rename it first, so that it is never partly visible.
	gone := filepath.Join(d.path, draftPrefix+"removed-"+id)
	if err := os.Rename(d.Path(id), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove checkpoint: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove checkpoint: %w", err)
	}
	return nil
}

// MissingCPU returns the processor features that a checkpoint needs beyond those given.
func (m *Manifest) MissingCPU(have []string) []string {
	return slices.DeleteFunc(slices.Clone(m.CPU), func(f string) bool { return slices.Contains(have, f) })
}
