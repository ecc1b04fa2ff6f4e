package cli

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// maxEntries bounds the files in a directory that is copied from a sandbox.
const maxEntries = 1 << 20

// download copies out of a sandbox.
type download struct {
	app      *app
	c        *client.Client
	sandbox  string
	maxBytes int64
}

func (d *download) run(ctx context.Context, source, target string) error {
	info, err := d.c.StatFile(ctx, d.sandbox, source)
	if err != nil {
		return err
	}
	if info.Type == sandbox.TypeDirectory {
		if target == "-" {
			return errors.New("a directory cannot be written to standard output; name a target directory")
		}
		return d.dir(ctx, source, d.target(info, target))
	}
	file, err := d.c.ReadFile(ctx, d.sandbox, sandbox.ReadFileRequest{Path: source})
	if err != nil {
		return err
	}
	defer file.Close()
	m, done := d.app.measured(file, file.Info.Size)
	defer done()
	if target == "-" {
		_, err := io.Copy(d.app.Stdout, m)
		return err
	}
	return writeWhole(d.target(info, target), m, permOf(file.Info.Mode))
}

// target returns the path to write to: below target if that is a directory, or ends in
// a slash. The file's name comes from the sandbox and is not trusted.
func (d *download) target(info *sandbox.FileInfo, target string) string {
	name := path.Base(path.Clean("/" + info.Path))
	if name == "/" {
		name = d.sandbox
	}
	here, err := os.Stat(target)
	if strings.HasSuffix(target, "/") || err == nil && here.IsDir() {
		return filepath.Join(target, filepath.Base(filepath.FromSlash(name)))
	}
	return target
}

// permOf parses a mode that the sandbox reports, without set-user-id bits.
func permOf(mode string) fs.FileMode {
	n, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return 0o644
	}
	return fs.FileMode(n) & 0o777
}

// writeWhole writes a file completely or not at all. It writes into a device or a pipe,
// such as /dev/null, since a rename would replace it.
func writeWhole(target string, content io.Reader, perm fs.FileMode) (err error) {
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		return writeThrough(target, content)
	}
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return hereError("make", dir, err)
	}
	tmp, err := os.CreateTemp(dir, ".cove-*")
	if err != nil {
		return hereError("write in", dir, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = io.Copy(tmp, content)
	err = errors.Join(err, tmp.Chmod(perm), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return hereError("write", target, err)
	}
	return nil
}

// writeThrough writes into an existing file that is not a regular one.
func writeThrough(target string, content io.Reader) error {
	out, err := os.OpenFile(target, os.O_WRONLY, 0)
	if err != nil {
		return hereError("write", target, err)
	}
	_, err = io.Copy(out, content)
	return errors.Join(err, out.Close())
}

// dir copies a directory: it fetches the whole archive, since a ZIP file has its table
// at the end, and then unpacks it.
func (d *download) dir(ctx context.Context, source, target string) error {
	archive, err := d.c.ArchiveDir(ctx, d.sandbox, source, 0)
	if err != nil {
		return err
	}
	defer archive.Close()
	spool, err := os.CreateTemp("", "cove-cp-*.zip")
	if err != nil {
		return fmt.Errorf("create a temporary file: %w", err)
	}
	defer spool.Close()
	defer os.Remove(spool.Name())
	m, done := d.app.measured(archive, 0)
	size, err := io.Copy(spool, io.LimitReader(m, d.maxBytes+1))
	done()
	if err != nil {
		return err
	}
	if size > d.maxBytes {
		return tooBig(d.maxBytes)
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return hereError("make", target, err)
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return hereError("open", target, err)
	}
	defer root.Close()
	return unpack(root, spool, size, d.maxBytes)
}

func tooBig(maxBytes int64) error {
	return sandbox.Errorf(sandbox.CodeTooLarge, "the directory holds more than %s; copy parts of it, or raise the limit with --max-size", bytesText(maxBytes))
}

// unpack unpacks a ZIP file that a sandbox has made below root. The file is not
// trusted: its names, sizes and kinds are checked, and root keeps everything inside.
func unpack(root *os.Root, archive io.ReaderAt, size, maxBytes int64) error {
	z, err := zip.NewReader(archive, size)
	if err != nil {
		return damaged(err)
	}
	if len(z.File) > maxEntries {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the directory holds more than %d files; copy parts of it", maxEntries)
	}
	left := maxBytes
	var links []*zip.File
	for _, entry := range z.File {
		if entry.Mode()&fs.ModeType == fs.ModeSymlink {
			links = append(links, entry)
			continue
		}
		n, err := unpackEntry(root, entry, left)
		if err != nil {
			return err
		}
		if left -= n; left < 0 {
			return tooBig(maxBytes)
		}
	}
	// Links come last, so that no file is written through one of the archive's.
	for _, entry := range links {
		if err := unpackLink(root, entry); err != nil {
			return err
		}
	}
	return nil
}

// entryName returns the name of an entry if it is below the target directory.
func entryName(entry *zip.File) (string, error) {
	name := strings.TrimSuffix(entry.Name, "/")
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the archive from the sandbox names a file outside the directory (%q); unpacking stopped there", entry.Name)
	}
	return name, nil
}

// unpackLink makes a symbolic link, and replaces an existing file or link. Its target
// is not checked, because nothing here follows it.
func unpackLink(root *os.Root, entry *zip.File) error {
	name, err := entryName(entry)
	if err != nil {
		return err
	}
	in, err := entry.Open()
	if err != nil {
		return damaged(err)
	}
	defer in.Close()
	target, err := io.ReadAll(io.LimitReader(in, sandbox.MaxPathBytes))
	if err != nil {
		return damaged(err)
	}
	if len(target) == 0 || len(target) == sandbox.MaxPathBytes || bytes.ContainsRune(target, 0) {
		return sandbox.Errorf(sandbox.CodeInvalid, "the archive from the sandbox has a symbolic link (%q) without a valid target; unpacking stopped there", entry.Name)
	}
	if err := makeParent(root, name); err != nil {
		return err
	}
	if err := removeFile(root, name, true); err != nil {
		return err
	}
	return root.Symlink(string(target), name)
}

// makeParent makes the directories above name that are missing.
func makeParent(root *os.Root, name string) error {
	if dir := filepath.Dir(name); dir != "." {
		return root.MkdirAll(dir, 0o755)
	}
	return nil
}

// removeFile removes what is in the way of a new file or link: a link, or with all any
// other file. Directories stay.
func removeFile(root *os.Root, name string, all bool) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (info.IsDir() || !all && info.Mode()&fs.ModeSymlink == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	return root.Remove(name)
}

func damaged(err error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the archive from the sandbox is damaged; try again")
}

// unpackEntry unpacks a file or directory and returns how many bytes it wrote: at
// most one more than limit.
func unpackEntry(root *os.Root, entry *zip.File, limit int64) (int64, error) {
	name, err := entryName(entry)
	if err != nil {
		return 0, err
	}
	switch mode := entry.Mode(); {
	case mode.IsDir():
		return 0, root.MkdirAll(name, 0o755)
	case !mode.IsRegular():
		return 0, nil
	}
	if err := makeParent(root, name); err != nil {
		return 0, err
	}
	in, err := entry.Open()
	if err != nil {
		return 0, damaged(err)
	}
	defer in.Close()
	perm := entry.Mode().Perm()&0o777 | 0o200
	if err := removeFile(root, name, false); err != nil {
		return 0, err
	}
	out, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err := errors.Join(err, out.Close()); err != nil {
		return n, fmt.Errorf("unpack %s: %w", clean(name), err)
	}
	return n, nil
}
