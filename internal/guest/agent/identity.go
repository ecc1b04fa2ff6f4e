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

// identityPaths are where a sandbox finds what is its own. Comparisons of file systems
// leave them out. An image may have anything there; nothing is written through a
// symbolic link in the place of the last name.
type identityPaths struct {
	run       string
	machineID string
	dbusID    string // a second place of the same id, in some images a copy
	ssh       string
}

var systemPaths = identityPaths{
	run: "/run/cove", machineID: "/etc/machine-id", dbusID: "/var/lib/dbus/machine-id", ssh: "/etc/ssh",
}

const forkFile = "fork.json"

// renewIdentity gives the sandbox what must not be shared with others that began as
// the same: a machine id and SSH host keys for a fresh one, if its image has
// them, and its place for a fork. What cannot be done is logged: an image may
// be strange and its sandbox of use nevertheless.
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
			a.log.Warn("tell a fork its place", "error", err)
		}
	}
}

// The kernel's boot id is of the machine that a checkpoint was taken of. A file
// of our own lies above it: in memory, where comparisons do not look.
const (
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
	bootIDShown = "/dev/.cove-boot-id"
)

// renewBootID gives the sandbox a boot id of its own.
func renewBootID() error {
	var st unix.Statfs_t
	if err := unix.Statfs(bootIDFile, &st); err != nil {
		return absent(err)
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
		return nil // it was shown before
	}
	return unix.Mount(bootIDShown, bootIDFile, "", unix.MS_BIND, "")
}

// renewMachineID puts a new id into the files that are there for one.
func renewMachineID(paths identityPaths) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	text := []byte(hex.EncodeToString(id[:]) + "\n")
	var errs []error
	for _, path := range []string{paths.machineID, paths.dbusID} {
		p, err := openEntry(path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		st, err := p.lstat()
		switch kind := st.Mode & unix.S_IFMT; {
		case err != nil, kind == unix.S_IFDIR:
		case kind == unix.S_IFLNK && path == paths.dbusID: // to the other
		default:
			errs = append(errs, p.put(text, 0o444))
		}
		p.close()
	}
	return errors.Join(errs...)
}

// put makes p a file with this content, in the place of what was there, which is
// no directory.
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

// forkEnv returns nothing for a sandbox that is no fork.
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

// writeFork writes the file that processes which went through the fork read to
// find out which child they are in. It is removed for a sandbox that is no fork.
func writeFork(run string, f *agentv1.Fork) error {
	at, err := openEntry(run)
	if errors.Is(err, unix.ENOENT) && f.Count > 0 {
		self := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
		if err := makeParents(filepath.Dir(run), &self); err != nil {
			return err
		}
		at, err = openEntry(run)
	}
	if err != nil {
		if f.Count == 0 {
			return absent(err)
		}
		return err
	}
	defer at.close()
	if f.Count == 0 {
		dir, err := apply.OpenDir(at.dir, at.name)
		if err != nil {
			return absent(err)
		}
		defer unix.Close(dir)
		return apply.RemoveAll(dir, forkFile)
	}
	dir, err := at.ownDir()
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

// absent forgives that there is nothing, or no directory.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// ownDir opens p, which becomes a directory if it is anything else.
func (p dirEntry) ownDir() (int, error) {
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
