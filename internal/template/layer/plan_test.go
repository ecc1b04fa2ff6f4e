package layer

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sh/cove/internal/template/layer/apply"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// put makes a tree in a directory.
func (t tree) put(tb testing.TB, root string) {
	tb.Helper()
	check := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(t)) {
		f, name := t[p], filepath.Join(root, p)
		switch f.kind {
		case KindDirectory:
			if p != "/" {
				check(os.Mkdir(name, 0o700))
			}
		case KindSymlink:
			check(os.Symlink(f.content, name))
		case KindFIFO:
			check(syscall.Mkfifo(name, 0o600))
		default:
			check(os.WriteFile(name, []byte(f.content), 0o600))
		}
		check(os.Lchown(name, int(f.uid), int(f.gid)))
		if f.kind != KindSymlink {
			check(syscall.Chmod(name, f.mode))
		}
	}
}

// treeOf reads a tree from a directory.
func treeOf(tb testing.TB, root string) tree {
	tb.Helper()
	t := tree{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		f := file{kind: kindOf(info.Mode()), mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid}
		switch f.kind {
		case KindFile:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			f.content = string(b)
		case KindSymlink:
			if f.content, err = os.Readlink(name); err != nil {
				return err
			}
		}
		t[path.Clean("/"+strings.TrimPrefix(name, root))] = f
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// mine makes the test's user, who may be an ordinary one, the owner of a tree.
func (t tree) mine() tree {
	for p, f := range t {
		f.gid = uint32(os.Getgid())
		if os.Getuid() != 0 || p == "/" {
			f.uid = uint32(os.Getuid())
		}
		if f.kind == KindDirectory {
			f.mode |= 0o700
		}
		t[p] = f
	}
	return t
}

// carryOut applies a plan, with another stream of theirs, to a directory that holds ours,
// and returns the result.
func carryOut(t *testing.T, plan *Plan, ours tree, theirs []byte) tree {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	ours.put(t, dir)
	var stream bytes.Buffer
	if err := WritePlan(t.Context(), &stream, plan, bytes.NewReader(theirs)); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := apply.Apply(t.Context(), root, &stream); err != nil {
		t.Fatal(err)
	}
	return treeOf(t, dir)
}

// modelMerge merges models path by path. Conflicts are paths that both sides changed
// differently, and results in which something has no parent directory.
func modelMerge(b, o, t tree) (merged tree, conflict bool) {
	merged = tree{}
	all := maps.Clone(b)
	maps.Copy(all, o)
	maps.Copy(all, t)
	for p := range all {
		fb, inB := b[p]
		fo, inO := o[p]
		ft, inT := t[p]
		take, there := fo, inO
		switch {
		case inB == inT && fb == ft:
		case inB == inO && fb == fo:
			take, there = ft, inT
		case inO != inT || fo != ft:
			conflict = true
		}
		if there {
			merged[p] = take
		}
	}
	for p := range merged {
		if merged[path.Dir(p)].kind != KindDirectory {
			conflict = true
		}
	}
	return merged, conflict
}

func TestMergeRandom(t *testing.T) {
	seeds := 100
	if needs.Soak() {
		seeds = 400
	}
	conflicts, clean := 0, 0
	for seed := range uint64(seeds) {
		rng := newRand(seed)
		low := randomTree(rng).mine()
		grow := func(from tree) tree {
			to := maps.Clone(from)
			for range rng.IntN(5) {
				to.mutate(rng)
			}
			return to.mine()
		}
		b := grow(low)
		o, th := grow(b), grow(b)
		if seed%10 == 0 {
			o = maps.Clone(b)
		}
		vb, vo := view(t, rng, low, b), view(t, rng, low, o)
		first, second := layerTar(t, rng, low, th), layerTar(t, rng, low, th)
		l, err := Read(t.Context(), bytes.NewReader(first), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// An entry in the first stream but not in the second, such as a needless copy of
		// the template, is never needed.
		vt := View{Lower: treeLower(low), Layer: l}
		fail := func(format string, args ...any) {
			t.Helper()
			t.Logf("base:\n%s\nours:\n%s\ntheirs:\n%s", b, o, th)
			t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
		}
		plan, found, err := MakePlan(t.Context(), vb, vo, vt, Resolution{}, nil)
		if err != nil {
			fail("%v", err)
		}
		want, conflict := modelMerge(b, o, th)
		if conflict != (len(found) > 0) || conflict != (plan == nil) {
			fail("conflicts %v, want %v", found, conflict)
		}
		if !conflict {
			clean++
			got := carryOut(t, plan, o, second)
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				fail("(-want +got):\n%s", diff)
			}
			ignore := cmpopts.IgnoreFields(sandbox.Change{}, "Aspects", "OldSize", "NewSize", "OldMode", "NewMode")
			if diff := cmp.Diff(modelDiff(o, want), plan.Changes, ignore, cmpopts.EquateEmpty()); diff != "" {
				fail("changes (-want +got):\n%s", diff)
			}
			continue
		}
		conflicts++
		for policy, side := range map[sandbox.MergePolicy]tree{sandbox.PolicyOurs: o, sandbox.PolicyTheirs: th} {
			plan, again, err := MakePlan(t.Context(), vb, vo, vt, Resolution{Policy: policy}, nil)
			if err != nil || plan == nil {
				fail("%s: %v", policy, err)
			}
			got := carryOut(t, plan, o, first)
			for _, c := range append(found, again...) {
				if diff := cmp.Diff(side.sub(c.Path)[c.Path], got[c.Path], cmp.AllowUnexported(file{})); diff != "" {
					fail("%s at %s (-want +got):\n%s", policy, c.Path, diff)
				}
			}
		}
	}
	if conflicts < seeds/8 || clean < seeds/8 {
		t.Errorf("%d merges with conflicts, %d without: the trees are not what they should be", conflicts, clean)
	}
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name         string
		ours, theirs tree
		paths        []string
		changes      string // the plan's without a policy: kind and path
		conflicts    []sandbox.Conflict
		// ofOurs and ofTheirs are the changes with a policy.
		ofOurs, ofTheirs string
	}{
		{name: "nothing", ours: base, theirs: base},
		{name: "only ours", ours: with(tree{"/new": reg("n")}), theirs: base},
		{name: "only theirs", ours: base, theirs: with(tree{"/new": reg("n")}, "/usr/lib"), changes: "added /new, removed /usr/lib"},
		{name: "the winner's own name", ours: base, theirs: with(tree{"/etc/hosts": reg("winner"), "/new": reg("n")}), changes: "added /new"},
		{
			name: "the winner's own name, selected", paths: []string{"/etc/hosts"},
			ours: base, theirs: with(tree{"/etc/hosts": reg("winner")}), changes: "modified /etc/hosts",
		},
		{name: "both the same way", ours: with(tree{"/new": reg("n")}, "/usr/lib"), theirs: with(tree{"/new": reg("n")}, "/usr/lib")},
		{
			name: "both in one file", ours: with(tree{"/etc/motd": reg("o")}), theirs: with(tree{"/etc/motd": reg("t")}),
			conflicts: []sandbox.Conflict{{Path: "/etc/motd", Ours: "modified", Theirs: "modified"}},
			ofTheirs:  "modified /etc/motd",
		},
		{
			name: "changed in a directory that theirs removed", ours: with(tree{"/usr/lib/sub/f": reg("o")}), theirs: with(nil, "/usr/lib"),
			conflicts: []sandbox.Conflict{{Path: "/usr/lib/sub/f", Ours: "modified", Theirs: "removed"}},
			ofTheirs:  "removed /usr/lib",
		},
		{
			name: "added to a directory that ours replaced", ours: with(tree{"/usr/lib": reg("o")}, "/usr/lib"),
			theirs:    with(tree{"/usr/lib/new": reg("t"), "/new": reg("t")}),
			conflicts: []sandbox.Conflict{{Path: "/usr/lib/new", Ours: "modified", Theirs: "added"}},
			ofOurs:    "added /new",
			ofTheirs: "added /new, modified /usr/lib, added /usr/lib/a.so, added /usr/lib/new, " +
				"added /usr/lib/sub, added /usr/lib/sub/f",
		},
		{
			name: "removed from a directory that ours removed", ours: with(nil, "/usr/lib"), theirs: with(nil, "/usr/lib/sub/f"),
		},
		{
			name: "selected", paths: []string{"/usr/lib/new/deep/f", "/etc"},
			ours: with(nil, "/usr/lib"), theirs: with(tree{
				"/usr/lib/new": dir(0o755), "/usr/lib/new/x": reg("x"), "/usr/lib/new/deep": dir(0o755),
				"/usr/lib/new/deep/f": reg("f"), "/etc/motd": reg("m"), "/other": reg("o"),
			}),
			changes: "modified /etc/motd, added /usr/lib, added /usr/lib/new, added /usr/lib/new/deep, added /usr/lib/new/deep/f",
		},
		{
			name: "selected below a file", paths: []string{"/new/f"},
			ours: with(tree{"/new": reg("o")}), theirs: with(tree{"/new": dir(0o755), "/new/f": reg("f"), "/new/g": reg("g")}),
			conflicts: []sandbox.Conflict{{Path: "/new", Ours: "added", Theirs: "modified"}},
			ofTheirs:  "modified /new, added /new/f",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rng := newRand(3)
			b, o, th := View{Lower: treeLower(base)}, view(t, rng, base, tt.ours), view(t, rng, base, tt.theirs)
			want := map[sandbox.MergePolicy]string{sandbox.PolicyNone: tt.changes}
			if tt.conflicts != nil {
				want = map[sandbox.MergePolicy]string{sandbox.PolicyNone: "none", sandbox.PolicyOurs: tt.ofOurs, sandbox.PolicyTheirs: tt.ofTheirs}
			}
			for policy, changes := range want {
				plan, conflicts, err := MakePlan(t.Context(), b, o, th, Resolution{Policy: policy}, tt.paths)
				if err != nil {
					t.Fatal(err)
				}
				got := "none"
				if plan != nil {
					var list []string
					for _, ch := range plan.Changes {
						list = append(list, string(ch.Kind)+" "+ch.Path)
					}
					got = strings.Join(list, ", ")
				}
				if got != changes {
					t.Errorf("policy %q: %s\nwant %s", policy, got, changes)
				}
				if diff := cmp.Diff(tt.conflicts, conflicts, cmpopts.EquateEmpty()); diff != "" && policy == sandbox.PolicyNone {
					t.Errorf("conflicts (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestResolve checks policies for single paths.
func TestResolve(t *testing.T) {
	const ours, theirs = sandbox.PolicyOurs, sandbox.PolicyTheirs
	rng := newRand(3)
	o := view(t, rng, base, with(tree{"/etc/motd": reg("o"), "/new": reg("o"), "/usr/lib/a.so": reg("o"), "/usr/lib/sub/f": reg("o")}))
	th := view(t, rng, base, with(tree{"/etc/motd": reg("t"), "/new": reg("t"), "/other": reg("t")}, "/usr/lib"))
	const conflicts = "/etc/motd /new /usr/lib/a.so /usr/lib/sub/f"
	for _, tt := range []struct {
		name    string
		resolve Resolution
		changes string // the plan's
		open    string // conflicts that are left
		err     string
	}{
		{name: "nothing is said", open: conflicts},
		{name: "some", resolve: Resolution{Paths: map[string]sandbox.MergePolicy{"/new": theirs, "/usr": ours}}, open: "/etc/motd"},
		{
			name:    "each",
			resolve: Resolution{Paths: map[string]sandbox.MergePolicy{"/new": theirs, "/usr/lib/a.so": theirs, "/usr/lib/sub/f": theirs, "/etc/motd": ours}},
			changes: "modified /new, added /other, removed /usr/lib",
		},
		{
			name:    "besides a policy",
			resolve: Resolution{Policy: theirs, Paths: map[string]sandbox.MergePolicy{"/usr": ours, "/etc/motd": ours}},
			changes: "modified /new, added /other",
		},
		{
			name:    "the deepest counts",
			resolve: Resolution{Paths: map[string]sandbox.MergePolicy{"/": ours, "/etc": theirs, "/etc/motd": ours, "/new": theirs}},
			changes: "modified /new, added /other",
		},
		{
			name:    "no prefix of names",
			resolve: Resolution{Policy: ours, Paths: map[string]sandbox.MergePolicy{"/ne": theirs, "/etc/motd/deeper": theirs}},
			changes: "added /other",
		},
		{
			name:    "differently of what is one",
			resolve: Resolution{Policy: ours, Paths: map[string]sandbox.MergePolicy{"/usr/lib/sub": theirs}},
			err:     `no longer has the directory "/usr/lib"`,
		},
		{
			name:    "half of what is one",
			resolve: Resolution{Paths: map[string]sandbox.MergePolicy{"/usr/lib/sub": theirs, "/new": ours, "/etc": ours}},
			open:    "/usr/lib/a.so",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, found, err := MakePlan(t.Context(), View{Lower: treeLower(base)}, o, th, tt.resolve, nil)
			if tt.err != "" {
				if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, want one that says %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var changes, paths []string
			if plan != nil {
				for _, ch := range plan.Changes {
					changes = append(changes, string(ch.Kind)+" "+ch.Path)
				}
			}
			for _, c := range found {
				paths = append(paths, c.Path)
			}
			want := tt.open
			if want == "" {
				want = conflicts
			}
			if got := strings.Join(changes, ", "); got != tt.changes || (plan == nil) != (tt.open != "") {
				t.Errorf("plan %v: %s\nwant %s", plan != nil, got, tt.changes)
			}
			if got := strings.Join(paths, " "); got != want {
				t.Errorf("conflicts %s, want %s", got, want)
			}
		})
	}
}

// TestMergeHardLinks checks that hard links of the winner stay hard links, whichever of
// their names its second stream has first.
func TestMergeHardLinks(t *testing.T) {
	link := func(name, target string) entry { e := head(tar.TypeLink, name); e.Linkname = target; return e }
	file := func(name string) entry { e := head(tar.TypeReg, name); e.content = "shared"; return e }
	first := tarOf(t, rootEntry, file("./a"), link("./b", "./a"), link("./c", "./a"))
	second := tarOf(t, rootEntry, file("./c"), link("./b", "./c"), link("./a", "./c"))
	low := tree{"/": dir(0o755)}.mine()
	l, err := Read(t.Context(), bytes.NewReader(first), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare := View{Lower: treeLower(low)}
	plan, _, err := MakePlan(t.Context(), bare, bare, View{Lower: treeLower(low), Layer: l}, Resolution{}, []string{"/b", "/c"})
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := WritePlan(t.Context(), &stream, plan, bytes.NewReader(second)); err != nil {
		t.Fatal(err)
	}
	var names []string
	tr := tar.NewReader(&stream)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, string(h.Typeflag)+h.Name+">"+h.Linkname)
	}
	if diff := cmp.Diff([]string{"0./b>", "1./c>./b", "5./>"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMergeSparse merges a file with a hole, of which the stream has the pages only, and
// refuses a file that has changed since, whichever pages it has now.
func TestMergeSparse(t *testing.T) {
	const size = 1<<20 + 7
	low := tree{"/": dir(0o755)}.mine()
	planned := sparseTar(t, size, "data")
	l, err := Read(t.Context(), bytes.NewReader(planned), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare := View{Lower: treeLower(low)}
	plan, _, err := MakePlan(t.Context(), bare, bare, View{Lower: treeLower(low), Layer: l}, Resolution{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := WritePlan(t.Context(), &stream, plan, bytes.NewReader(planned)); err != nil || stream.Len() > 16<<10 {
		t.Errorf("the stream has %d bytes, %v", stream.Len(), err)
	}
	root := t.TempDir()
	low.put(t, root)
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := apply.Apply(t.Context(), dir, &stream); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "f"))
	if want := strings.Repeat("\x00", size-4) + "data"; err != nil || string(got) != want {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
	for name, data := range map[string]string{"other content": "date", "more pages": "x" + strings.Repeat("\x00", apply.PageSize) + "data", "no pages": "\x00\x00\x00\x00"} {
		if err := WritePlan(t.Context(), io.Discard, plan, bytes.NewReader(sparseTar(t, size, data))); err == nil || !strings.Contains(err.Error(), "has changed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWritePlanChecksContent checks that a second stream is refused if it differs from the
// planned one.
func TestWritePlanChecksContent(t *testing.T) {
	file := func(content string) entry { e := head(tar.TypeReg, "./f"); e.content = content; return e }
	low := tree{"/": dir(0o755)}
	l, err := Read(t.Context(), bytes.NewReader(tarOf(t, rootEntry, file("planned"))), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare := View{Lower: treeLower(low)}
	plan, _, err := MakePlan(t.Context(), bare, bare, View{Lower: treeLower(low), Layer: l}, Resolution{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Empty() {
		t.Error("the plan has nothing to write")
	}
	for name, stream := range map[string][]byte{
		"other content": tarOf(t, rootEntry, file("PLANNED")),
		"other size":    tarOf(t, rootEntry, file("planned!")),
		"gone":          tarOf(t, rootEntry),
		"cut":           tarOf(t, rootEntry, file("planned"))[:1028],
	} {
		if err := WritePlan(t.Context(), io.Discard, plan, bytes.NewReader(stream)); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	if err := WritePlan(t.Context(), io.Discard, plan, nil); err == nil {
		t.Error("a nil stream was accepted")
	}
}
