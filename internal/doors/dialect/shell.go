package dialect

import (
	"iter"
	"slices"
	"strings"
)

// Quote returns a text as one word of a shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// UnsetLater returns the command of a template's step, preceded by commands that unset the
// variables that the step must not have yet: in Cove a template's variables apply to all of
// its steps, in other products only from their own instruction on. Names must have been
// checked.
func UnsetLater(command string, names iter.Seq[string], has map[string]string) string {
	var later []string
	for name := range names {
		// Without these a shell finds nothing.
		if _, is := has[name]; !is && name != "PATH" && name != "HOME" {
			later = append(later, name)
		}
	}
	if len(later) == 0 {
		return command
	}
	slices.Sort(later)
	return "unset " + strings.Join(later, " ") + "\n" + command
}

// MakeUser returns the command of a template's step that adds a missing user with the tools
// that images have: some lack id or grep. With sudo, the user can become root without a
// password. The name must have no special meaning for a shell.
func MakeUser(name string, sudo bool) string {
	run := "set -e\nfound=\nwhile IFS=: read -r name _; do if [ \"$name\" = " + name + " ]; then found=1; fi; done < /etc/passwd\n" +
		"if [ \"$found\" ]; then :; elif command -v useradd >/dev/null; then useradd -m -s /bin/sh " + name + "; else adduser -D -s /bin/sh " + name + "; fi"
	if sudo {
		run += "\ncommand -v sudo >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends sudo; }\n" +
			"mkdir -p /etc/sudoers.d\necho '" + name + " ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/" + name + "\nchmod 0440 /etc/sudoers.d/" + name
	}
	return run
}
