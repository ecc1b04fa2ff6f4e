package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// SubordinateIDs returns nil if this user has subordinate user and group ids for user
// namespaces, and otherwise what is missing.
func SubordinateIDs() error {
	for _, prog := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(prog); err != nil {
			return fmt.Errorf("the program %s (package uidmap) is missing", prog)
		}
	}
	u, err := user.Current()
	if err != nil {
		return errors.New("this user has no entry in /etc/passwd")
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(file)
		if err != nil || !hasRange(string(data), u.Username, u.Uid) {
			return fmt.Errorf("%s has no range for the user %s", file, u.Username)
		}
	}
	return nil
}

// hasRange reports whether a file of subordinate ids gives the user a range of at least
// 65536 ids.
func hasRange(text, name, id string) bool {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != name && f[0] != id {
			continue
		}
		if n, err := strconv.ParseInt(f[2], 10, 64); err == nil && n >= 65536 {
			return true
		}
	}
	return false
}
