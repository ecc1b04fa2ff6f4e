package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// Stat implements [agentv1connect.AgentHandler].
func (a *Agent) Stat(_ context.Context, req *connect.Request[agentv1.StatRequest]) (*connect.Response[agentv1.StatResponse], error) {
	path, err := a.path(req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := statPath(path, req.Msg.GetFollow())
	if err != nil {
		return nil, fileError("inspect", path, err)
	}
	return connect.NewResponse(&agentv1.StatResponse{Info: a.complete(info)}), nil
}

func statPath(path string, follow bool) (*agentv1.FileInfo, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, flags); err != nil {
		return nil, err
	}
	var target string
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, _ = os.Readlink(path)
	}
	return fileInfo(path, &st, target), nil
}

// fileInfo describes a file. Protobuf strings must be UTF-8: bytes that are not become
// replacement characters.
func fileInfo(raw string, st *unix.Stat_t, target string) *agentv1.FileInfo {
	path := strings.ToValidUTF8(raw, "\uFFFD")
	info := &agentv1.FileInfo{
		Path:             path,
		Name:             filepath.Base(path),
		Type:             fileType(st),
		Size:             st.Size,
		Mode:             st.Mode & 0o7777,
		ModifiedUnixNano: time.Unix(st.Mtim.Unix()).UnixNano(),
		Uid:              st.Uid,
		Gid:              st.Gid,
	}
	if info.GetType() == agentv1.FileType_FILE_TYPE_SYMLINK {
		info.SymlinkTarget = strings.ToValidUTF8(target, "\uFFFD")
		info.LinkedFile = linkedFile(raw)
	}
	return info
}

func fileType(st *unix.Stat_t) agentv1.FileType {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return agentv1.FileType_FILE_TYPE_FILE
	case unix.S_IFDIR:
		return agentv1.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return agentv1.FileType_FILE_TYPE_SYMLINK
	}
	return agentv1.FileType_FILE_TYPE_OTHER
}

// openRegular opens a file at path, relative to dir, for reading and fails for anything
// but a regular file. It never blocks, as opening a FIFO could.
func openRegular(dir int, path, shown string, flags int) (*os.File, *agentv1.FileInfo, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, nil, fileError("read", shown, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
		err = fileError("read", shown, err)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = fileError("read", shown, unix.EISDIR)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fileError("read", shown, unix.ENXIO)
	default:
		return os.NewFile(uintptr(fd), shown), fileInfo(shown, &st, ""), nil
	}
	_ = unix.Close(fd)
	return nil, nil, err
}
