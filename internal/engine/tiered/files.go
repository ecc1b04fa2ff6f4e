package tiered

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/durable"
)

// files are what this machine remembers of the bucket.
type files struct {
	dir  string
	step func(string) error
}

func newToken() string { return strings.ToLower(rand.Text()) }

func (f files) open() error {
	// A killed process may have left the content of a root.
	roots, _ := filepath.Glob(filepath.Join(f.dir, "root-*"))
	for _, file := range roots {
		_ = os.Remove(file)
	}
	for _, dir := range []string{"checkpoints", "removed"} {
		path := filepath.Join(f.dir, dir)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return fmt.Errorf("object store: %w", err)
		}
		stale, _ := filepath.Glob(filepath.Join(path, durable.TempFiles))
		for _, file := range stale {
			_ = os.Remove(file)
		}
	}
	return nil
}

// knownManifest is the local copy of a manifest.
type knownManifest struct {
	*manifest
	used time.Time
}

func (f files) path(id string) string { return filepath.Join(f.dir, "checkpoints", id) }

// manifests reads the copies of manifests. One that cannot be read is left out: it is read
// from the bucket again.
func (f files) manifests(v *vessel) (map[string]knownManifest, error) {
	entries, err := os.ReadDir(filepath.Join(f.dir, "checkpoints"))
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	out := map[string]knownManifest{}
	for _, entry := range entries {
		id := entry.Name()
		info, err := entry.Info()
		if err != nil || !validID.MatchString(id) {
			continue
		}
		if m, err := f.manifest(v, id); err == nil && m.Checkpoint != nil {
			out[id] = knownManifest{m, info.ModTime()}
		}
	}
	return out, nil
}

func (f files) manifest(v *vessel, id string) (*manifest, error) {
	if !validID.MatchString(id) {
		return nil, fs.ErrNotExist
	}
	sealed, err := os.ReadFile(f.path(id))
	if err != nil {
		return nil, err
	}
	return v.openManifest(checkpointObject(id), id, sealed)
}

// keep stores the copy of a manifest.
func (f files) keep(id string, sealed []byte) error {
	if err := f.step("keep manifest"); err != nil {
		return err
	}
	return durable.WriteFile(f.path(id), sealed)
}

// forget removes the copy of a manifest.
func (f files) forget(id string) error {
	if err := f.step("forget manifest"); err != nil {
		return err
	}
	return removed(f.path(id))
}

// touch notes that a checkpoint was used.
func (f files) touch(id string, at time.Time) { _ = os.Chtimes(f.path(id), at, at) }

// tokenFile has the token of the process of this machine that has used the bucket last.
const tokenFile = "token"

// wasLast reports whether the process of this machine that has used the bucket last has this
// token.
func (f files) wasLast(token string) bool {
	last, err := os.ReadFile(filepath.Join(f.dir, tokenFile))
	return err == nil && string(last) == token
}

func (f files) setLast(token string) error {
	return durable.WriteFile(filepath.Join(f.dir, tokenFile), []byte(token))
}

// bury writes a tombstone, and dig removes it.
func (f files) bury(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("invalid checkpoint id %q", id)
	}
	if err := f.step("bury"); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(f.dir, "removed", id), nil)
}

func (f files) dig(id string) error {
	if err := f.step("dig"); err != nil {
		return err
	}
	return removed(filepath.Join(f.dir, "removed", id))
}

func (f files) tombstones() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(f.dir, "removed"))
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if validID.MatchString(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

func removed(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
