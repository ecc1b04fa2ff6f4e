package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// file and tree are the model that the package is tested against: a whole file
// system in a map from absolute paths.
type file struct {
	kind     Kind
	mode     uint32
	uid, gid uint32
	content  string // or a link's target
}

type tree map[string]file

func dir(mode uint32) file       { return file{kind: KindDirectory, mode: mode} }
func reg(content string) file    { return file{kind: KindFile, mode: 0o644, content: content} }
func symlink(target string) file { return file{kind: KindSymlink, mode: 0o777, content: target} }

func (t tree) children(p string) []string {
	var names []string
	for q := range t {
		if q != "/" && path.Dir(q) == p {
			names = append(names, path.Base(q))
		}
	}
	slices.Sort(names)
	return names
}

// removeAll removes a path with all below it.
func (t tree) removeAll(p string) {
	maps.DeleteFunc(t, func(q string, _ file) bool { return q == p || below(q, p) })
}

// sub returns a path with all below it.
func (t tree) sub(p string) tree {
	out := tree{}
	for q, f := range t {
		if q == p || below(q, p) {
			out[q] = f
		}
	}
	return out
}

func (t tree) String() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(t)) {
		f := t[p]
		fmt.Fprintf(&b, "%s %d %04o %d:%d %q\n", p, f.kind, f.mode, f.uid, f.gid, f.content)
	}
	return b.String()
}

// treeLower is a template in memory.
type treeLower tree

func (l treeLower) Stat(p string) (*Entry, error) {
	f, ok := l[p]
	if !ok {
		return nil, fs.ErrNotExist
	}
	e := &Entry{Kind: f.kind, Mode: f.mode, UID: f.uid, GID: f.gid}
	switch f.kind {
	case KindFile:
		e.Size = int64(len(f.content))
	case KindSymlink:
		e.Target = f.content
	}
	return e, nil
}

func (l treeLower) Open(p string) (io.ReadCloser, error) {
	if l[p].kind != KindFile {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(l[p].content)), nil
}

func (l treeLower) List(p string) ([]string, error) {
	if l[p].kind != KindDirectory {
		return nil, fs.ErrNotExist
	}
	return tree(l).children(p), nil
}

// overlay writes layers as gVisor does: in any order, with some opaque directories,
// needless copies and needless whiteouts.
type overlay struct {
	rng *rand.Rand
	low tree
	tw  *tar.Writer
}

// layerTar returns a layer that shows want above low.
func layerTar(t testing.TB, rng *rand.Rand, low, want tree) []byte {
	t.Helper()
	var buf bytes.Buffer
	o := overlay{rng: rng, low: low, tw: tar.NewWriter(&buf)}
	if err := o.write("/", want, true); err != nil {
		t.Fatal(err)
	}
	if err := o.tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (o *overlay) chance(n int) bool { return o.rng.IntN(n) == 0 }

func (o *overlay) write(p string, want tree, through bool) error {
	f := want[p]
	h := &tar.Header{Name: "." + p, Mode: int64(f.mode), Uid: int(f.uid), Gid: int(f.gid), ModTime: time.Unix(1e9, 5)}
	switch f.kind {
	case KindFile:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.content))
	case KindSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.content
	case KindFIFO:
		h.Typeflag = tar.TypeFifo
	case KindDirectory:
		h.Typeflag = tar.TypeDir
		if p != "/" {
			h.Name += "/"
		}
		through = through && o.low[p].kind == KindDirectory
		if p != "/" && o.chance(3) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
			through = false
		}
	}
	if err := o.tw.WriteHeader(h); err != nil {
		return err
	}
	if f.kind == KindFile {
		_, err := io.WriteString(o.tw, f.content)
		return err
	}
	if f.kind != KindDirectory {
		return nil
	}
	return o.children(p, want, through)
}

func (o *overlay) children(p string, want tree, through bool) error {
	names := want.children(p)
	if through {
		names = append(names, o.low.children(p)...)
	}
	if o.chance(5) {
		names = append(names, "never")
	}
	slices.Sort(names)
	names = slices.Compact(names)
	o.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		q := join(p, name)
		if _, ok := want[q]; !ok {
			h := &tar.Header{Typeflag: tar.TypeChar, Name: "." + q}
			if err := o.tw.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		if through && maps.Equal(o.low.sub(q), want.sub(q)) && !o.chance(5) {
			continue
		}
		if err := o.write(q, want, through); err != nil {
			return err
		}
	}
	return nil
}

// view returns the view that shows want above low.
func view(t testing.TB, rng *rand.Rand, low, want tree) View {
	t.Helper()
	l, err := Read(t.Context(), bytes.NewReader(layerTar(t, rng, low, want)), ReadOptions{Keep: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	return View{Lower: treeLower(low), Layer: l}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 42)) }

// randomTree makes a small tree in which names repeat, so that trees clash.
func randomTree(rng *rand.Rand) tree {
	t := tree{"/": dir(0o755)}
	for range rng.IntN(12) {
		t.mutate(rng)
	}
	return t
}

// mutate changes something.
func (t tree) mutate(rng *rand.Rand) {
	p := "/"
	for range 1 + rng.IntN(3) {
		p = join(p, string(rune('a'+rng.IntN(3))))
	}
	switch rng.IntN(8) {
	case 0:
		t.removeAll(p)
		return
	case 1:
		if f, ok := t[p]; ok && f.kind != KindSymlink {
			f.mode ^= 0o100
			f.uid = uint32(rng.IntN(2))
			t[p] = f
		}
		return
	}
	for i := range p {
		if d := p[:i]; i > 0 && p[i] == '/' && t[d].kind != KindDirectory {
			t.removeAll(d)
			t[d] = dir(0o755)
		}
	}
	f := [...]file{reg("one\n"), reg("two\n"), reg(""), symlink("a"), symlink("/b"), {kind: KindFIFO, mode: 0o600}, dir(0o755), dir(0o700)}[rng.IntN(8)]
	if f.kind == KindDirectory && t[p].kind == KindDirectory {
		t[p] = f
		return
	}
	t.removeAll(p)
	t[p] = f
}

// modelDiff is a simple Compare for models.
func modelDiff(from, to tree) []sandbox.Change {
	var out []sandbox.Change
	for p, a := range from {
		b, ok := to[p]
		if parent, there := to[path.Dir(p)]; !ok && (p == "/" || there && parent.kind == KindDirectory) {
			out = append(out, sandbox.Change{Path: p, Kind: sandbox.ChangeRemoved, Type: a.kind.FileType()})
		}
		if ok && a != b {
			out = append(out, sandbox.Change{Path: p, Kind: sandbox.ChangeModified, Type: b.kind.FileType()})
		}
	}
	for p, b := range to {
		if _, ok := from[p]; !ok {
			out = append(out, sandbox.Change{Path: p, Kind: sandbox.ChangeAdded, Type: b.kind.FileType()})
		}
	}
	slices.SortFunc(out, func(a, b sandbox.Change) int { return strings.Compare(a.Path, b.Path) })
	return out
}
