package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// upload copies into a sandbox.
type upload struct {
	app     *app
	c       *client.Client
	sandbox string
	owner   string
}

func (u *upload) run(ctx context.Context, source, target string) error {
	if source == "-" {
		m, done := u.app.measured(u.app.Stdin, 0)
		defer done()
		return u.write(ctx, m, target, "")
	}
	info, err := os.Stat(source)
	if err != nil {
		return hereError("read", source, err)
	}
	target, err = u.target(ctx, source, target, info.IsDir())
	if err != nil {
		return err
	}
	if info.IsDir() {
		return u.tree(ctx, source, target)
	}
	return u.file(ctx, source, target)
}

// target returns the path to write to: below target if that is a directory, or ends in
// a slash.
func (u *upload) target(ctx context.Context, source, target string, isDir bool) (string, error) {
	name := filepath.Base(source)
	if abs, err := filepath.Abs(source); err == nil {
		name = filepath.Base(abs)
	}
	if strings.HasSuffix(target, "/") {
		return path.Join(target, name), nil
	}
	there, err := u.c.StatFile(ctx, u.sandbox, target)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		// If the sandbox does not exist, the write reports that.
		return target, nil
	case err != nil:
		return "", err
	case there.Type == sandbox.TypeDirectory:
		return path.Join(target, name), nil
	case isDir:
		return "", sandbox.Errorf(sandbox.CodeConflict, "%s is a file in the sandbox and cannot be replaced by a directory; choose another target", target)
	}
	return target, nil
}

func (u *upload) file(ctx context.Context, source, target string) error {
	f, err := os.Open(source)
	if err != nil {
		return hereError("read", source, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return hereError("read", source, err)
	}
	m, done := u.app.measured(f, info.Size())
	defer done()
	return u.write(ctx, m, target, modeText(info.Mode()))
}

func (u *upload) write(ctx context.Context, content io.Reader, target, mode string) error {
	req := sandbox.WriteFileRequest{Path: target, Mode: mode, MakeParents: true, Owner: u.owner}
	_, err := u.c.WriteFile(ctx, u.sandbox, req, content)
	return err
}

func modeText(m fs.FileMode) string { return fmt.Sprintf("%04o", m.Perm()) }

// tree copies a directory with all its contents.
func (u *upload) tree(ctx context.Context, source, target string) error {
	return filepath.WalkDir(source, func(local string, entry fs.DirEntry, err error) error {
		if err != nil {
			return hereError("read", local, err)
		}
		rel, err := filepath.Rel(source, local)
		if err != nil {
			return err
		}
		remote := path.Join(target, filepath.ToSlash(rel))
		switch {
		case entry.IsDir():
			info, err := entry.Info()
			if err != nil {
				return hereError("read", local, err)
			}
			_, err = u.c.MakeDir(ctx, u.sandbox, sandbox.MakeDirRequest{Path: remote, Mode: modeText(info.Mode())})
			return err
		case entry.Type().IsRegular():
			return u.file(ctx, local, remote)
		case entry.Type() == fs.ModeSymlink:
			return u.symlink(ctx, local, remote)
		}
		u.app.say("skipped, because it is not a file, directory or symbolic link: %s", clean(local))
		return nil
	})
}

func (u *upload) symlink(ctx context.Context, local, remote string) error {
	target, err := os.Readlink(local)
	if err != nil {
		return hereError("read", local, err)
	}
	_, err = u.c.MakeSymlink(ctx, u.sandbox, sandbox.MakeSymlinkRequest{Path: remote, Target: target, Owner: u.owner, Overwrite: true})
	return err
}
