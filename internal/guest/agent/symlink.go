package agent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// MakeSymlink implements [agentv1connect.AgentHandler].
func (a *Agent) MakeSymlink(_ context.Context, req *connect.Request[agentv1.MakeSymlinkRequest]) (*connect.Response[agentv1.MakeSymlinkResponse], error) {
	m := req.Msg
	path, err := a.path(m.GetPath())
	if err != nil {
		return nil, err
	}
	target := m.GetTarget()
	if target == "" || len(target) >= unix.PathMax || strings.ContainsRune(target, 0) {
		return nil, invalid("the target of a symbolic link has 1 to %d bytes and no NUL character", unix.PathMax-1)
	}
	if path == "/" {
		return nil, fileError("make the link", path, unix.EISDIR)
	}
	owner, err := a.owner(m.GetOwner())
	if err != nil {
		return nil, err
	}
	if m.GetParents() {
		if err := makeParents(filepath.Dir(path), &owner); err != nil {
			return nil, fileError("make the directory of", path, err)
		}
	}
	p, err := openEntry(path)
	if err == nil {
		defer p.close()
		err = p.makeSymlink(target, &owner, m.GetOwner() != "", m.GetOverwrite())
	}
	if err != nil {
		return nil, fileError("make the link", path, err)
	}
	info, err := statPath(path, false)
	if err != nil {
		return nil, fileError("make the link", path, err)
	}
	return connect.NewResponse(&agentv1.MakeSymlinkResponse{Info: a.complete(info)}), nil
}

// makeSymlink makes p a symbolic link that has its owner from the beginning. If p
// exists, it fails with EEXIST, or replaces p if overwrite is set and p is not a directory.
func (p dirEntry) makeSymlink(target string, owner *account, mustOwn, overwrite bool) (err error) {
	temp := tempName()
	fd, err := newSymlink(target, p.dir, temp)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(p.dir, temp, 0)
		}
	}()
	if err := owner.takeLink(fd, mustOwn); err != nil {
		return err
	}
	return p.replace(temp, !overwrite)
}

// newSymlink makes a symbolic link and returns a descriptor of the link itself.
func newSymlink(target string, dir int, name string) (int, error) {
	if err := unix.Symlinkat(target, dir, name); err != nil {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		_ = unix.Close(fd)
		return -1, errors.Join(err, unix.ENXIO)
	}
	return fd, nil
}

// readSymlink returns the target of the symbolic link name in dir.
func readSymlink(dir int, name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// takeLink makes acc the owner of a symbolic link that is open as O_PATH, by the
// rules of [account.own].
func (acc *account) takeLink(fd int, must bool) error {
	return acc.own(must, func(uid, gid int) error {
		return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
	})
}
