package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/durable"
)

// directory is a bucket in a directory, such as a network disk. The directory itself is
// never created: if it is missing, a disk is not mounted.
type directory struct{ path string }

// staleAge is how old a file must be that a killed process left half written.
const staleAge = 24 * time.Hour

func (d *directory) String() string { return "file://" + d.path }

// at returns the path of an object, if the directory is there.
func (d *directory) at(ctx context.Context, name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := d.present(); err != nil {
		return "", err
	}
	return filepath.Join(d.path, name), nil
}

func (d *directory) present() error {
	info, err := os.Stat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %s", ErrNoBucket, d.path)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", ErrNoBucket, d.path)
	}
	return nil
}

func (d *directory) Put(ctx context.Context, name string, data []byte) error {
	path, err := d.at(ctx, name)
	if err != nil {
		return err
	}
	if err := d.makeParents(filepath.Dir(name)); err != nil {
		return err
	}
	return durable.WriteFile(path, data)
}

// makeParents makes the directory of an object, durably.
func (d *directory) makeParents(dir string) error {
	if dir == "." {
		return nil
	}
	path := filepath.Join(d.path, dir)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := d.makeParents(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func (d *directory) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	path, err := d.at(ctx, name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, absent(err)
	}
	defer f.Close()
	return readAtMost(f, limit)
}

// readAtMost reads all of r, or fails with [ErrTooLarge].
func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > limit:
		return nil, ErrTooLarge
	}
	return data, nil
}

// absent turns the error for a missing file into [ErrNotFound].
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}

func (d *directory) Stat(ctx context.Context, name string) (Info, error) {
	path, err := d.at(ctx, name)
	if err != nil {
		return Info{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Info{}, absent(err)
	}
	if !info.Mode().IsRegular() {
		return Info{}, ErrNotFound
	}
	return Info{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil
}

func (d *directory) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		path, err := d.at(ctx, strings.TrimSuffix(prefix, "/"))
		if err == nil {
			err = d.walk(ctx, path, yield)
		}
		if err != nil && !errors.Is(err, fs.SkipAll) {
			yield(Info{}, err)
		}
	}
}

func (d *directory) walk(ctx context.Context, path string, yield func(Info, error) bool) error {
	return filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && !e.IsDir() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil && !d.visit(file, info, yield) {
				return fs.SkipAll
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // there are none, or one was just removed
		}
		return err
	})
}

// visit yields a file, unless it is not an object. It removes what a killed process has
// left half written.
func (d *directory) visit(file string, info fs.FileInfo, yield func(Info, error) bool) bool {
	if half, _ := filepath.Match(durable.TempFiles, filepath.Base(file)); half && time.Since(info.ModTime()) > staleAge {
		_ = os.Remove(file)
	}
	name, err := filepath.Rel(d.path, file)
	if err != nil || checkName(name) != nil || !info.Mode().IsRegular() {
		return true
	}
	return yield(Info{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil)
}

func (d *directory) Delete(ctx context.Context, names []string) error {
	for _, name := range names {
		path, err := d.at(ctx, name)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
