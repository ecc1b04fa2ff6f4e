package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/wire/agentv1"
)

// Move implements [agentv1connect.AgentHandler].
func (a *Agent) Move(ctx context.Context, req *connect.Request[agentv1.MoveRequest]) (*connect.Response[agentv1.MoveResponse], error) {
	from, err := a.path(req.Msg.GetFrom())
	if err != nil {
		return nil, err
	}
	to, err := a.path(req.Msg.GetTo())
	if err != nil {
		return nil, err
	}
	if from == "/" || to == "/" {
		return nil, invalid("the root directory cannot be moved or replaced; give a path below it")
	}
	if to != from && strings.HasPrefix(to, from+"/") {
		return nil, invalid("%s cannot be moved into itself; choose another place", from)
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return nil, fileError("move", from, err)
	}
	if err := rename(ctx, from, to, req.Msg.GetOverwrite()); err != nil {
		return nil, fileError("move to", to, err)
	}
	info, err := statPath(to, false)
	if err != nil {
		return nil, fileError("look at", to, err)
	}
	return connect.NewResponse(&agentv1.MoveResponse{Info: info}), nil
}

func rename(ctx context.Context, from, to string, overwrite bool) error {
	var err error
	if overwrite {
		err = unix.Rename(from, to)
	} else {
		err = renameNew(unix.AT_FDCWD, from, unix.AT_FDCWD, to)
	}
	switch {
	case errors.Is(err, unix.EXDEV):
		return moveAcross(ctx, from, to, overwrite)
	case errors.Is(err, unix.ENOENT):
		return fail(connect.CodeNotFound, "the directory %s does not exist; make it first", filepath.Dir(to))
	}
	return err
}

// moveAcross moves between file systems: it copies beside the target, gives
// the copy its name and only then deletes the original.
func moveAcross(ctx context.Context, from, to string, overwrite bool) error {
	temp := filepath.Join(filepath.Dir(to), tempPrefix+strings.ToLower(rand.Text())+tempSuffix)
	if err := copyTree(ctx, from, temp, 0); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	var err error
	if overwrite {
		err = unix.Rename(temp, to)
	} else {
		err = renameNew(unix.AT_FDCWD, temp, unix.AT_FDCWD, to)
	}
	if err != nil {
		_ = os.RemoveAll(temp)
		return err
	}
	if err := os.RemoveAll(from); err != nil {
		return fail(connect.CodeAborted, "everything was copied to %s, but %s could not be deleted (%v); delete it yourself", to, from, err)
	}
	return nil
}

// maxTreeDepth bounds how deep directories are followed.
const maxTreeDepth = 200

// copyTree copies a file, directory or link with owner, mode and time.
func copyTree(ctx context.Context, from, to string, depth int) error {
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	if depth > maxTreeDepth {
		return invalid("%s is nested too deep to be moved to another file system", from)
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
		return keepOwner(os.Lchown(to, int(st.Uid), int(st.Gid)))
	case unix.S_IFDIR:
		if err := copyDir(ctx, from, to, depth); err != nil {
			return err
		}
	case unix.S_IFREG:
		if err := copyFile(from, to); err != nil {
			return err
		}
	default:
		return invalid("%s is neither file, directory nor link, so it cannot be moved to another file system; delete it first", from)
	}
	if err := keepOwner(os.Lchown(to, int(st.Uid), int(st.Gid))); err != nil {
		return err
	}
	if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// keepOwner forgives an agent that is not root that it cannot.
func keepOwner(err error) error {
	if os.Geteuid() != 0 && errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

func copyDir(ctx context.Context, from, to string, depth int) error {
	if err := unix.Mkdir(to, 0o700); err != nil {
		return err
	}
	dir, err := openDir(unix.AT_FDCWD, from)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := copyTree(ctx, filepath.Join(from, name), filepath.Join(to, name), depth+1); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func copyFile(from, to string) error {
	src, _, err := openRegular(unix.AT_FDCWD, from, from, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// openDir opens a directory, which must not be a link, relative to another.
func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
