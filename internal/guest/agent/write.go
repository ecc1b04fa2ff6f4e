package agent

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// Write implements [agentv1connect.AgentHandler].
func (a *Agent) Write(ctx context.Context, s *connect.ClientStream[agentv1.WriteRequest]) (*connect.Response[agentv1.WriteResponse], error) {
	if !s.Receive() {
		return nil, brokenWrite(ctx, s.Err())
	}
	h := s.Msg().GetHeader()
	if h == nil {
		return nil, invalid("the first message of a write must be its header")
	}
	u, err := a.openUpload(h)
	if err != nil {
		return nil, err
	}
	defer u.entry.close()
	defer u.removeTemp()
	for {
		m := s.Msg()
		if _, err := u.file.Write(m.GetData()); err != nil {
			return nil, fileError("write", u.path, err)
		}
		if m.GetEnd() {
			break
		}
		if !s.Receive() {
			return nil, brokenWrite(ctx, s.Err())
		}
		if s.Msg().GetHeader() != nil {
			return nil, invalid("only the first message of a write may be a header")
		}
	}
	undo := func() {}
	if u.temp != "" {
		undo = a.written.announce(u.path, u.created)
	}
	info, err := u.commit()
	if err != nil {
		undo()
		return nil, fileError("write", u.path, err)
	}
	return connect.NewResponse(&agentv1.WriteResponse{Info: a.complete(info), Created: u.created}), nil
}

func brokenWrite(ctx context.Context, err error) error {
	if ce, ok := errors.AsType[*connect.Error](err); ok && ce.Code() == connect.CodeResourceExhausted {
		return err
	}
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	return fail(connect.CodeCanceled, "the write ended before its last message, so nothing was changed; send it again")
}

// upload is a file being written. Unless it appends, the data goes to a temporary
// file, which is then renamed to the target.
type upload struct {
	path    string
	entry   dirEntry
	file    *os.File
	temp    string // "" when appending, and once committed
	created bool

	exclusive bool
	mode      uint32
	owner     account
	mustOwn   bool // the caller named the owner
}

func (a *Agent) openUpload(h *agentv1.WriteRequest_Header) (*upload, error) {
	path, err := a.path(h.GetPath())
	if err != nil {
		return nil, err
	}
	if h.GetMode() > 0o7777 {
		return nil, invalid("the mode %o is not valid; use permission bits such as 0644", h.GetMode())
	}
	if path == "/" {
		return nil, fileError("write", path, unix.EISDIR)
	}
	owner, err := a.owner(h.GetOwner())
	if err != nil {
		return nil, err
	}
	if h.GetMakeParents() {
		if err := makeParents(filepath.Dir(path), &owner); err != nil {
			return nil, fileError("make the directory of", path, err)
		}
	}
	u := &upload{
		path: path, exclusive: h.GetExclusive(), mode: h.GetMode(),
		owner: owner, mustOwn: h.GetOwner() != "",
	}
	if u.entry, err = openEntry(path); err != nil {
		return nil, fileError("write", path, err)
	}
	if !u.exclusive {
		if u.entry, err = u.entry.follow(); err != nil {
			return nil, fileError("write", path, err)
		}
	}
	if err := u.open(h.GetAppend()); err != nil {
		u.entry.close()
		return nil, fileError("write", path, err)
	}
	return u, nil
}

// open checks the target and opens the file that the data goes to.
func (u *upload) open(appending bool) error {
	st, err := u.entry.lstat()
	switch {
	case errors.Is(err, unix.ENOENT):
		u.created = true
	case err != nil:
		return err
	case u.exclusive:
		return unix.EEXIST
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return unix.ENXIO
	case u.mode == 0:
		u.mode = st.Mode & 0o7777
	}
	if u.mode == 0 {
		u.mode = 0o644
	}
	if !appending {
		u.file, u.temp, err = u.entry.createTemp()
		return err
	}
	return u.openAppend()
}

func (u *upload) openAppend() error {
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	if u.created {
		flags |= unix.O_CREAT
		if u.exclusive {
			flags |= unix.O_EXCL
		}
	}
	fd, err := unix.Openat(u.entry.dir, u.entry.name, flags, u.mode)
	if err != nil {
		return err
	}
	u.file = os.NewFile(uintptr(fd), u.path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = u.file.Close()
		return errors.Join(err, unix.ENXIO)
	}
	return nil
}

// commit makes the data visible.
func (u *upload) commit() (*agentv1.FileInfo, error) {
	if u.temp != "" || u.created {
		if err := u.owner.take(int(u.file.Fd()), u.mustOwn); err != nil {
			return nil, err
		}
		if err := unix.Fchmod(int(u.file.Fd()), u.mode); err != nil {
			return nil, err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(u.file.Fd()), &st); err != nil {
		return nil, err
	}
	if err := u.file.Close(); err != nil {
		return nil, err
	}
	if u.temp != "" {
		if err := u.entry.replace(u.temp, u.exclusive); err != nil {
			return nil, err
		}
		u.temp = ""
	}
	return fileInfo(u.path, &st, ""), nil
}

// removeTemp closes the file, and removes it if it is a temporary one that was not
// committed.
func (u *upload) removeTemp() {
	_ = u.file.Close()
	if u.temp != "" {
		_ = unix.Unlinkat(u.entry.dir, u.temp, 0)
	}
}

// owner returns the owner of new files: the account that spec names, or the sandbox's
// default user.
func (a *Agent) owner(spec string) (account, error) {
	return a.users.lookup(cmp.Or(spec, a.current().user))
}

// take makes acc the owner of an open file, by the rules of [account.own].
func (acc *account) take(fd int, must bool) error {
	return acc.own(must, func(uid, gid int) error { return unix.Fchown(fd, uid, gid) })
}

// own calls chown to make acc the owner of a file. An agent that is not root can only
// own files itself: it leaves them its own, and fails if must is set.
func (acc *account) own(must bool, chown func(uid, gid int) error) error {
	if acc.uid == uint32(os.Geteuid()) && acc.gid == uint32(os.Getegid()) {
		return nil
	}
	err := chown(int(acc.uid), int(acc.gid))
	if err != nil && (must || os.Geteuid() == 0) {
		return fail(connect.CodePermissionDenied, "this sandbox cannot give files to user %q; leave the owner out", acc.name)
	}
	return nil
}
