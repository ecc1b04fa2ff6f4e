package agent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer/apply"
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
		return nil, fileError("inspect", to, err)
	}
	return connect.NewResponse(&agentv1.MoveResponse{Info: a.complete(info)}), nil
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

// moveAcross moves between file systems: it copies into the target's directory, renames
// the copy and only then deletes the original.
func moveAcross(ctx context.Context, from, to string, overwrite bool) error {
	src, err := openEntry(from)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := openEntry(to)
	if err != nil {
		return err
	}
	defer dst.close()
	temp := dirEntry{dir: dst.dir, name: tempName()}
	if err = copyTree(ctx, src, temp, 0); err == nil {
		err = dst.replace(temp.name, !overwrite)
	}
	if err != nil {
		_ = apply.RemoveAll(temp.dir, temp.name)
		return err
	}
	if err := apply.RemoveAll(src.dir, src.name); err != nil {
		return fail(connect.CodeAborted, "everything was copied to %s, but %s could not be deleted (%v); delete it yourself", to, from, err)
	}
	return nil
}
