package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files are small files that change as a whole and durably. Their names have parts separated
// by slashes. Methods are safe for concurrent use.
type Files interface {
	// Read returns the content of a file; one that is missing is [fs.ErrNotExist].
	Read(name string) ([]byte, error)
	// ReadAll returns the contents of all files below a name, by their whole names.
	ReadAll(dir string) (map[string][]byte, error)
	// Write makes a file or replaces its content.
	Write(name string, data []byte) error
	// Remove removes a file. Of several that remove it, one succeeds, and the others get
	// [fs.ErrNotExist].
	Remove(name string) error
	// RemoveAll removes all files below a name, if there are any.
	RemoveAll(dir string) error
	// Sync makes sure that files that were removed directly below a name stay so, even if the
	// power fails.
	Sync(dir string) error
}

// Dir is a directory with [Files] below it. It is made with the first file.
type Dir string

var _ Files = Dir("")

func (d Dir) path(name string) string { return filepath.Join(string(d), filepath.FromSlash(name)) }

// Read implements [Files].
func (d Dir) Read(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

// ReadAll implements [Files].
func (d Dir) ReadAll(dir string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := filepath.WalkDir(d.path(dir), func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // there are none, or it was just removed
		case err != nil:
			return err
		case !e.Type().IsRegular() || strings.HasPrefix(e.Name(), "."):
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(string(d), path)
		found[filepath.ToSlash(name)] = data
		return err
	})
	return found, err
}

// Write implements [Files].
func (d Dir) Write(name string, data []byte) error {
	path := d.path(name)
	err := WriteFile(path, data)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = WriteFile(path, data)
		}
	}
	return err
}

// Remove implements [Files].
func (d Dir) Remove(name string) error { return os.Remove(d.path(name)) }

// RemoveAll implements [Files].
func (d Dir) RemoveAll(dir string) error { return os.RemoveAll(d.path(dir)) }

// Sync implements [Files].
func (d Dir) Sync(dir string) error { return SyncDir(d.path(dir)) }

// Below returns the files below a name.
func Below(all Files, dir string) Files { return below{all, dir + "/"} }

type below struct {
	all    Files
	prefix string
}

func (b below) Read(name string) ([]byte, error)     { return b.all.Read(b.prefix + name) }
func (b below) Write(name string, data []byte) error { return b.all.Write(b.prefix+name, data) }
func (b below) Remove(name string) error             { return b.all.Remove(b.prefix + name) }
func (b below) RemoveAll(dir string) error           { return b.all.RemoveAll(b.dir(dir)) }
func (b below) Sync(dir string) error                { return b.all.Sync(b.dir(dir)) }

// dir returns the whole name of a directory; "" is that of all files.
func (b below) dir(dir string) string { return strings.TrimSuffix(b.prefix+dir, "/") }

func (b below) ReadAll(dir string) (map[string][]byte, error) {
	all, err := b.all.ReadAll(b.dir(dir))
	found := make(map[string][]byte, len(all))
	for name, data := range all {
		found[strings.TrimPrefix(name, b.prefix)] = data
	}
	return found, err
}
