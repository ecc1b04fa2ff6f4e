package layer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// CompareOptions select the results of a comparison.
type CompareOptions struct {
	// Paths selects changes at or below these absolute paths; empty is all.
	Paths []string
	// Limit bounds the changes that are returned; 0 is
	// [sandbox.DefaultDiffLimit]. All changes are counted.
	Limit int
	// Patch adds unified diffs of text files whose content was kept by [Read], or is in
	// the template. All patches together have at most [sandbox.MaxPatchBytes]; those that
	// do not fit are left out.
	Patch bool
}

// Compare returns the changes from one view to another of the same template, as
// [sandbox.Diff] and [sandbox.Change] define them, sorted by path. Hard links are
// compared as separate files; times, extended attributes and sockets are not compared.
func Compare(ctx context.Context, from, to View, opts CompareOptions) (*sandbox.Diff, error) {
	sel, err := newSelection(opts.Paths)
	if err != nil {
		return nil, err
	}
	limit := opts.Limit
	if limit <= 0 {
		limit = sandbox.DefaultDiffLimit
	}
	look := newLookup(ctx, to.Lower)
	a, b, err := look.tops(from, to)
	if err != nil {
		return nil, err
	}
	found := changes{limit: limit}
	c := comparison{look: look, sel: sel, visit: func(d difference) error { found.add(d.Change); return nil }}
	if err := c.walk("/", a, b); err != nil {
		return nil, err
	}
	d := found.diff()
	if opts.Patch {
		p := patcher{look: look, from: from, to: to}
		for i := range d.Changes {
			if d.Changes[i].Patch, err = p.patch(d.Changes[i]); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// tops returns the roots of two views.
func (l *lookup) tops(from, to View) (a, b spot, err error) {
	if a, err = l.top(from); err != nil {
		return a, b, err
	}
	if b, err = l.top(to); err != nil {
		return a, b, err
	}
	if !a.isDir() || !b.isDir() {
		return a, b, errors.New("layer: the template is not a directory")
	}
	return a, b, nil
}

// difference is a change with the entries of both sides; nil if there is none.
type difference struct {
	sandbox.Change
	a, b *Entry
}

// comparison walks two views side by side.
type comparison struct {
	look *lookup
	sel  selection
	// visit is called for each difference; an error ends the walk.
	visit func(difference) error
}

func (c *comparison) walk(p string, a, b spot) error {
	if untouched(a, b) || c.sel.skips(p) {
		return nil
	}
	covered := c.sel.covers(p)
	if !covered && !c.sel.reachesBelow(p) {
		return nil
	}
	if covered {
		if err := c.compare(p, a.entry, b.entry); err != nil {
			return err
		}
		if !b.isDir() {
			// The content of a removed or replaced directory is not listed.
			return nil
		}
	}
	if !a.isDir() {
		a = absent
	}
	if !b.isDir() {
		b = absent
	}
	return c.children(p, a, b)
}

func (c *comparison) children(p string, a, b spot) error {
	names, err := c.look.names(p, a, b)
	if err != nil {
		return err
	}
	for _, name := range names {
		q := join(p, name)
		ca, err := c.look.child(a, name, q)
		if err != nil {
			return err
		}
		cb, err := c.look.child(b, name, q)
		if err != nil {
			return err
		}
		if err := c.walk(q, ca, cb); err != nil {
			return err
		}
	}
	return nil
}

// compare visits a path if its entries differ.
func (c *comparison) compare(p string, a, b *Entry) error {
	ch, err := c.look.change(p, a, b)
	if err != nil || ch == nil {
		return err
	}
	return c.visit(difference{Change: *ch, a: a, b: b})
}

// change describes the change from one entry to another; nil if they are equal.
func (l *lookup) change(p string, a, b *Entry) (*sandbox.Change, error) {
	ch := sandbox.Change{Path: p}
	switch {
	case a == nil && b == nil:
		return nil, nil
	case a == nil:
		ch.Kind, ch.Type = sandbox.ChangeAdded, b.Kind.FileType()
	case b == nil:
		ch.Kind, ch.Type = sandbox.ChangeRemoved, a.Kind.FileType()
	default:
		aspects, err := l.aspects(p, a, b)
		if err != nil || len(aspects) == 0 {
			return nil, err
		}
		ch.Kind, ch.Type, ch.Aspects = sandbox.ChangeModified, b.Kind.FileType(), aspects
	}
	if a != nil {
		ch.OldSize, ch.OldMode = a.Size, octal(a.Mode)
	}
	if b != nil {
		ch.NewSize, ch.NewMode = b.Size, octal(b.Mode)
	}
	return &ch, nil
}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode) }

// changes keeps the changes with the first paths and counts all.
type changes struct {
	limit                    int
	list                     []sandbox.Change
	added, removed, modified int
}

func (c *changes) add(ch sandbox.Change) {
	switch ch.Kind {
	case sandbox.ChangeAdded:
		c.added++
	case sandbox.ChangeRemoved:
		c.removed++
	case sandbox.ChangeModified:
		c.modified++
	}
	if c.list = append(c.list, ch); len(c.list) >= 2*c.limit+1000 {
		c.cut()
	}
}

func (c *changes) cut() {
	slices.SortFunc(c.list, func(a, b sandbox.Change) int { return strings.Compare(a.Path, b.Path) })
	if len(c.list) > c.limit {
		clear(c.list[c.limit:])
		c.list = c.list[:c.limit]
	}
}

func (c *changes) diff() *sandbox.Diff {
	c.cut()
	if c.list == nil {
		c.list = []sandbox.Change{}
	}
	return &sandbox.Diff{
		Changes:   c.list,
		Added:     c.added,
		Removed:   c.removed,
		Modified:  c.modified,
		Truncated: c.added+c.removed+c.modified > len(c.list),
	}
}
