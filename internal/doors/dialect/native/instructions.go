package native

import (
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/lazyregexp"
)

// Clients show a model the first 2,048 characters of the instructions, some only the
// first 512, which is the part before "More:".
const (
	instructionsTitle = "Cove runs untrusted code in isolated Linux sandboxes (gVisor).\n"
	instructionsEnd   = "\nErrors carry a stable code and say what to do next. Sandboxes keep files and processes between calls; nothing in one can see another or the host."
)

// basics and details are the lines of the instructions. A line is omitted if a tool
// that it names is not offered.
var (
	basics = []string{
		`sandbox_create returns an id. Other tools take it (or the sandbox's name) as "sandbox".`,
		"run_code runs Python, JavaScript, Bash and more as in a notebook.",
		"sandbox_exec runs a command; file_read and file_write work on files.",
		"sandbox_kill ends a sandbox and deletes its files.",
		"sandbox_fork copies a running sandbox with its memory: use it before a risky step.",
		"sandbox_try runs alternatives in forks and keeps the one you pick.",
	}
	details = []string{
		"Relative paths start at the sandbox's working directory.",
		"file_search finds files by name or content.",
		"run_code keeps variables and imports between calls, and works without a sandbox too.",
		"network_log tells what the network policy blocked; network_set changes the policy. secret_attach lets a sandbox use a credential without seeing it.",
		"preview_create makes a port of a sandbox a URL; preview_link makes a link to hand out.",
		`A command of sandbox_exec that runs longer than 45 s goes on as a job: poll it with job_get, end it with job_stop. Start servers with "background": true.`,
		"sandbox_diff shows which files a sandbox or fork has changed.",
		"sandbox_merge brings a fork back into its parent.",
		"snapshot_create keeps a state by name; snapshot_restore goes back to it, with step -1 to before the last command of a sandbox with history.",
		"sandbox_pause frees memory. A paused sandbox resumes when a tool needs it.",
		"computer_create makes a sandbox with a screen; computer_action uses it.",
		"template_build builds what sandboxes start from.",
		"volume_create makes a volume, whose files outlive sandboxes.",
		"Sandboxes end when their lifetime is over, or pause if on_timeout is pause.",
	}
)

// The line about toolsets that are off, by who can turn them on.
const (
	moreByModel = "toolset_enable adds the tools of further toolsets when you need them: "
	moreByOwner = "The owner of the client can turn on further toolsets: "
)

var toolName = lazyregexp.New(`\b[a-z]+_[a-z]+\b`)

// Instructions tell a model how to use the given tools, and name no others.
func (d *Dialect) Instructions(tools []dialect.Tool) string {
	offered, lacks, readOnly := make(map[string]bool), make(map[string]bool), true
	for _, t := range tools {
		offered[t.Def.Name] = true
		readOnly = readOnly && t.ReadOnly()
	}
	known := make(map[string]bool)
	for _, t := range d.tools {
		known[t.Def.Name] = true
		if !offered[t.Def.Name] && (t.ReadOnly() || !readOnly) {
			lacks[t.Toolset] = true
		}
	}
	var off []string
	for _, set := range toolsets {
		if lacks[set.name] && set.name != toolsetDynamic {
			off = append(off, set.name)
		}
	}
	var b strings.Builder
	b.WriteString(instructionsTitle)
	write := func(lines []string) {
		for _, line := range lines {
			if namesOnly(line, known, offered) {
				b.WriteString("\n- " + line)
			}
		}
	}
	write(basics)
	b.WriteString("\n\nMore:")
	write(details)
	if len(off) > 0 {
		more := moreByOwner
		if offered["toolset_enable"] {
			more = moreByModel
		}
		b.WriteString("\n- " + more + strings.Join(off, ", ") + ".")
	}
	b.WriteString("\n" + instructionsEnd)
	return b.String()
}

// namesOnly reports whether all known tools that a line names are offered.
func namesOnly(line string, known, offered map[string]bool) bool {
	for _, name := range toolName.FindAllString(line, -1) {
		if known[name] && !offered[name] {
			return false
		}
	}
	return true
}
