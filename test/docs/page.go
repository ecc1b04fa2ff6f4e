// Package docs types the console lines of README.md and docs/ into a shell, as
// a reader would, and compares what they print with what the page says.
package docs

import (
	"bufio"
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// A Command is a line after a prompt on a page, with its continuation lines, and the
// part of its output that the page shows.
type Command struct {
	Line   int // of the page, from 1
	Text   string
	Output string
}

// Commands returns the commands of a page's console blocks, in their order. Blocks in lists
// are indented.
func Commands(page []byte) ([]Command, error) {
	var all []Command
	inside, indent := false, ""
	scan := bufio.NewScanner(bytes.NewReader(page))
	for n := 1; scan.Scan(); n++ {
		text := strings.TrimPrefix(scan.Text(), indent)
		if bare := strings.TrimLeft(text, " "); strings.HasPrefix(bare, "```console") {
			indent, text = text[:len(text)-len(bare)], bare
		}
		switch {
		case strings.HasPrefix(text, "```"):
			inside = text == "```console"
			if !inside {
				indent = ""
			}
		case !inside || text == "":
		case strings.HasPrefix(text, "$ "), strings.HasPrefix(text, "# "):
			all = append(all, Command{Line: n, Text: text[2:]})
		case len(all) == 0:
			return nil, fmt.Errorf("line %d: output without a command", n)
		case strings.HasPrefix(text, "> "):
			all[len(all)-1].Text += "\n" + text[2:]
		default:
			all[len(all)-1].Output += text + "\n"
		}
	}
	return all, scan.Err()
}

// changing are the parts of an output that are others every time.
var changing = []*regexp.Regexp{
	regexp.MustCompile(`\b(sbx|snp|sec|vol|key|job|apr)-([a-z2-7]{26}\b|…)`),
	regexp.MustCompile(`\bpvk_[a-z2-7]{26}\b`),
	regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`),
	regexp.MustCompile(`localhost:\d+`),
	regexp.MustCompile(`127\.0\.0\.1:\d{5}`),
	regexp.MustCompile(`\bv1\.\d+\.[\w.-]+`),
}

// Shape returns an output without parts that differ each time, empty lines and the
// width of columns.
func Shape(output string) string {
	for _, r := range changing {
		output = r.ReplaceAllString(output, "~")
	}
	var b strings.Builder
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "cove: this machine does not enforce") {
			continue // pages do not show warnings about the machine
		}
		if strings.HasSuffix(line, "(not shown):\n") {
			continue // a question on a terminal
		}
		if fields := strings.Fields(line); len(fields) > 0 {
			b.WriteString(strings.Join(fields, " ") + "\n")
		}
	}
	return b.String()
}

// Matches reports whether an output matches a page: the page shows no output, or the
// same one except for what changes. An ellipsis stands for any text.
func Matches(page, output string) bool {
	if page == "" {
		return true
	}
	parts := strings.Split(Shape(page), "…")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`^(?s:` + strings.Join(parts, ".*") + `)$`).MatchString(Shape(output))
}
