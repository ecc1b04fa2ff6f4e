package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-sh/cove/internal/lazyregexp"
)

// check says how closely a file is read before it is copied.
type check int

const (
	// data is left out if it holds a private key or a URL with a password.
	data check = iota
	// script is also left out if it sets a proxy or anything named like a
	// credential, as scripts of administrators do.
	script
)

// etcAllowed are patterns, below /etc, of the files to copy. Directories are copied with
// all their content. Nothing else is copied.
var etcAllowed = []struct {
	pattern string
	check   check
}{
	// the dynamic linker and links to chosen programs
	{"ld.so.cache", data}, {"ld.so.conf", data}, {"ld.so.conf.d", data}, {"alternatives", data},
	// public certificates
	{"ssl/certs", data}, {"ssl/openssl.cnf", data}, {"ssl/cert.pem", data}, {"ca-certificates.conf", data}, {"ca-certificates/extracted", data},
	{"pki/tls/certs", data}, {"pki/tls/cert.pem", data}, {"pki/tls/openssl.cnf", data}, {"pki/ca-trust/extracted", data}, {"crypto-policies/back-ends", data},
	// what the system is
	{"os-release", data}, {"lsb-release", data}, {"debian_version", data}, {"*-release", data}, {"localtime", data}, {"timezone", data},
	// names and numbers
	{"services", data}, {"protocols", data}, {"rpc", data}, {"ethertypes", data}, {"networks", data}, {"host.conf", data}, {"gai.conf", data},
	{"mime.types", data}, {"magic", data}, {"magic.mime", data}, {"locale.alias", data}, {"shells", data}, {"login.defs", data}, {"terminfo", data},
	// settings that programs do not work without
	{"fonts", data}, {"X11/app-defaults", data}, {"perl", data}, {"python3", data}, {"python3.*", data}, {"java-*", data}, {"vim", data}, {"nanorc", data},
	{"manpath.config", data}, {"groff", data}, {"ImageMagick-*", data}, {"gtk-2.0", data}, {"gtk-3.0", data}, {"xml", data}, {"sgml", data}, {"xattr.conf", data},
	{"ghostscript", data}, {"texmf", data}, {"matplotlibrc", data}, {"R", script},
	// shells
	{"bash.bashrc", script}, {"bashrc", script}, {"bash_completion", script}, {"bash_completion.d", script}, {"inputrc", data},
	{"profile", script}, {"profile.d", script}, {"skel", script}, {"zsh", script},
}

const (
	maxEtcFile = 4 << 20
	maxEtcAll  = 64 << 20
)

// linkable matches absolute paths that a copied link may point to.
var linkable = lazyregexp.New(`^/(usr|bin|sbin|lib|lib32|lib64|etc)/`)

var (
	userInfo     = lazyregexp.New(`^://[^/\s:@"']{1,128}:[^/\s@"']{1,256}@`)
	secretScript = lazyregexp.New(`(?im)^[^#\n]*(_proxy|proxy(host|port|user|password)?|token|passw(or)?d|secret|credentials?|api_?key|access_?key)\w*["']?\s*[=:]`)
)

// holdsSecret reports whether data holds a private key or a URL with a password.
func holdsSecret(b []byte) bool {
	if bytes.Contains(b, []byte("PRIVATE KEY-----")) {
		return true
	}
	for {
		i := bytes.Index(b, []byte("://"))
		if i < 0 {
			return false
		}
		if userInfo.Match(b[i:min(len(b), i+400)]) {
			return true
		}
		b = b[i+3:]
	}
}

// eachEtc calls fn for the files, directories and links to be copied, with
// paths below /etc, a directory before its content.
func (h *hostSource) eachEtc(fn func(rel string, info fs.FileInfo, c check) error) error {
	etc := filepath.Join(h.machine, "etc")
	for _, a := range etcAllowed {
		matches, err := filepath.Glob(filepath.Join(etc, a.pattern))
		if err != nil {
			return err
		}
		for _, match := range matches {
			if !reachable(etc, match) {
				continue
			}
			err := filepath.WalkDir(match, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					return nil // not readable, or gone
				}
				info, err := d.Info()
				if err != nil {
					return nil
				}
				if info.IsDir() && info.Mode().Perm()&0o005 != 0o005 {
					return fs.SkipDir
				}
				rel, err := filepath.Rel(etc, p)
				if err != nil {
					return err
				}
				return fn(rel, info, a.check)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// reachable reports whether everyone may enter the directories from etc to the
// match, and none of them is a link.
func reachable(etc, match string) bool {
	for dir := filepath.Dir(match); len(dir) >= len(etc); dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// copyEtc copies the files of etcAllowed.
func (h *hostSource) copyEtc(t *tree) error {
	etc, err := os.OpenRoot(filepath.Join(h.machine, "etc"))
	if err != nil {
		return err
	}
	defer etc.Close()
	total := int64(0)
	return h.eachEtc(func(rel string, info fs.FileInfo, c check) error {
		to := path.Join("etc", rel)
		if _, done := t.entries[to]; done {
			return nil
		}
		switch {
		case info.IsDir():
			return t.mkdir(to, meta{mode: 0o755, mtime: info.ModTime()})
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := etc.Readlink(rel)
			if err != nil || !goodLink(rel, target) {
				return nil
			}
			return t.symlink(to, target, root)
		case !info.Mode().IsRegular():
			return nil
		}
		content, ok := readPublic(etc, rel, c)
		if total += int64(len(content)); total > maxEtcAll {
			return fmt.Errorf("settings are larger than %d bytes", maxEtcAll)
		}
		if !ok {
			return nil
		}
		return t.put(to, meta{mode: uint32(info.Mode().Perm()) & 0o755, mtime: info.ModTime()}, content)
	})
}

// goodLink reports whether a link below /etc points to something that can be in a
// sandbox. The targets of other links are not revealed.
func goodLink(rel, target string) bool {
	if !path.IsAbs(target) {
		target = path.Join("/etc", path.Dir(rel), target)
	}
	return linkable.MatchString(path.Clean(target))
}

// readPublic reads a file that everyone may read and that holds no secret.
func readPublic(etc *os.Root, rel string, c check) (string, bool) {
	f, err := etc.Open(rel)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 || info.Size() > maxEtcFile {
		return "", false
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEtcFile+1))
	if err != nil || len(b) > maxEtcFile {
		return "", false
	}
	if holdsSecret(b) || c == script && secretScript.Match(b) {
		return "", false
	}
	return string(b), true
}

// accounts writes the account files and a few settings of Cove's own.
func (h *hostSource) accounts(t *tree, shell string) error {
	const nologin = "/usr/sbin/nologin"
	var passwd, group, shadow strings.Builder
	for _, a := range []struct {
		name, group string
		uid, gid    int
		home        string
	}{
		{"root", "root", 0, 0, "/root"}, {"daemon", "daemon", 1, 1, "/usr/sbin"}, {"bin", "bin", 2, 2, "/bin"}, {"sys", "sys", 3, 3, "/dev"},
		{"man", "man", 6, 12, "/var/cache/man"}, {"mail", "mail", 8, 8, "/var/mail"}, {"www-data", "www-data", 33, 33, "/var/www"},
		{"nobody", "nogroup", 65534, 65534, "/nonexistent"},
	} {
		sh := nologin
		if a.uid == 0 {
			sh = shell
		}
		fmt.Fprintf(&passwd, "%s:x:%d:%d:%s:%s:%s\n", a.name, a.uid, a.gid, a.name, a.home, sh)
		fmt.Fprintf(&group, "%s:x:%d:\n", a.group, a.gid)
		fmt.Fprintf(&shadow, "%s:*:19000:0:99999:7:::\n", a.name)
	}
	group.WriteString("adm:x:4:\ntty:x:5:\nsudo:x:27:\nshadow:x:42:\nutmp:x:43:\nvideo:x:44:\nstaff:x:50:\nusers:x:100:\n")
	files := []struct {
		path    string
		mode    uint32
		content string
	}{
		{"etc/passwd", 0o644, passwd.String()},
		{"etc/group", 0o644, group.String()},
		{"etc/shadow", 0o640, shadow.String()},
		{"etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"},
		{"etc/sudoers", 0o440, "Defaults env_reset\nDefaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\nroot ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n"},
		{"etc/pam.d/other", 0o644, "auth required pam_permit.so\naccount required pam_permit.so\npassword required pam_permit.so\nsession required pam_permit.so\n"},
	}
	errs := []error{t.mkdir("etc/sudoers.d", meta{mode: 0o750})}
	for _, f := range files {
		errs = append(errs, t.put(f.path, meta{mode: f.mode}, f.content))
	}
	if !t.has("etc/profile", 'f') {
		errs = append(errs, t.put("etc/profile", root, "for f in /etc/profile.d/*.sh; do [ -r \"$f\" ] && . \"$f\"; done\nunset f\n"))
	}
	return errors.Join(errs...)
}
