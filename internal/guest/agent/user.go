package agent

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// maxAccountFile bounds how much of passwd and group is read, in bytes.
const maxAccountFile = 1 << 20

// account is a user that jobs run as and files belong to.
type account struct {
	name     string
	uid, gid uint32
	groups   []uint32 // supplementary, sorted
	home     string
	shell    string
}

// userDB reads the sandbox's own passwd and group files, and again when they change.
type userDB struct {
	passwdPath, groupPath string

	mu     sync.Mutex
	passwd cachedFile // guarded by mu
	group  cachedFile // guarded by mu
}

func newUserDB(passwd, group string) *userDB {
	return &userDB{passwdPath: passwd, groupPath: group}
}

// cachedFile is the content of a small file, valid while its metadata is the same.
type cachedFile struct {
	ino   uint64
	size  int64
	mtime time.Time
	data  []byte
}

// read returns the content of the regular file at path, or nil if it cannot be read:
// an image may have no accounts at all.
func (c *cachedFile) read(path string) []byte {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		*c = cachedFile{}
		return nil
	}
	mtime := time.Unix(st.Mtim.Unix())
	if c.ino == st.Ino && c.size == st.Size && c.mtime.Equal(mtime) {
		return c.data
	}
	*c = cachedFile{}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAccountFile))
	if err != nil {
		return nil
	}
	*c = cachedFile{ino: st.Ino, size: st.Size, mtime: mtime, data: data}
	return data
}

func (db *userDB) files() (passwd, group []byte) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.passwd.read(db.passwdPath), db.group.read(db.groupPath)
}

// lookup finds the account that spec names: a user name or number, with an
// optional group name or number after a colon; "" is the agent's own.
func (db *userDB) lookup(spec string) (account, error) {
	passwd, group := db.files()
	return findAccount(passwd, group, spec, uint32(os.Getuid()), uint32(os.Getgid()))
}

// lookupAllowed is lookup for an account that this process must be able to act as.
func (db *userDB) lookupAllowed(spec string) (account, error) {
	acc, err := db.lookup(spec)
	if err == nil {
		err = acc.allowed()
	}
	return acc, err
}

func findAccount(passwd, group []byte, spec string, ownUID, ownGID uint32) (account, error) {
	user, groupSpec, hasGroup := strings.Cut(spec, ":")
	if spec != "" && user == "" || hasGroup && groupSpec == "" || len(spec) > 256 || strings.IndexByte(spec, 0) >= 0 {
		return account{}, invalid("the user %q is not valid; give a name, or a number with an optional :group", spec)
	}
	if spec == "" {
		user = strconv.FormatUint(uint64(ownUID), 10)
	}
	acc, ok := findUser(passwd, user)
	if !ok {
		uid, isNumber := parseID(user)
		if !isNumber {
			return account{}, invalid("the sandbox has no user %q; use one of /etc/passwd or a number", user)
		}
		acc = account{name: user, uid: uid, gid: uid, home: "/", shell: "/bin/sh"}
		if spec == "" {
			acc.gid = ownGID
		}
	}
	if hasGroup {
		gid, ok := findGroup(group, groupSpec)
		if !ok {
			return account{}, invalid("the sandbox has no group %q; use one of /etc/group or a number", groupSpec)
		}
		acc.gid = gid
		return acc, nil
	}
	acc.groups = groupsOf(group, acc.name, acc.gid)
	return acc, nil
}

// parseID parses a user or group number. The highest is not valid: it means
// "unchanged" in system calls.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}

// records calls f with the fields of each line that has n of them, until f returns
// false.
func records(data []byte, n int, f func(fields []string) bool) {
	if len(data) > maxAccountFile {
		data = data[:maxAccountFile]
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) == 0 || line[0] == '#' || bytes.IndexByte(line, 0) >= 0 {
			continue
		}
		if bytes.Count(line, []byte(":")) != n-1 {
			continue
		}
		if !f(strings.Split(string(line), ":")) {
			return
		}
	}
}

// findUser finds a user by name, or else by number.
func findUser(passwd []byte, user string) (acc account, found bool) {
	id, isNumber := parseID(user)
	records(passwd, 7, func(f []string) bool {
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 || f[0] == "" {
			return true
		}
		byName := f[0] == user
		if !byName && (found || !isNumber || uid != id) {
			return true
		}
		acc = account{name: f[0], uid: uid, gid: gid, home: f[5], shell: f[6]}
		found = true
		return !byName
	})
	if !strings.HasPrefix(acc.home, "/") {
		acc.home = "/"
	}
	if acc.shell == "" {
		acc.shell = "/bin/sh"
	}
	return acc, found
}

func findGroup(group []byte, name string) (gid uint32, found bool) {
	if gid, found = parseID(name); found {
		return gid, true
	}
	records(group, 4, func(f []string) bool {
		id, ok := parseID(f[2])
		if ok && f[0] == name {
			gid, found = id, true
		}
		return !found
	})
	return gid, found
}

// maxGroups is how many groups Linux allows a process.
const maxGroups = 65536

func groupsOf(group []byte, user string, primary uint32) (gids []uint32) {
	if user == "" {
		return nil
	}
	records(group, 4, func(f []string) bool {
		id, ok := parseID(f[2])
		if ok && id != primary && strings.Contains(f[3], user) && slices.Contains(strings.Split(f[3], ","), user) {
			gids = append(gids, id)
		}
		return len(gids) < maxGroups
	})
	slices.Sort(gids)
	return slices.Compact(gids)
}

// allowed fails unless this process may act as acc.
func (acc *account) allowed() error {
	if euid := os.Geteuid(); euid != 0 && acc.uid != uint32(euid) {
		return fail(connect.CodePermissionDenied,
			"this sandbox runs everything as uid %d, so user %q cannot be used; leave the user out", euid, acc.name)
	}
	return nil
}
