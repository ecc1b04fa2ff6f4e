package agent

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// MakeDir implements [agentv1connect.AgentHandler].
func (a *Agent) MakeDir(_ context.Context, req *connect.Request[agentv1.MakeDirRequest]) (*connect.Response[agentv1.MakeDirResponse], error) {
	m := req.Msg
	path, err := a.path(m.GetPath())
	if err != nil {
		return nil, err
	}
	if m.GetMode() > 0o7777 {
		return nil, invalid("the mode %o is not valid; use permission bits such as 0755", m.GetMode())
	}
	owner, err := a.owner(m.GetOwner())
	if err != nil {
		return nil, err
	}
	if m.GetParents() {
		if err := makeParents(filepath.Dir(path), &owner); err != nil {
			return nil, fileError("make the directory", path, err)
		}
	}
	err = makeDir(path, cmp.Or(m.GetMode(), 0o755), &owner)
	if errors.Is(err, unix.EEXIST) && m.GetParents() && !m.GetExclusive() {
		if err = isDir(path); errors.Is(err, unix.ENOTDIR) {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return nil, fileError("make the directory", path, err)
	}
	info, err := statPath(path, true)
	if err != nil {
		return nil, fileError("make the directory", path, err)
	}
	return connect.NewResponse(&agentv1.MakeDirResponse{Info: a.complete(info)}), nil
}

func isDir(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	return nil
}

// makeDir makes one directory, with exactly this mode, whatever the umask.
func makeDir(path string, mode uint32, owner *account) error {
	p, err := openEntry(path)
	if err != nil {
		return err
	}
	defer p.close()
	fd, err := p.makeDir()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := owner.take(fd, false); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode)
}

// makingParents is held while parents are made, so that other callers find them with
// their owner and mode. A file put into a new directory before that would make the
// directory look like that of another program.
var makingParents sync.Mutex

// makeParents makes dir and all directories above it that are missing.
func makeParents(dir string, owner *account) error {
	makingParents.Lock()
	defer makingParents.Unlock()
	return makeMissing(dir, owner)
}

func makeMissing(dir string, owner *account) error {
	err := isDir(dir)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := makeMissing(filepath.Dir(dir), owner); err != nil {
		return err
	}
	err = makeDir(dir, 0o755, owner)
	if errors.Is(err, unix.EEXIST) { // made by another, or a dangling link
		return isDir(dir)
	}
	return err
}

// Delete implements [agentv1connect.AgentHandler].
func (a *Agent) Delete(_ context.Context, req *connect.Request[agentv1.DeleteRequest]) (*connect.Response[agentv1.DeleteResponse], error) {
	path, err := a.path(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, invalid("the root directory cannot be deleted; delete what is in it, or the sandbox")
	}
	if err := deletePath(path, req.Msg.GetRecursive()); err != nil {
		return nil, fileError("delete", path, err)
	}
	return connect.NewResponse(&agentv1.DeleteResponse{}), nil
}

func deletePath(path string, recursive bool) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlink(path)
	}
	if !recursive {
		return unix.Rmdir(path)
	}
	p, err := openEntry(path)
	if err != nil {
		return err
	}
	defer p.close()
	return apply.RemoveAll(p.dir, p.name)
}
