package cell

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// IDsPerSandbox is the number of user and group ids of a sandbox: 0 to 65535 inside,
// mapped to a block of the same size on the host.
const IDsPerSandbox = 1 << 16

// UserIDs are unused ids of the host, for the user namespaces of gVisor's processes when
// root runs the daemon.
type UserIDs struct {
	// First is the lowest user and group id.
	First uint32 `json:"first"`
	// Slots is the number of sandboxes for which there are ids, [IDsPerSandbox] each.
	Slots int `json:"slots"`
	// LockFile has one byte for each slot, which is locked while the slot is in use. All
	// cells of a daemon use the same file.
	LockFile string `json:"lock_file"`
}

// userNS is the user namespace of one sandbox. A nil *userNS is the cell's own namespace.
type userNS struct {
	ns *os.File
	// lock holds the slot's lock for as long as the cell lives.
	lock  *os.File
	first uint32
}

// noUserNS is the reason why a sandbox cannot have its own user namespace on this machine.
// The sandbox can run without one.
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
	// The mappings of a new user namespace are files of a process in /proc.
	if own, err := procfs.Own(); err != nil || !own {
		return nil, errors.Join(err, errors.New("the cell has the /proc of a container"))
	}
	// gVisor executes this program again as a user that owns nothing.
	if info, err := os.Stat("/proc/self/exe"); err != nil || info.Mode().Perm()&0o001 == 0 {
		return nil, errors.Join(err, errors.New("other users may not execute the cove binary (run chmod o+rx on it to allow them)"))
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

// slotTries is how many slots are tried before all are assumed to be in use.
const slotTries = 256

// takeSlot locks a free slot. The kernel releases the lock when the cell ends, in
// whatever way.
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

// idMap returns the namespace's mapping, for gVisor.
func (u *userNS) idMap() *runsc.IDMap {
	if u == nil {
		return nil
	}
	return &runsc.IDMap{First: u.first, Count: IDsPerSandbox}
}

// root returns the host's id of root in the namespace.
func (u *userNS) root() int {
	if u == nil {
		return 0
	}
	return int(u.first)
}

// bind mounts source at target, with everything that is mounted below it now. Later
// mounts of the host do not appear in it. In the namespace, files have the same owners as
// on disk. The error is a [noUserNS] if a file system does not support this.
func (u *userNS) bind(source, target string) error {
	if err := u.bindShared(source, target); err != nil {
		return err
	}
	if err := unix.Mount("", target, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep %s from later mounts: %w", source, err)
	}
	return nil
}

// bindShared is bind, except that later mounts and unmounts of the host apply too.
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

// checkOwner refuses a directory whose owner has no id in the namespace.
func (u *userNS) checkOwner(dir *os.File) error {
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
