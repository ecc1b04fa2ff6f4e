package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cove-sh/cove/sandbox"
)

// schemaVersion is the version of the output of --json. Adding members does not
// change it; anything else does.
const schemaVersion = 1

const jsonHelp = "Print JSON (schema_version changes only when fields are removed or changed)"

// itemList is the JSON form of a listing.
type itemList[T any] struct {
	Items []T `json:"items"`
}

// printJSON prints an object with the version of its schema as its first
// member.
func (a *app) printJSON(v any) error {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	body := bytes.TrimSpace(data.Bytes())
	if len(body) < 2 || body[0] != '{' {
		return fmt.Errorf("encode the result: %T is not an object", v)
	}
	out := fmt.Appendf(nil, `{"schema_version":%d`, schemaVersion)
	if len(body) > 2 {
		out = append(out, ',')
	}
	out = append(out, body[1:]...)
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, out, "", "  "); err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	pretty.WriteByte('\n')
	return a.print(pretty.String())
}

// print writes a result.
func (a *app) print(text string) error {
	if _, err := io.WriteString(a.Stdout, text); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// printTable prints rows under their headings. On a terminal the headings are
// bold, and long cells are cut so that a row fits on a line.
func (a *app) printTable(headings []string, rows [][]string) error {
	text, err := tableText(headings, rows, a.columns())
	if err != nil {
		return err
	}
	if isTerminal(a.Stdout) {
		head, rest, _ := strings.Cut(text, "\n")
		text = "\x1b[1m" + head + "\x1b[0m\n" + rest
	}
	return a.print(text)
}

// tableText lays out rows under their headings. Cells are cut so that rows are at
// most room characters wide; 0 is no limit.
func tableText(headings []string, rows [][]string, room int) (string, error) {
	for _, row := range rows {
		for i := range row {
			if row[i] = cleanLine(row[i]); row[i] == "" {
				row[i] = "-"
			}
		}
	}
	rows = append([][]string{headings}, rows...)
	if room > 0 {
		fitted(room, rows)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	err := w.Flush()
	return b.String(), err
}

// leastColumn is how narrow a column may become, in characters.
const leastColumn = 12

// fitted shortens the widest columns so that rows are at most room characters
// wide. The first column, which has ids and names, is kept. If a column would
// become too narrow, all stay as they are and the terminal wraps them.
func fitted(room int, rows [][]string) {
	widths := make([]int, len(rows[0]))
	total := 2 * (len(widths) - 1)
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for total > room {
		widest := len(widths) - 1
		for i := widest; i > 0; i-- {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widest == 0 || widths[widest] <= leastColumn {
			return
		}
		widths[widest]--
		total--
	}
	for _, row := range rows {
		for i, cell := range row {
			if r := []rune(cell); len(r) > widths[i] {
				row[i] = strings.TrimRight(string(r[:widths[i]-1]), " ,") + "…"
			}
		}
	}
}

// fields prints names with their values, one a line, and leaves out empty values.
// On a terminal long values are wrapped and indented.
func (a *app) fields(values ...any) error {
	pairs, width := texts(values), 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			width = max(width, len(pairs[i]))
		}
	}
	indent := width + 3
	room := a.columns() - indent
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if value := cleanLine(pairs[i+1]); value != "" {
			fmt.Fprintf(&b, "%-*s  %s\n", width+1, pairs[i]+":", folded(value, room, indent))
		}
	}
	return a.print(b.String())
}

// columns returns the width of the terminal on standard output, or 0 if it is
// not a terminal.
func (a *app) columns() int {
	if f, ok := a.Stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			return w
		}
	}
	return 0
}

// folded wraps a text that is longer than room between words.
func folded(text string, room, indent int) string {
	if room < 20 || utf8.RuneCountInString(text) <= room {
		return text
	}
	var b strings.Builder
	at := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > room:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// clean escapes control characters in text from elsewhere, which could control
// the terminal. Newlines and tabs are kept.
func clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unsafeRune) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unsafeRune(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// cleanLine is clean for a text that must stay on its line: a newline in it
// would forge another row.
func cleanLine(s string) string {
	return lineEnds.Replace(clean(s))
}

var lineEnds = strings.NewReplacer("\n", `\n`, "\t", `\t`)

func unsafeRune(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	// Format characters can reorder what is shown.
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

// age formats how long ago a time was.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t))
}

// until formats how far away a time is.
func until(t *time.Time) string {
	if t == nil {
		return ""
	}
	return span(time.Until(*t))
}

// span formats a duration in one unit.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// stamp formats a time in full.
func stamp(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

// bytesText formats a size in binary units.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit && i < 4; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[i])
}

// outcome describes how a job ended.
func outcome(job *sandbox.Job) string {
	switch {
	case job.State != sandbox.JobExited:
		return ""
	case job.EndCause != "":
		return string(job.EndCause)
	case job.Signal != "":
		return job.Signal
	}
	return fmt.Sprintf("exit %d", job.ExitCode)
}

// oneLine shows a command in a column of a table.
func oneLine(command []string) string {
	const most = 60
	line := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, strings.Join(command, " "))
	if runes := []rune(line); len(runes) > most {
		line = string(runes[:most-1]) + "…"
	}
	return line
}

// number formats a number; 0 is empty.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// numbersText formats numbers separated by spaces.
func numbersText(n []int) string { return strings.Trim(fmt.Sprint(n), "[]") }
