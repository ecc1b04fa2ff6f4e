package agent

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// identityPaths are the paths of a sandbox's own identity. Comparisons of file systems
// leave them out. An image may have anything there; if the last name in a path is a
// symbolic link, it is replaced, not followed.
type identityPaths struct {
	run       string
	machineID string
	dbusID    string // the same id again; in some images a copy
	ssh       string
}

var systemPaths = identityPaths{
	run: "/run/cove", machineID: "/etc/machine-id", dbusID: "/var/lib/dbus/machine-id", ssh: "/etc/ssh",
}

const forkFile = "fork.json"

// renewIdentity replaces what the sandbox must not share with others of the same
// origin: a new sandbox gets a machine id and SSH host keys, if its image has them, and
// a fork the file that says which child it is. Failures are only logged: the image may
// be unusual and its sandbox useful all the same.
func (a *Agent) renewIdentity(m *agentv1.ConfigureRequest) {
	if !a.cfg.Init {
		return
	}
	if m.GetFresh() {
		if err := renewMachineID(systemPaths); err != nil {
			a.log.Warn("renew the machine id", "error", err)
		}
		if err := renewHostKeys(systemPaths.ssh); err != nil {
			a.log.Warn("renew the SSH host keys", "error", err)
		}
	}
	if m.GetFresh() || m.GetFork() != nil {
		if err := renewBootID(); err != nil {
			a.log.Warn("renew the boot id", "error", err)
		}
	}
	if f := m.GetFork(); f != nil {
		if err := writeFork(systemPaths.run, f); err != nil {
			a.log.Warn("write the file that describes a fork", "error", err)
		}
	}
}

// After a restore the kernel still has the boot id of the sandbox that the checkpoint
// was taken of. A file is therefore mounted over it: one in memory, which comparisons
// of files leave out.
const (
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
	bootIDShown = "/dev/.cove-boot-id"
)

// renewBootID gives the sandbox a boot id of its own.
func renewBootID() error {
	var st unix.Statfs_t
	if err := unix.Statfs(bootIDFile, &st); err != nil {
		return ignoreMissing(err)
	}
	fd, err := unix.Open(bootIDShown, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562
	_, err = unix.Write(fd, fmt.Appendf(nil, "%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return nil // it is mounted already
	}
	return unix.Mount(bootIDShown, bootIDFile, "", unix.MS_BIND, "")
}

// renewMachineID writes a new id to those files for it that exist.
func renewMachineID(paths identityPaths) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	text := []byte(hex.EncodeToString(id[:]) + "\n")
	var errs []error
	for _, path := range []string{paths.machineID, paths.dbusID} {
		p, err := openEntry(path)
		if err != nil {
			errs = append(errs, ignoreMissing(err))
			continue
		}
		st, err := p.lstat()
		switch kind := st.Mode & unix.S_IFMT; {
		case err != nil, kind == unix.S_IFDIR:
		case kind == unix.S_IFLNK && path == paths.dbusID: // to the first
		default:
			errs = append(errs, p.put(text, 0o444))
		}
		p.close()
	}
	return errors.Join(errs...)
}

// put makes p a file with this content. It replaces what was there, unless that is a
// directory.
func (p dirEntry) put(data []byte, mode uint32) error {
	f, temp, err := p.createTemp()
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = p.replace(temp, false)
	}
	if err != nil {
		_ = unix.Unlinkat(p.dir, temp, 0)
	}
	return err
}

// forkEnv returns nil for a sandbox that is not a fork.
func forkEnv(f *agentv1.Fork) map[string]string {
	if f.Count == 0 {
		return nil
	}
	return map[string]string{
		"COVE_FORK_INDEX":  strconv.Itoa(int(f.Index)),
		"COVE_FORK_COUNT":  strconv.Itoa(int(f.Count)),
		"COVE_FORK_PARENT": f.ParentId,
	}
}

// writeFork writes the file from which processes that went through a fork learn which
// child they are in. In a sandbox that is not a fork it removes that file.
func writeFork(run string, f *agentv1.Fork) error {
	if f.Count == 0 {
		return removeFork(run)
	}
	dir, err := makeOwnDir(run)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	data, err := json.Marshal(struct {
		Index   int32  `json:"index"`
		Count   int32  `json:"count"`
		Sandbox string `json:"sandbox_id"`
		Parent  string `json:"parent_id"`
	}{f.Index, f.Count, f.SandboxId, f.ParentId})
	if err != nil {
		return err
	}
	p := dirEntry{dir: dir, name: forkFile}
	if st, err := p.lstat(); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := apply.RemoveAll(dir, forkFile); err != nil {
			return err
		}
	}
	return p.put(append(data, '\n'), 0o444)
}

func removeFork(run string) error {
	at, err := openEntry(run)
	if err != nil {
		return ignoreMissing(err)
	}
	defer at.close()
	dir, err := apply.OpenDir(at.dir, at.name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer unix.Close(dir)
	return apply.RemoveAll(dir, forkFile)
}

// ignoreMissing returns nil for the error that a path, or its directory, does not exist.
func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// makeOwnParents makes the missing directories above path, for the agent's own user.
func makeOwnParents(path string) error {
	self := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	return makeParents(filepath.Dir(path), &self)
}

// makeOwnDir opens the directory at path, with missing directories made. Anything
// else at path is replaced.
func makeOwnDir(path string) (int, error) {
	if err := makeOwnParents(path); err != nil {
		return -1, err
	}
	p, err := openEntry(path)
	if err != nil {
		return -1, err
	}
	defer p.close()
	st, err := p.lstat()
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return apply.OpenDir(p.dir, p.name)
	case err == nil:
		err = unix.Unlinkat(p.dir, p.name, 0)
	case errors.Is(err, unix.ENOENT):
		err = nil
	}
	if err != nil {
		return -1, err
	}
	fd, err := p.makeDir()
	if err != nil {
		return -1, err
	}
	return fd, unix.Fchmod(fd, 0o755)
}
