package image

import (
	"fmt"
	"strings"
)

var root = meta{mode: 0o644}

// furnish adds what every sandbox relies on to a root file system: the user,
// its directories, and the files that name the machine.
func furnish(t *tree, shell string) error {
	user := func(mode uint32) meta { return meta{mode: mode, uid: userID, gid: userID} }
	dirs := []struct {
		path string
		meta meta
	}{
		{".cove", meta{mode: 0o755}}, {"dev", meta{mode: 0o755}}, {"proc", meta{mode: 0o755}}, {"sys", meta{mode: 0o755}},
		{"run", meta{mode: 0o755}}, {"tmp", meta{mode: 0o1777}}, {"var/tmp", meta{mode: 0o1777}}, {"var/log", meta{mode: 0o755}},
		{"root", meta{mode: 0o700}}, {"home", meta{mode: 0o755}}, {homeDir[1:], user(0o755)}, {workDir[1:], user(0o755)},
	}
	for _, d := range dirs {
		if err := t.mkdir(d.path, d.meta); err != nil {
			return err
		}
	}
	if err := nameMachine(t); err != nil {
		return err
	}
	return addUser(t, shell)
}

// nameMachine writes the files that name the machine and its resolver, in place
// of what is there.
func nameMachine(t *tree) error {
	for _, f := range []struct{ path, content string }{
		{"etc/hostname", "sandbox\n"},
		{"etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"},
		{"etc/resolv.conf", "nameserver 169.254.77.1\n"}, // the gateway in the sandbox's cell
	} {
		if t.has(f.path, 'd') {
			if err := t.removeAll(f.path); err != nil {
				return err
			}
		}
		if err := t.put(f.path, root, f.content); err != nil {
			return err
		}
	}
	return nil
}

// addUser adds the default user and group to the account files, and removes
// others with the same name or number.
func addUser(t *tree, shell string) error {
	files := []struct {
		path, line string
		mode       uint32
	}{
		{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:%s", userName, userID, userID, homeDir, shell), 0o644},
		{"etc/group", fmt.Sprintf("%s:x:%d:", userName, userID), 0o644},
		{"etc/shadow", userName + ":*:19000:0:99999:7:::", 0o640},
		{"etc/gshadow", userName + ":!::", 0o640},
	}
	id := fmt.Sprint(userID)
	for _, f := range files {
		old, err := t.read(f.path)
		if err != nil {
			continue // no such file: nothing looks for accounts there
		}
		var b strings.Builder
		for line := range strings.Lines(old) {
			fields := strings.Split(strings.TrimRight(line, "\n"), ":")
			numbered := f.path == "etc/passwd" || f.path == "etc/group"
			if fields[0] == userName || fields[0] == "" || numbered && len(fields) > 2 && fields[2] == id {
				continue
			}
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
		b.WriteString(f.line + "\n")
		m := t.entries[f.path]
		if err := t.put(f.path, meta{mode: f.mode, uid: m.uid, gid: m.gid}, b.String()); err != nil {
			return err
		}
	}
	for _, name := range []string{".bashrc", ".profile"} {
		skel, err := t.read("etc/skel/" + name)
		if err != nil {
			continue
		}
		if err := t.put(homeDir[1:]+"/"+name, meta{mode: 0o644, uid: userID, gid: userID}, skel); err != nil {
			return err
		}
	}
	return allowSudo(t)
}

// allowSudo lets the user become root without a password, if sudo is installed.
// Root in a sandbox has no more rights outside it than any other user.
func allowSudo(t *tree) error {
	if !t.has("etc/sudoers.d", 'd') {
		return nil
	}
	return t.put("etc/sudoers.d/"+userName, meta{mode: 0o440}, userName+" ALL=(ALL:ALL) NOPASSWD: ALL\n")
}

// npmForUser has npm install programs below the user's home directory, as pip
// does: /usr/local belongs to root.
func npmForUser(t *tree) error {
	return t.put(homeDir[1:]+"/.npmrc", meta{mode: 0o644, uid: userID, gid: userID}, "prefix="+homeDir+"/.local\n")
}
