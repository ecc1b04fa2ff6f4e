package memory

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cove-sh/cove/internal/engine"
)

var _ engine.Portable = (*Keeper)(nil)

// filesOf is the only file of an export, a tar stream.
const filesOf = "files"

// described is the description of an export.
type described struct {
	engine.Checkpoint
	Bytes int64
}

// Export implements [engine.Portable].
func (e *Keeper) Export(_ context.Context, id string) (*engine.Export, error) {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	k := e.state.kept[id]
	if k == nil {
		return nil, engine.ErrNotFound
	}
	var files bytes.Buffer
	if err := writeTree(&files, k.dir); err != nil {
		return nil, err
	}
	size := int64(files.Len())
	data, err := json.Marshal(described{k.Checkpoint, size})
	if err != nil {
		return nil, err
	}
	return &engine.Export{
		Checkpoint: k.Checkpoint, Description: data,
		Files: []engine.ExportFile{{Name: filesOf, Size: size, ReadCloser: io.NopCloser(&files)}},
	}, nil
}

// Import implements [engine.Portable].
func (e *Keeper) Import(_ context.Context, as engine.Checkpoint, description []byte, fetch engine.Fetch) (c engine.Checkpoint, err error) {
	var d described
	if err := json.Unmarshal(description, &d); err != nil {
		return c, err
	}
	if d.ID != as.ID {
		return c, fmt.Errorf("it is the checkpoint %.80s", d.ID)
	}
	d.Root, d.Resources, d.Label, d.Owner = as.Root, as.Resources, as.Label, as.Owner
	f, err := os.CreateTemp(e.state.dir, "import-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := f.Truncate(d.Bytes); err != nil {
		return c, err
	}
	if err := fetch(engine.ExportFile{Name: filesOf, Size: d.Bytes}, f); err != nil {
		return c, err
	}
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	if e.state.kept[d.ID] != nil {
		return c, fmt.Errorf("there is a checkpoint %s", d.ID)
	}
	k := &kept{dir: filepath.Join(e.state.dir, "checkpoint-"+d.ID), Checkpoint: d.Checkpoint}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return c, err
	}
	if err := readTree(k.dir, io.NewSectionReader(f, 0, d.Bytes)); err != nil {
		return c, errors.Join(err, removeAll(k.dir))
	}
	e.state.kept[d.ID] = k
	return d.Checkpoint, nil
}

// readTree makes the entries that writeTree wrote.
func readTree(dir string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		switch {
		case name == ".":
		case h.Typeflag == tar.TypeDir:
			err = root.Mkdir(name, 0o700)
		case h.Typeflag == tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		default:
			var data []byte
			if data, err = io.ReadAll(tr); err == nil {
				err = root.WriteFile(name, data, h.FileInfo().Mode().Perm())
			}
		}
		if err != nil {
			return err
		}
	}
}
