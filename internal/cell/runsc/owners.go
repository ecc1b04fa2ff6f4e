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
)

// An ordinary user's cell has one user id, so that all files on the host are
// that user's, and gVisor's processes can give none away. [Config.KeepOwners]
// keeps the owners that files of mounts have in sandboxes in an attribute of the
// file. The kernel asks the process that started gVisor at each of the two system
// calls with which the gofer reads and sets owners (seccomp's user notification).

// OwnerAttribute is the extended attribute with the user and group that a file
// has in sandboxes, as "1000:1000", where they are not those on the host.
const OwnerAttribute = "user.cove.owner"

// ownersFilter asks for statx and fchownat, and lets all else pass.
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

// ownersSocket is in the bundle directory if owners are kept. gVisor's processes
// hand their filters over there.
const ownersSocket = "owners.sock"

// keepOwners answers gVisor's processes with this bundle, for as long as this
// process lives.
func keepOwners(bundle string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(bundle, ownersSocket), Net: "unix"})
	if err != nil {
		return fmt.Errorf("keep the owners of files in mounts: %w", err)
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if listener, err := receiveFile(c); err == nil {
				go answerOwners(listener)
			}
			c.Close()
		}
	}()
	return nil
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
		return -1, errors.Join(err, errors.New("no file was handed over"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// askForOwners makes this process, one of gVisor's, ask the one that started it
// about owners, if the bundle says so. It stays so when the process executes
// itself again, where the bundle is out of sight.
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
		return nil // it has one
	}
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	// Newer kernels then wake the one who asked at once.
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

// answerOwners answers until the filter has no processes any more.
func answerOwners(listener int) {
	defer unix.Close(listener)
	for {
		var c ownerCall
		if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&c))); err != nil {
			// The caller was interrupted meanwhile, and asks again.
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
				if !hasCallers(listener) {
					return
				}
				continue
			}
			return
		}
		a := ownerAnswer{id: c.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if done, err := c.do(listener); err != nil {
			var errno unix.Errno
			if !errors.As(err, &errno) {
				errno = unix.EIO
			}
			a.flags, a.errno = 0, -int32(errno)
		} else if done {
			a.flags = 0
		}
		_ = notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a))) // it may be gone
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

// do does a system call in its caller's place. It is the kernel's if it is not
// done: on a path, or on a file whose owner is that on the host.
func (c *ownerCall) do(listener int) (done bool, err error) {
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
	// A link in /proc leads to the open file itself, be that a symbolic link.
	file := "/proc/" + strconv.Itoa(int(c.pid)) + "/fd/" + strconv.Itoa(int(int32(c.args[0])))
	if c.nr == unix.SYS_STATX {
		return c.statx(listener, file), nil
	}
	return true, setOwner(file, uint32(c.args[2]), uint32(c.args[3]))
}

// statx writes what the kernel says of a file, with the owner that it has in
// sandboxes, to the caller's memory.
func (c *ownerCall) statx(listener int, file string) (done bool) {
	uid, gid, ok := fileOwner(file)
	if !ok {
		return false
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, file, 0, int(c.args[3]), &st); err != nil || st.Uid != 0 {
		return false // the kernel says why, or whose it is
	}
	st.Uid, st.Gid = uid, gid
	// The process may have ended, and another have its id.
	if err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&c.id))); err != nil {
		return false
	}
	size := int(unsafe.Sizeof(st))
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&st)), Len: uint64(size)}}
	remote := []unix.RemoteIovec{{Base: uintptr(c.args[4]), Len: size}}
	n, err := unix.ProcessVMWritev(int(c.pid), local, remote, 0)
	return err == nil && n == size
}

// fileOwner reads the owner that a file has in sandboxes. What the attribute
// holds is the sandbox's own to write.
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

// noID stands for "leave it as it is".
const noID = ^uint32(0)

// setOwner gives a file that is this user's to others in sandboxes. Symbolic
// links and sockets have no attributes: they stay root's.
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

// keepsOwners reports whether the files of mounts need [OwnerAttribute]: there
// are some, and this process has one user id only.
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
