package runsc

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// The cell of an ordinary user has a single user id: all files on the host belong to that
// user, and gVisor's processes cannot change owners. The owners of mounted files as
// sandboxes see them are therefore stored in an attribute of each file. The gofer reads
// and sets owners with two system calls, of which the kernel notifies the process that
// started gVisor (seccomp's user notification).

// OwnerAttribute is the extended attribute with a file's user and group in sandboxes, as
// "1000:1000", if they differ from those on the host.
const OwnerAttribute = "user.cove.owner"

// ownersFilter returns a filter that notifies of statx and fchownat, and allows
// everything else.
func ownersFilter() ([]unix.SockFilter, error) {
	const (
		nr   = 0 // offsets in the kernel's struct seccomp_data
		arch = 4
	)
	native := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: arch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: native, SkipTrue: 3},
		bpf.LoadAbsolute{Off: nr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_STATX, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_FCHOWNAT, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
	})
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

// ownersSocket is the socket in the bundle directory to which gVisor's processes send the
// descriptors of their filters, if owners are kept.
const ownersSocket = "owners.sock"

// keepOwners answers the notifications of the gVisor processes of this bundle until this
// process ends.
func keepOwners(bundle string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(bundle, ownersSocket), Net: "unix"})
	if err != nil {
		return fmt.Errorf("keep the owners of files in mounts: %w", err)
	}
	go func() {
		for {
			conn, err := machine.Accept(l)
			if err != nil {
				return
			}
			if c, ok := conn.(*net.UnixConn); ok {
				if listener, err := receiveFile(c); err == nil {
					go answerOwners(listener, peerOf(c))
				}
			}
			conn.Close()
		}
	}()
	return nil
}

// peer is the process of gVisor that is at the other end of a connection, if /proc has
// other ids for processes than the kernel's notifications. Otherwise it is empty.
type peer struct {
	pid int
	fds string // the directory with its descriptors
}

func peerOf(c *net.UnixConn) (p peer) {
	if own, err := procfs.Own(); err != nil || own {
		return p
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return p
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p.pid = int(cred.Pid)
		}
	})
	p.fds, _ = fdDir(p.pid)
	return p
}

// receiveFile receives one open file.
func receiveFile(c *net.UnixConn) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(err, errors.New("no file was received"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// askForOwners makes the kernel notify the process that started this one, a process of
// gVisor, of calls about owners, if owners are kept for this bundle. This stays in force
// when the process executes itself again, where it can no longer read the bundle.
func askForOwners(bundle string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(bundle, ownersSocket), Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	filter, err := ownersFilter()
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno == unix.EBUSY {
		return nil // this process already has a filter
	}
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	// With this flag, newer kernels wake the caller faster.
	_ = notifyIoctl(int(fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil)
	return err
}

// The kernel's struct seccomp_notif and seccomp_notif_resp.
type (
	ownerCall struct {
		id    uint64
		pid   uint32
		flags uint32
		nr    int32
		arch  uint32
		ip    uint64
		args  [6]uint64
	}
	ownerAnswer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// answerOwners answers notifications until no process has the filter.
func answerOwners(listener int, from peer) {
	defer unix.Close(listener)
	for {
		var c ownerCall
		if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&c))); err != nil {
			// The caller was interrupted, and will repeat the call.
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
				if !hasCallers(listener) {
					return
				}
				continue
			}
			return
		}
		a := ownerAnswer{id: c.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if done, err := c.do(listener, from); err != nil {
			errno, ok := errors.AsType[unix.Errno](err)
			if !ok {
				errno = unix.EIO
			}
			a.flags, a.errno = 0, -int32(errno)
		} else if done {
			a.flags = 0
		}
		_ = notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a))) // the caller may be gone
	}
}

// hasCallers reports whether the filter still has processes.
func hasCallers(listener int) bool {
	fds := []unix.PollFd{{Fd: int32(listener)}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n == 0 || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0
}

func notifyIoctl(listener int, request, arg uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), request, arg); errno != 0 {
		return errno
	}
	return nil
}

// do performs a system call for its caller. If it returns false, the kernel must perform
// the call: it concerns a path, or a file whose owner is the host's.
func (c *ownerCall) do(listener int, from peer) (done bool, err error) {
	if c.pid == 0 {
		return false, nil
	}
	flags := c.args[4]
	if c.nr == unix.SYS_STATX {
		flags = c.args[2]
	}
	if flags&unix.AT_EMPTY_PATH == 0 {
		return false, nil
	}
	fds, err := c.fds(from)
	if err != nil {
		return false, err
	}
	// A link in /proc refers to the open file itself, even if that is a symbolic link.
	file := filepath.Join(fds, strconv.Itoa(int(int32(c.args[0]))))
	if c.nr == unix.SYS_STATX {
		return c.statx(listener, file), nil
	}
	return true, setOwner(file, uint32(c.args[2]), uint32(c.args[3]))
}

// fds returns the directory with the caller's descriptors. The notification has the id of
// a thread, and all threads of a process have the same descriptors.
func (c *ownerCall) fds(from peer) (string, error) {
	if from.fds == "" {
		return fdDir(int(c.pid))
	}
	if err := unix.Tgkill(from.pid, int(c.pid), 0); err != nil {
		return "", err // a thread of another process
	}
	return from.fds, nil
}

// statx writes the status of a file, with its owner in sandboxes, to the caller's memory.
func (c *ownerCall) statx(listener int, file string) (done bool) {
	uid, gid, ok := fileOwner(file)
	if !ok {
		return false
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, file, 0, int(c.args[3]), &st); err != nil || st.Uid != 0 {
		return false // the kernel returns the error, or the other owner
	}
	st.Uid, st.Gid = uid, gid
	// The process may have ended, and its id may belong to another process.
	if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&c.id))); err != nil {
		return false
	}
	size := int(unsafe.Sizeof(st))
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&st)), Len: uint64(size)}}
	remote := []unix.RemoteIovec{{Base: uintptr(c.args[4]), Len: size}}
	n, err := unix.ProcessVMWritev(int(c.pid), local, remote, 0)
	return err == nil && n == size
}

// fileOwner reads a file's owner in sandboxes. The sandbox can write anything to the
// attribute.
func fileOwner(file string) (uid, gid uint32, ok bool) {
	var buf [32]byte
	n, err := unix.Getxattr(file, OwnerAttribute, buf[:])
	if err != nil {
		return 0, 0, false
	}
	return parseOwner(string(buf[:n]))
}

func parseOwner(owner string) (uid, gid uint32, ok bool) {
	user, group, _ := strings.Cut(owner, ":")
	u, errUser := strconv.ParseUint(user, 10, 32)
	g, errGroup := strconv.ParseUint(group, 10, 32)
	if errUser != nil || errGroup != nil || uint32(u) == noID || uint32(g) == noID {
		return 0, 0, false
	}
	return uint32(u), uint32(g), true
}

// noID means "do not change".
const noID = ^uint32(0)

// setOwner changes the owner that a file of this user has in sandboxes. Symbolic links
// and sockets have no attributes; they always belong to root.
func setOwner(file string, uid, gid uint32) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Uid != 0 {
		return unix.EPERM
	}
	oldUID, oldGID, had := fileOwner(file)
	if uid == noID {
		uid = oldUID
	}
	if gid == noID {
		gid = oldGID
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return nil
	case uid == 0 && gid == 0 && had:
		return unix.Removexattr(file, OwnerAttribute)
	case uid == 0 && gid == 0:
		return nil
	}
	return unix.Setxattr(file, OwnerAttribute, fmt.Appendf(nil, "%d:%d", uid, gid), 0)
}

// keepsOwners reports whether the files of mounts need [OwnerAttribute]: if there are
// any, and this process has only one user id.
func keepsOwners(mounts []Mount) bool {
	if !slices.ContainsFunc(mounts, func(m Mount) bool { return m.Source != "" }) {
		return false
	}
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(data))
	return len(fields) == 3 && fields[2] == "1"
}
