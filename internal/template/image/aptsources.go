package image

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// aptEntry is one line of a sources.list.
type aptEntry struct {
	uri, suite string
	components []string
	signedBy   string
	trusted    bool
}

// maxSources bounds the size of a sources file.
const maxSources = 1 << 20

// sources returns the text of a sources.list that says where packages come from.
func (d *debianSource) sources() string {
	release, _ := os.ReadFile(filepath.Join(d.machine, "etc/os-release"))
	fields := strings.Fields(string(release))
	if !slices.Contains(fields, "VERSION_CODENAME="+suite) || !slices.Contains(fields, "ID=debian") {
		return defaultSources(d.keyring())
	}
	var entries []aptEntry
	lists, _ := filepath.Glob(filepath.Join(d.machine, "etc/apt/sources.list.d/*.list"))
	for _, f := range append([]string{filepath.Join(d.machine, "etc/apt/sources.list")}, lists...) {
		entries = append(entries, parseOneLine(readSources(f))...)
	}
	stanzas, _ := filepath.Glob(filepath.Join(d.machine, "etc/apt/sources.list.d/*.sources"))
	for _, f := range stanzas {
		entries = append(entries, parseDeb822(readSources(f))...)
	}
	var b strings.Builder
	found := false
	for _, e := range entries {
		if line, ok := d.line(e); ok && !strings.Contains(b.String(), line) {
			b.WriteString(line)
			found = found || e.suite == suite
		}
	}
	if !found {
		return defaultSources(d.keyring())
	}
	return b.String()
}

// defaultSources is Debian's own mirror network.
func defaultSources(keyring string) string {
	opt := ""
	if keyring != "" {
		opt = "[signed-by=" + keyring + "] "
	}
	return fmt.Sprintf("deb %shttp://deb.debian.org/debian %s main\ndeb %[1]shttp://deb.debian.org/debian %[2]s-updates main\ndeb %[1]shttp://deb.debian.org/debian-security %[2]s-security main\n", opt, suite)
}

// keyring returns the file of Debian's keys, or "" to let mmdebstrap look.
func (d *debianSource) keyring() string {
	const f = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if _, err := os.Stat(f); err != nil {
		return ""
	}
	return f
}

func readSources(file string) string {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSources {
		return ""
	}
	b, _ := os.ReadFile(file)
	return string(b)
}

// line returns an entry as a line, if it is Debian's own and for this release. Other
// publishers for the same release use other addresses.
func (d *debianSource) line(e aptEntry) (string, bool) {
	u, err := url.Parse(e.uri)
	if err != nil || u.Scheme == "" || strings.ContainsAny(e.uri, " \t\n[]") {
		return "", false
	}
	if !slices.Contains([]string{suite, suite + "-updates", suite + "-security"}, e.suite) || !slices.Contains(e.components, "main") {
		return "", false
	}
	ours := strings.HasPrefix(path.Base(strings.TrimSuffix(u.Path, "/")), "debian") || strings.Contains(path.Base(e.signedBy), "debian-archive")
	if !ours {
		return "", false
	}
	var opts []string
	if e.signedBy != "" && path.IsAbs(e.signedBy) && !strings.ContainsAny(e.signedBy, " \t\n[],") {
		opts = append(opts, "signed-by="+e.signedBy)
	}
	if e.trusted {
		opts = append(opts, "trusted=yes")
	}
	opt := ""
	if len(opts) > 0 {
		opt = "[" + strings.Join(opts, " ") + "] "
	}
	return fmt.Sprintf("deb %s%s %s main\n", opt, e.uri, e.suite), true
}

// parseOneLine parses the one-line format.
func parseOneLine(text string) []aptEntry {
	var out []aptEntry
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var e aptEntry
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			opts, after, ok := strings.Cut(rest[1:], "]")
			if !ok {
				continue
			}
			for o := range strings.FieldsSeq(opts) {
				switch k, v, _ := strings.Cut(o, "="); strings.ToLower(k) {
				case "signed-by":
					e.signedBy = v
				case "trusted":
					e.trusted = v == "yes"
				}
			}
			rest = after
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		e.uri, e.suite, e.components = f[0], f[1], f[2:]
		out = append(out, e)
	}
	return out
}

// parseDeb822 parses the deb822 format.
func parseDeb822(text string) []aptEntry {
	var out []aptEntry
	stanza := map[string]string{}
	last := ""
	flush := func() {
		if slices.Contains(strings.Fields(stanza["types"]), "deb") && !strings.EqualFold(stanza["enabled"], "no") {
			for _, u := range strings.Fields(stanza["uris"]) {
				for _, s := range strings.Fields(stanza["suites"]) {
					e := aptEntry{uri: u, suite: s, components: strings.Fields(stanza["components"]), trusted: strings.EqualFold(stanza["trusted"], "yes")}
					if by := strings.TrimSpace(stanza["signed-by"]); path.IsAbs(by) {
						e.signedBy = by
					}
					if len(out) < 1000 {
						out = append(out, e)
					}
				}
			}
		}
		stanza, last = map[string]string{}, ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			if last != "" {
				stanza[last] += "\n" + strings.TrimSpace(line)
			}
		default:
			k, v, ok := strings.Cut(line, ":")
			if ok {
				last = strings.ToLower(strings.TrimSpace(k))
				stanza[last] = strings.TrimSpace(v)
			}
		}
	}
	flush()
	return out
}
