package agent

import (
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// names are the names of users and groups in the sandbox's own files at one instant.
type names struct {
	users, groups map[uint32]string
}

// names reads the names of all users and groups. The first name for a number counts,
// as in the C library.
func (db *userDB) names() names {
	passwd, group := db.files()
	n := names{users: map[uint32]string{}, groups: map[uint32]string{}}
	records(passwd, 7, func(f []string) bool { return addName(n.users, f[2], f[0]) })
	records(group, 4, func(f []string) bool { return addName(n.groups, f[2], f[0]) })
	return n
}

func addName(names map[uint32]string, number, name string) bool {
	id, ok := parseID(number)
	if _, taken := names[id]; ok && !taken && name != "" {
		names[id] = strings.ToValidUTF8(name, "\uFFFD")
	}
	return true
}

func nameOf(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// complete adds the names of owner and group to the description of a file.
func (n names) complete(info *agentv1.FileInfo) *agentv1.FileInfo {
	info.Owner, info.Group = nameOf(n.users, info.GetUid()), nameOf(n.groups, info.GetGid())
	return info
}

// complete adds the names of owner and group to the description of one file.
func (a *Agent) complete(info *agentv1.FileInfo) *agentv1.FileInfo {
	return a.users.names().complete(info)
}

// linkedFile describes the file that the symbolic link at path resolves to; nil if
// that does not exist or is not known. Programs may change links at any time: the
// answer is for display, not for opening files.
func linkedFile(path string) *agentv1.LinkedFile {
	end, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if end, err = filepath.Abs(end); err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(end, &st); err != nil {
		return nil
	}
	return &agentv1.LinkedFile{Path: strings.ToValidUTF8(end, "\uFFFD"), Type: fileType(&st), Mode: st.Mode & 0o7777}
}
