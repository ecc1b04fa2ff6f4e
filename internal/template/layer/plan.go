package layer

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Plan has the operations that turn one view, ours, into the result of a merge. See
// [MakePlan].
type Plan struct {
	// Changes are the changes to ours, sorted by path.
	Changes []sandbox.Change

	theirs View
	// removes are carried out first; then directories are made, parents first, and then
	// everything else.
	removes []string
	dirs    []write
	files   []write
}

// write is a path with its new entry.
type write struct {
	path  string
	entry *Entry
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.removes) == 0 && len(p.dirs) == 0 && len(p.files) == 0 }

// MaxConflicts bounds the conflicts that are returned.
const MaxConflicts = 10_000

// MakePlan makes a three-way merge: base is the common ancestor of ours and theirs, and
// all three are above the same template. Changes that only theirs has made are taken;
// changes that only ours has made, or that both have made, stay. Different changes to
// the same path are a conflict, and so is a file that one side has changed or added in a
// directory that the other has removed or replaced.
//
// resolve decides who wins each conflict. If a conflict has no winner, the plan is nil.
// Otherwise, at each path where the sides diverge, the plan keeps ours or takes theirs as a
// whole, with everything below it; the policies for the conflicts below one such path must
// agree. The conflicts are returned sorted by path, at most [MaxConflicts]: with a plan all
// of them, without one only those that have no winner.
//
// paths selects what to take; empty selects everything. Parent directories of a selected
// path are taken with it if ours lacks them. Files that belong to a sandbox itself are
// taken only if their full path is selected: see the package's comment.
func MakePlan(ctx context.Context, base, ours, theirs View, resolve Resolution, paths []string) (*Plan, []sandbox.Conflict, error) {
	sel, err := newSelection(paths)
	if err != nil {
		return nil, nil, err
	}
	m := merger{look: newLookup(ctx, theirs.Lower), sel: sel, resolve: resolve, plan: &Plan{theirs: theirs}}
	b, o, err := m.look.tops(base, ours)
	if err != nil {
		return nil, nil, err
	}
	t, err := m.look.top(theirs)
	if err != nil {
		return nil, nil, err
	}
	if err := m.walk("/", b, o, t); err != nil {
		return nil, nil, err
	}
	if len(m.open) > 0 {
		return nil, sorted(m.open), nil
	}
	m.plan.sort()
	return m.plan, sorted(m.conflicts), nil
}

func sorted(conflicts []sandbox.Conflict) []sandbox.Conflict {
	slices.SortFunc(conflicts, func(a, b sandbox.Conflict) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(conflicts)
}

// Resolution decides who wins conflicts.
type Resolution struct {
	// Policy applies to all paths that Paths does not cover.
	Policy sandbox.MergePolicy
	// Paths maps absolute paths to the policy for each path and what is below it. The
	// deepest matching path counts.
	Paths map[string]sandbox.MergePolicy
}

// of returns the policy for a path.
func (r *Resolution) of(p string) sandbox.MergePolicy {
	for {
		if policy, ok := r.Paths[p]; ok {
			return policy
		}
		if p == "/" {
			return r.Policy
		}
		p = path.Dir(p)
	}
}

func (p *Plan) sort() {
	byPath := func(a, b write) int { return strings.Compare(a.path, b.path) }
	slices.SortFunc(p.dirs, byPath)
	slices.SortFunc(p.files, byPath)
	slices.SortFunc(p.removes, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), strings.Compare(a, b))
	})
	slices.SortFunc(p.Changes, func(a, b sandbox.Change) int { return strings.Compare(a.Path, b.Path) })
}

// merger walks three views side by side.
type merger struct {
	look      *lookup
	sel       selection
	resolve   Resolution
	plan      *Plan
	conflicts []sandbox.Conflict
	open      []sandbox.Conflict // conflicts without a winner
}

func (m *merger) walk(p string, b, o, t spot) error {
	if untouched(b, o, t) || m.sel.skips(p) {
		return nil
	}
	if !m.sel.covers(p) {
		if !m.sel.reachesBelow(p) {
			return nil
		}
		return m.above(p, b, o, t)
	}
	if !o.isDir() || !t.isDir() {
		return m.whole(p, b, o, t)
	}
	// A directory on both sides: merge its attributes and its content.
	take, err := m.attributes(p, b.entry, o.entry, t.entry)
	if err != nil {
		return err
	}
	if take {
		if err := m.takeOne(p, o.entry, t.entry); err != nil {
			return err
		}
	}
	return m.children(p, b, o, t)
}

// attributes merges the attributes of two directories.
func (m *merger) attributes(p string, b, o, t *Entry) (take bool, err error) {
	for _, pair := range [][2]*Entry{{b, t}, {o, t}} {
		if same, err := m.look.same(p, pair[0], pair[1]); err != nil || same {
			return false, err
		}
	}
	same, err := m.look.same(p, b, o)
	if err != nil || same {
		return same, err
	}
	return m.conflict(p, kindOfChange(b, o), kindOfChange(b, t)) == sandbox.PolicyTheirs, nil
}

func (m *merger) children(p string, b, o, t spot) error {
	for _, s := range []*spot{&b, &o, &t} {
		if !s.isDir() {
			*s = absent
		}
	}
	names, err := m.look.names(p, b, o, t)
	if err != nil {
		return err
	}
	for _, name := range names {
		q := join(p, name)
		var at [3]spot
		for i, s := range []spot{b, o, t} {
			if at[i], err = m.look.child(s, name, q); err != nil {
				return err
			}
		}
		if err := m.walk(q, at[0], at[1], at[2]); err != nil {
			return err
		}
	}
	return nil
}

// above merges a path that is not selected itself, but has something selected below it.
func (m *merger) above(p string, b, o, t spot) error {
	if o.isDir() || !t.isDir() {
		return m.children(p, b, o, t)
	}
	// What is taken needs this directory, which ours lacks.
	if o.entry != nil {
		if changed, err := m.differ(p, b, t); err != nil || !changed {
			return err
		}
		same, err := m.look.same(p, b.entry, o.entry)
		if err != nil {
			return err
		}
		if !same {
			if m.conflict(p, kindOfChange(b.entry, o.entry), sandbox.ChangeModified) != sandbox.PolicyTheirs {
				return nil
			}
		}
	}
	before := len(m.plan.dirs) + len(m.plan.files)
	if err := m.children(p, b, o, t); err != nil {
		return err
	}
	if len(m.plan.dirs)+len(m.plan.files) == before {
		return nil
	}
	return m.takeOne(p, o.entry, t.entry)
}

// whole merges a path that is not a directory on both sides, with everything below it.
func (m *merger) whole(p string, b, o, t spot) error {
	if changed, err := m.differ(p, b, t); err != nil || !changed {
		return err
	}
	changed, err := m.differ(p, b, o)
	if err != nil {
		return err
	}
	if !changed {
		return m.take(p, o, t)
	}
	if differ, err := m.differ(p, o, t); err != nil || !differ {
		return err
	}
	found, winner, err := m.clash(p, b, o, t)
	if err != nil {
		return err
	}
	// Without a conflict, one side has only removed things in a directory
	// that the other has removed or replaced as a whole.
	if found && winner == sandbox.PolicyTheirs || !found && o.isDir() {
		return m.take(p, o, t)
	}
	return nil
}

// clash records the conflicts between two sides that have both changed a path or something
// below it. It returns whether there are any, and who wins all of them. At most one of the
// sides has a directory at the path.
func (m *merger) clash(p string, b, o, t spot) (found bool, winner sandbox.MergePolicy, err error) {
	if !b.isDir() || !o.isDir() && !t.isDir() {
		return true, m.conflict(p, kindOfChange(b.entry, o.entry), kindOfChange(b.entry, t.entry)), nil
	}
	side, other := o, t
	if t.isDir() {
		side, other = t, o
	}
	var first string
	c := comparison{look: m.look, sel: m.sel, visit: func(d difference) error {
		if d.Kind == sandbox.ChangeRemoved {
			return nil
		}
		against := sandbox.ChangeRemoved
		if d.a == nil || d.Path == p {
			against = kindOfChange(b.entry, other.entry)
		}
		kinds := [2]sandbox.ChangeKind{d.Kind, against}
		if t.isDir() {
			kinds = [2]sandbox.ChangeKind{against, d.Kind}
		}
		wins := m.conflict(d.Path, kinds[0], kinds[1])
		switch {
		case !found:
			found, winner, first = true, wins, d.Path
		case wins != winner && wins != sandbox.PolicyNone && winner != sandbox.PolicyNone:
			return sandbox.Errorf(sandbox.CodeInvalid, "%q is resolved as %s and %q as %s, but one side no longer has the directory %q, so it is kept or taken as a whole; resolve both the same way", first, winner, d.Path, wins, p)
		}
		return nil
	}}
	err = c.walk(p, b, side)
	return found, winner, err
}

// conflict records a conflict, and returns who wins it.
func (m *merger) conflict(p string, ours, theirs sandbox.ChangeKind) sandbox.MergePolicy {
	c := sandbox.Conflict{Path: p, Ours: ours, Theirs: theirs}
	if len(m.conflicts) < MaxConflicts {
		m.conflicts = append(m.conflicts, c)
	}
	wins := m.resolve.of(p)
	if wins == sandbox.PolicyNone && len(m.open) < MaxConflicts {
		m.open = append(m.open, c)
	}
	return wins
}

// kindOfChange returns the kind of the change from one entry to a different one.
func kindOfChange(a, b *Entry) sandbox.ChangeKind {
	switch {
	case a == nil:
		return sandbox.ChangeAdded
	case b == nil:
		return sandbox.ChangeRemoved
	}
	return sandbox.ChangeModified
}

// errFound ends a walk at the first difference.
var errFound = errors.New("found")

// differ reports whether two views differ at a path or below it.
func (m *merger) differ(p string, a, b spot) (bool, error) {
	c := comparison{look: m.look, sel: m.sel, visit: func(difference) error { return errFound }}
	err := c.walk(p, a, b)
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}

// take plans to make ours equal to theirs, at a path and below it.
func (m *merger) take(p string, o, t spot) error {
	c := comparison{look: m.look, sel: m.sel, visit: func(d difference) error {
		m.plan.add(d)
		return nil
	}}
	return c.walk(p, o, t)
}

// takeOne is take without anything below the path.
func (m *merger) takeOne(p string, o, t *Entry) error {
	ch, err := m.look.change(p, o, t)
	if err != nil || ch == nil {
		return err
	}
	m.plan.add(difference{Change: *ch, a: o, b: t})
	return nil
}

func (p *Plan) add(d difference) {
	p.Changes = append(p.Changes, d.Change)
	wasDir := d.a != nil && d.a.Kind == KindDirectory
	becomesDir := d.b != nil && d.b.Kind == KindDirectory
	if d.b == nil || d.a != nil && wasDir != becomesDir {
		p.removes = append(p.removes, d.Path)
	}
	switch {
	case becomesDir:
		p.dirs = append(p.dirs, write{d.Path, d.b})
	case d.b != nil:
		p.files = append(p.files, write{d.Path, d.b})
	}
}
