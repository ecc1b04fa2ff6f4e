package cell

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
)

// IDsPerSandbox is how many user and group ids a sandbox has: 0 to 65535
// inside, as many from a multiple of it on the host.
const IDsPerSandbox = 1 << 16

// UserIDs are ids of the host that no user has, for the user namespaces of
// gVisor's processes where root runs the daemon.
type UserIDs struct {
	// First is the lowest id, of users and of groups.
	First uint32 `json:"first"`
	// Slots is how many sandboxes have ids of their own; each takes
	// [IDsPerSandbox].
	Slots int `json:"slots"`
	// LockFile is locked at the byte of each slot that is taken. All cells of a
	// daemon have the same.
	LockFile string `json:"lock_file"`
}

// userNS is the user namespace of one sandbox. A nil one stands for the
// namespace of the cell itself.
type userNS struct {
	ns *os.File
	// lock keeps the slot for as long as the cell lives.
	lock  *os.File
	first uint32
}

// noUserNS says why a sandbox cannot have a user namespace of its own on this
// machine. It can run without.
type noUserNS struct{ error }

func (e noUserNS) Unwrap() error { return e.error }

// newUserNS takes a free slot and makes its user namespace. Every error is a
// [noUserNS].
func newUserNS(ids UserIDs) (_ *userNS, err error) {
	defer func() {
		if err != nil {
			err = noUserNS{err}
		}
	}()
	// gVisor executes this program again as a user who owns nothing.
	if info, err := os.Stat("/proc/self/exe"); err != nil || info.Mode().Perm()&0o001 == 0 {
		return nil, errors.Join(err, errors.New("other users may not execute the cove binary (chmod o+rx makes them)"))
	}
	u := &userNS{}
	if err := u.takeSlot(ids); err != nil {
		return nil, err
	}
	if u.ns, err = machine.NewUserNamespace(int(u.first), IDsPerSandbox); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// slotTries is how many slots are looked at before all count as taken.
const slotTries = 256

// takeSlot locks a slot that no other cell has. The kernel gives it back when
// the cell ends, however that happens.
func (u *userNS) takeSlot(ids UserIDs) (err error) {
	if u.lock, err = os.OpenFile(ids.LockFile, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	for range slotTries {
		slot := rand.IntN(ids.Slots)
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
		err = unix.FcntlFlock(u.lock.Fd(), unix.F_OFD_SETLK, &l)
		if err == nil {
			u.first = ids.First + uint32(slot)*IDsPerSandbox
			return nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			break
		}
	}
	u.lock.Close()
	return fmt.Errorf("find user ids that no other sandbox has: %w", err)
}

func (u *userNS) close() {
	if u.ns != nil {
		u.ns.Close()
	}
	u.lock.Close()
}

// idMap is what gVisor's processes are told of the namespace.
func (u *userNS) idMap() *runsc.IDMap {
	if u == nil {
		return nil
	}
	return &runsc.IDMap{First: u.first, Count: IDsPerSandbox}
}

// root is the user and group that are 0 in the namespace.
func (u *userNS) root() int {
	if u == nil {
		return 0
	}
	return int(u.first)
}

// bind shows source at target, with all that is mounted below it now: what the
// host mounts there later is not for the sandbox. In the namespace files have the
// owners that they have on the disk. The error is a [noUserNS] where a file
// system does not support that.
func (u *userNS) bind(source, target string) error {
	if err := u.bindShared(source, target); err != nil {
		return err
	}
	if err := unix.Mount("", target, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep %s from later mounts: %w", source, err)
	}
	return nil
}

// bindShared is bind with the mounts that the host makes and ends later.
func (u *userNS) bindShared(source, target string) error {
	if u == nil {
		if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", source, err)
		}
		return nil
	}
	tree, err := machine.CloneMapped(source, u.ns)
	if errors.Is(err, machine.ErrNoOwnerMapping) {
		return noUserNS{err}
	}
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	return nil
}

// holds refuses a directory with an owner whom the namespace does not have.
func (u *userNS) holds(dir *os.File) error {
	if u == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if st.Uid >= IDsPerSandbox || st.Gid >= IDsPerSandbox {
		return noUserNS{fmt.Errorf("%s belongs to user %d and group %d, and a sandbox has ids below %d", dir.Name(), st.Uid, st.Gid, IDsPerSandbox)}
	}
	return nil
}
