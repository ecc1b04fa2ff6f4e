package layer

import (
	"io"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/cove-sh/cove/sandbox"
)

// patcher makes unified diffs of the files of two views.
type patcher struct {
	look     *lookup
	from, to View
	total    int
}

// patch returns the unified diff for a change, or "" if it has none: its content did not
// change, one side is not text, too large or not kept, or the diff exceeds what earlier
// patches have left of [sandbox.MaxPatchBytes].
func (p *patcher) patch(ch sandbox.Change) (string, error) {
	if ch.Type != sandbox.TypeFile || max(ch.OldSize, ch.NewSize) > sandbox.MaxPatchFileBytes {
		return "", nil
	}
	if ch.Kind == sandbox.ChangeModified && !slices.Contains(ch.Aspects, sandbox.AspectContent) {
		return "", nil
	}
	if err := p.look.ctx.Err(); err != nil {
		return "", err
	}
	var before, after string
	oldName, newName := "/dev/null", "/dev/null"
	if ch.Kind != sandbox.ChangeAdded {
		oldName = label("a", ch.Path)
		text, ok, err := p.text(p.from, ch.Path)
		if err != nil || !ok {
			return "", err
		}
		before = text
	}
	if ch.Kind != sandbox.ChangeRemoved {
		newName = label("b", ch.Path)
		text, ok, err := p.text(p.to, ch.Path)
		if err != nil || !ok {
			return "", err
		}
		after = text
	}
	patch, err := udiff.ToUnified(oldName, newName, before, udiff.Lines(before, after), udiff.DefaultContextLines)
	if err != nil {
		return "", err
	}
	if p.total+len(patch) > sandbox.MaxPatchBytes {
		return "", nil
	}
	p.total += len(patch)
	return patch, nil
}

// label returns the name of a file in a patch, on one line.
func label(side, path string) string {
	return side + strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(path)
}

// text returns the content of a text file in a view.
func (p *patcher) text(v View, path string) (string, bool, error) {
	if v.Layer != nil {
		if e := v.Layer.Entry(path); e != nil {
			return string(e.content), e.kept, nil
		}
	}
	f, err := v.Lower.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, sandbox.MaxPatchFileBytes+1))
	if err != nil || len(b) > sandbox.MaxPatchFileBytes || !isText(b) {
		return "", false, err
	}
	return string(b), true, nil
}
