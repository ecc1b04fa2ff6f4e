package native

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type diffArgs struct {
	sandboxRef
	sandbox.DiffRequest
}

// changeView is a change in a result. A patch that does not fit is cut after a line,
// or omitted.
type changeView struct {
	sandbox.Change
	PatchTruncated bool `json:"patch_truncated,omitempty"`
}

// diffView is a diff in a result.
type diffView struct {
	Added     int          `json:"added"`
	Removed   int          `json:"removed"`
	Modified  int          `json:"modified"`
	Changes   []changeView `json:"changes"`
	Truncated bool         `json:"truncated"`
	Hint      string       `json:"hint,omitempty"`
}

func compareFiles(ctx context.Context, c *dialect.Call, in diffArgs) (*reply[diffView], error) {
	c.Status("comparing files")
	d, err := c.Service.Diff(ctx, in.Sandbox, in.DiffRequest)
	if err != nil {
		return nil, err
	}
	v, err := viewDiff(d, maxResultBytes)
	if err != nil {
		return nil, err
	}
	if v.Truncated {
		v.Hint = "not all is shown; call again with paths that select less"
	}
	return answer(v.text(), v)
}

// viewDiff returns as much of a diff as fits into size bytes of JSON: all changes have
// precedence over patches.
func viewDiff(d *sandbox.Diff, size int) (diffView, error) {
	v := diffView{Added: d.Added, Removed: d.Removed, Modified: d.Modified, Changes: []changeView{}, Truncated: d.Truncated}
	// Room for the counts and names around the list.
	size -= 256
	for i := range d.Changes {
		change := d.Changes[i]
		change.Patch = ""
		n, err := encodedSize(changeView{Change: change, PatchTruncated: true})
		if err != nil {
			return diffView{}, err
		}
		if size -= n + 1; size < 0 {
			v.Truncated = true
			break
		}
		v.Changes = append(v.Changes, changeView{Change: change})
	}
	for i := range v.Changes {
		patch, _ := clean([]byte(d.Changes[i].Patch))
		if patch == "" {
			continue
		}
		fit, n, err := cutLines(patch, size-len(`"patch":"",`))
		if err != nil {
			return diffView{}, err
		}
		if fit != "" {
			size -= n + len(`"patch":"",`)
		}
		v.Changes[i].Patch = fit
		if fit != patch {
			v.Changes[i].PatchTruncated, v.Truncated = true, true
		}
	}
	return v, nil
}

// cutLines returns the first lines of s that take at most size bytes in a JSON string,
// and how many bytes they take.
func cutLines(s string, size int) (fit string, n int, err error) {
	end := 0
	for line := range strings.Lines(s) {
		k, err := encodedSize(line)
		if err != nil {
			return "", 0, err
		}
		if n+k-2 > size {
			break
		}
		n, end = n+k-2, end+len(line)
	}
	return s[:end], n, nil
}

func (v diffView) counts() string {
	return fmt.Sprintf("%d added, %d removed, %d modified", v.Added, v.Removed, v.Modified)
}

func (v diffView) text() string {
	if v.Added+v.Removed+v.Modified == 0 {
		return "No file differs."
	}
	var b strings.Builder
	b.WriteString(v.counts() + "\n")
	v.list(&b)
	field(&b, "hint: %s\n", v.Hint)
	return b.String()
}

// list writes a line for each change, with its patch below.
func (v diffView) list(b *strings.Builder) {
	for i := range v.Changes {
		b.WriteString(v.Changes[i].line() + "\n")
		if patch := v.Changes[i].Patch; patch != "" {
			b.WriteString(patch)
			if !strings.HasSuffix(patch, "\n") {
				b.WriteByte('\n')
			}
		}
		if v.Changes[i].PatchTruncated {
			b.WriteString("[… the rest of the patch is left out …]\n")
		}
	}
	if rest := v.Added + v.Removed + v.Modified - len(v.Changes); rest > 0 {
		fmt.Fprintf(b, "[… %s more left out …]\n", plural(int64(rest), "change"))
	}
}

// line is a change as git's short status shows it, with what differs.
func (c changeView) line() string {
	sign := map[sandbox.ChangeKind]string{sandbox.ChangeAdded: "A", sandbox.ChangeRemoved: "D", sandbox.ChangeModified: "M"}[c.Kind]
	s := sign + " " + showPath(c.Path)
	if c.Type == sandbox.TypeDirectory {
		s += "/"
	}
	var notes []string
	for _, a := range c.Aspects {
		switch {
		case a == sandbox.AspectMode && c.OldMode != "" && c.NewMode != "":
			notes = append(notes, fmt.Sprintf("mode %s to %s", c.OldMode, c.NewMode))
		default:
			notes = append(notes, string(a))
		}
	}
	if c.Type == sandbox.TypeFile {
		switch c.Kind {
		case sandbox.ChangeAdded:
			notes = append(notes, plural(c.NewSize, "byte"))
		case sandbox.ChangeRemoved:
			notes = append(notes, plural(c.OldSize, "byte"))
		case sandbox.ChangeModified:
			if c.OldSize != c.NewSize {
				notes = append(notes, fmt.Sprintf("%d to %s", c.OldSize, plural(c.NewSize, "byte")))
			}
		}
	}
	if len(notes) > 0 {
		s += " (" + strings.Join(notes, ", ") + ")"
	}
	return s
}

// showPath quotes a path with control characters or invalid UTF-8, since code in a
// sandbox chooses the names of files.
func showPath(p string) string {
	if utf8.ValidString(p) && !strings.ContainsFunc(p, unicode.IsControl) {
		return p
	}
	return strconv.Quote(p)
}
