package layer

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func mustCompare(t testing.TB, from, to View, opts CompareOptions) *sandbox.Diff {
	t.Helper()
	d, err := Compare(t.Context(), from, to, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// base is the template of the table tests.
var base = tree{
	"/":               dir(0o755),
	"/etc":            dir(0o755),
	"/etc/hosts":      reg("127.0.0.1 localhost\n"),
	"/etc/motd":       reg("welcome\nto\nthe\nbox\n"),
	"/etc/link":       symlink("hosts"),
	"/usr":            dir(0o755),
	"/usr/lib":        dir(0o755),
	"/usr/lib/a.so":   reg("\x7fELF\x00"),
	"/usr/lib/sub":    dir(0o755),
	"/usr/lib/sub/f":  reg("f"),
	"/usr/lib-extra":  reg("x"),
	"/tmp":            dir(0o777),
	"/run":            dir(0o755),
	"/run/cove":       dir(0o755),
	"/run/cove/agent": reg("agent"),
}

// own is the files that Cove itself writes in a sandbox.
var own = tree{
	"/etc/hosts": reg("127.0.1.1 box\n"), "/etc/machine-id": reg("id"), "/run/cove/fork.json": reg("{}"),
}

func with(changes tree, removed ...string) tree {
	t := tree{}
	for p, f := range base {
		t[p] = f
	}
	for _, p := range removed {
		t.removeAll(p)
	}
	for p, f := range changes {
		t[p] = f
	}
	return t
}

func TestCompare(t *testing.T) {
	setuid := base["/usr/lib/sub/f"]
	setuid.mode = 0o4755
	setuid.uid = 7
	tests := []struct {
		name     string
		from, to tree
		opts     CompareOptions
		want     []sandbox.Change
	}{
		{name: "equal", from: base, to: base},
		{name: "a sandbox's own", from: base, to: with(own)},
		{name: "a sandbox's own, selected with others", from: base, to: with(own), opts: CompareOptions{Paths: []string{"/etc", "/run/cove"}}},
		{
			name: "a sandbox's own, selected", from: base, to: with(own),
			opts: CompareOptions{Paths: []string{"/etc/machine-id", "/run/cove"}},
			want: []sandbox.Change{{Path: "/etc/machine-id", Kind: "added", Type: "file", NewSize: 2, NewMode: "0644"}},
		},
		{
			name: "content", from: base, to: with(tree{"/etc/motd": reg("hello\n")}),
			want: []sandbox.Change{{
				Path: "/etc/motd", Kind: "modified", Type: "file", Aspects: []sandbox.Aspect{"content"},
				OldSize: 19, NewSize: 6, OldMode: "0644", NewMode: "0644",
			}},
		},
		{
			name: "mode and owner", from: base, to: with(tree{"/usr/lib/sub/f": setuid}),
			want: []sandbox.Change{{
				Path: "/usr/lib/sub/f", Kind: "modified", Type: "file", Aspects: []sandbox.Aspect{"mode", "owner"},
				OldSize: 1, NewSize: 1, OldMode: "0644", NewMode: "4755",
			}},
		},
		{
			name: "target", from: base, to: with(tree{"/etc/link": symlink("motd")}),
			want: []sandbox.Change{{
				Path: "/etc/link", Kind: "modified", Type: "symlink", Aspects: []sandbox.Aspect{"target"}, OldMode: "0777", NewMode: "0777",
			}},
		},
		{
			name: "directory becomes file", from: base, to: with(tree{"/usr/lib": reg("now")}, "/usr/lib"),
			want: []sandbox.Change{{
				Path: "/usr/lib", Kind: "modified", Type: "file", Aspects: []sandbox.Aspect{"type"}, NewSize: 3, OldMode: "0755", NewMode: "0644",
			}},
		},
		{
			name: "file becomes directory", from: base, to: with(tree{"/etc/motd": dir(0o755), "/etc/motd/x": reg("")}),
			want: []sandbox.Change{
				{Path: "/etc/motd", Kind: "modified", Type: "directory", Aspects: []sandbox.Aspect{"type"}, OldSize: 19, OldMode: "0644", NewMode: "0755"},
				{Path: "/etc/motd/x", Kind: "added", Type: "file", NewMode: "0644"},
			},
		},
		{
			name: "a removed directory stands for all in it", from: base, to: with(nil, "/usr/lib"),
			want: []sandbox.Change{{Path: "/usr/lib", Kind: "removed", Type: "directory", OldMode: "0755"}},
		},
		{
			name: "a directory that comes back is listed whole", from: with(nil, "/usr/lib"), to: base,
			want: []sandbox.Change{
				{Path: "/usr/lib", Kind: "added", Type: "directory", NewMode: "0755"},
				{Path: "/usr/lib/a.so", Kind: "added", Type: "file", NewSize: 5, NewMode: "0644"},
				{Path: "/usr/lib/sub", Kind: "added", Type: "directory", NewMode: "0755"},
				{Path: "/usr/lib/sub/f", Kind: "added", Type: "file", NewSize: 1, NewMode: "0644"},
			},
		},
		{
			name: "an emptied directory", from: base, to: with(nil, "/usr/lib/a.so", "/usr/lib/sub"),
			want: []sandbox.Change{
				{Path: "/usr/lib/a.so", Kind: "removed", Type: "file", OldSize: 5, OldMode: "0644"},
				{Path: "/usr/lib/sub", Kind: "removed", Type: "directory", OldMode: "0755"},
			},
		},
		{
			name: "sorted by path, limited, all counted", opts: CompareOptions{Limit: 2},
			from: base, to: with(tree{"/usr/lib/z": reg("z"), "/usr/lib-extra": reg("y"), "/etc/new": reg("n")}),
			want: []sandbox.Change{
				{Path: "/etc/new", Kind: "added", Type: "file", NewSize: 1, NewMode: "0644"},
				{
					Path: "/usr/lib-extra", Kind: "modified", Type: "file", Aspects: []sandbox.Aspect{"content"},
					OldSize: 1, NewSize: 1, OldMode: "0644", NewMode: "0644",
				},
			},
		},
		{
			name: "what is Cove's own or memory", from: base,
			to: with(tree{"/tmp/x": reg("x"), "/run/cove/agent": reg("evil"), "/.cove-merge-abc": dir(0o700), "/proc": dir(0o555)}),
		},
		{
			name: "paths", opts: CompareOptions{Paths: []string{"/usr/lib/sub/", "/etc/motd"}},
			from: base, to: with(tree{"/usr/other": reg("o"), "/etc/motd": reg("m")}, "/usr/lib"),
			want: []sandbox.Change{
				{
					Path: "/etc/motd", Kind: "modified", Type: "file", Aspects: []sandbox.Aspect{"content"},
					OldSize: 19, NewSize: 1, OldMode: "0644", NewMode: "0644",
				},
				{Path: "/usr/lib/sub", Kind: "removed", Type: "directory", OldMode: "0755"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				rng := newRand(seed)
				d := mustCompare(t, view(t, rng, base, tt.from), view(t, rng, base, tt.to), tt.opts)
				if diff := cmp.Diff(tt.want, d.Changes, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
				}
				if n := d.Added + d.Removed + d.Modified; d.Truncated != (n > len(d.Changes)) || n < len(d.Changes) {
					t.Errorf("counts: %+v", d)
				}
			}
		})
	}
}

func TestCompareCounts(t *testing.T) {
	to := with(tree{"/n1": reg(""), "/n2": reg(""), "/etc/motd": reg("m")}, "/usr/lib")
	d := mustCompare(t, View{Lower: treeLower(base)}, view(t, newRand(1), base, to), CompareOptions{Limit: 1})
	if d.Added != 2 || d.Removed != 1 || d.Modified != 1 || !d.Truncated || len(d.Changes) != 1 {
		t.Errorf("got %+v", d)
	}
}

func TestNamed(t *testing.T) {
	for p, want := range map[string]bool{
		"/etc/hosts": true, "/etc/machine-id": true, "/var/lib/dbus/machine-id": true, "/etc/ssh/ssh_host_rsa_key": true,
		"/etc/ssh/ssh_host_ed25519_key.pub": true, "/etc/ssh/ssh_host_rsa_key-cert.pub": true,
		"/etc/ssh/sshd_config": false, "/etc/ssh/ssh_host_x/y_key": false, "/etc/hostname": false, "/srv/etc/hosts": false,
	} {
		if got := sandboxOwned(p); got != want {
			t.Errorf("%s: got %v", p, got)
		}
	}
}

func TestPatches(t *testing.T) {
	to := with(tree{"/etc/motd": reg("welcome\nto\na\nbox\n"), "/new": reg("line\n"), "/bin": reg("\x00"), "/usr/lib/a.so": reg("text")}, "/etc/hosts")
	// A sandbox's own files must be selected individually.
	opts := CompareOptions{Patch: true, Paths: []string{"/etc", "/etc/hosts", "/usr", "/new", "/bin"}}
	d := mustCompare(t, View{Lower: treeLower(base)}, view(t, newRand(1), base, to), opts)
	got := map[string]string{}
	for _, ch := range d.Changes {
		got[ch.Path] = ch.Patch
	}
	want := map[string]string{
		"/bin":          "",
		"/usr/lib/a.so": "",
		"/etc/hosts":    "--- a/etc/hosts\n+++ /dev/null\n@@ -1 +0,0 @@\n-127.0.0.1 localhost\n",
		"/etc/motd":     "--- a/etc/motd\n+++ b/etc/motd\n@@ -1,4 +1,4 @@\n welcome\n to\n-the\n+a\n box\n",
		"/new":          "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+line\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPatchesAreBounded checks that patches of many files, and of files made to be slow to
// compare, stay bounded. Comparing takes seconds under the race detector: only "make soak" has more
// such files than one.
func TestPatchesAreBounded(t *testing.T) {
	from, to := with(nil), with(nil)
	slow := 1
	if needs.Soak() {
		slow = 3
	}
	for i := range slow {
		from[fmt.Sprintf("/f%d", i)] = reg(strings.Repeat("a\nb\n", sandbox.MaxPatchFileBytes/4))
		to[fmt.Sprintf("/f%d", i)] = reg(strings.Repeat("b\nc\n", sandbox.MaxPatchFileBytes/4))
	}
	from["/large"], to["/large"] = reg("x"), reg(strings.Repeat("y", sandbox.MaxPatchFileBytes+1))
	d := mustCompare(t, view(t, newRand(1), base, from), view(t, newRand(2), base, to), CompareOptions{Patch: true})
	total := 0
	for _, ch := range d.Changes {
		total += len(ch.Patch)
		if ch.Path == "/large" && ch.Patch != "" {
			t.Error("a file over the limit has a patch")
		}
	}
	if total == 0 || total > sandbox.MaxPatchBytes {
		t.Errorf("patches have %d bytes", total)
	}
}

// TestCompareRandom checks that random trees above a random template differ as their models
// do.
func TestCompareRandom(t *testing.T) {
	for seed := range uint64(500) {
		rng := newRand(seed)
		low := randomTree(rng)
		from := tree{}
		for p, f := range low {
			from[p] = f
		}
		for range rng.IntN(6) {
			from.mutate(rng)
		}
		to := tree{}
		for p, f := range from {
			to[p] = f
		}
		for range rng.IntN(6) {
			to.mutate(rng)
		}
		a, b := view(t, rng, low, from), view(t, rng, low, to)
		got := mustCompare(t, a, b, CompareOptions{}).Changes
		ignore := cmpopts.IgnoreFields(sandbox.Change{}, "Aspects", "OldSize", "NewSize", "OldMode", "NewMode")
		if diff := cmp.Diff(modelDiff(from, to), got, cmpopts.EquateEmpty(), ignore); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s\ntemplate:\n%s\nfrom:\n%s\nto:\n%s", seed, diff, low, from, to)
		}
		again := view(t, rng, low, to)
		if d := mustCompare(t, b, again, CompareOptions{}); len(d.Changes) != 0 {
			t.Fatalf("seed %d: the same file system in another layer differs: %+v", seed, d.Changes)
		}
	}
}

func TestDir(t *testing.T) {
	root, extra := t.TempDir(), t.TempDir()
	write := func(p, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(root+"/etc/hosts", "root")
	write(root+"/usr/lib/covered", "root")
	write(root+"/usr/hidden", "root")
	write(extra+"/lib/lib.so", "extra")
	write(extra+"/hidden", "secret")
	write(extra+"/mask", "")
	if err := os.Symlink("/etc/shadow", root+"/escape"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", root+"/up"); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(root, []Bind{{Source: extra, Target: "/usr"}, {Source: extra + "/mask", Target: "/usr/hidden"}},
		func(uint32, uint32) (uint32, uint32) { return 3, 4 })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for p, want := range map[string]string{
		"/etc/hosts": "root", "/usr/lib/lib.so": "extra", "/usr/hidden": "",
	} {
		e, err := d.Stat(p)
		if err != nil || e.Kind != KindFile || e.Size != int64(len(want)) || e.UID != 3 || e.GID != 4 {
			t.Errorf("%s: %+v, %v", p, e, err)
		}
		f, err := d.Open(p)
		if err != nil {
			t.Errorf("open %s: %v", p, err)
			continue
		}
		if b, err := io.ReadAll(f); string(b) != want || err != nil {
			t.Errorf("%s holds %q, %v; want %q", p, b, err, want)
		}
		_ = f.Close()
	}
	for _, p := range []string{"/usr/lib/covered", "/usr/hidden/x", "/etc/hosts/x", "/nothing", "/up/passwd"} {
		if e, err := d.Stat(p); err == nil {
			t.Errorf("%s: %+v; it is not there", p, e)
		}
	}
	if e, err := d.Stat("/escape"); err != nil || e.Kind != KindSymlink || e.Target != "/etc/shadow" {
		t.Errorf("a link: %+v, %v", e, err)
	}
	if f, err := d.Open("/escape"); err == nil {
		_ = f.Close()
		t.Error("a link out of the root was followed")
	}
	if e, err := d.Stat("/"); err != nil || e.Kind != KindDirectory {
		t.Errorf("the root: %+v, %v", e, err)
	}
	names, err := d.List("/usr")
	if diff := cmp.Diff([]string{"hidden", "lib", "mask"}, names); diff != "" || err != nil {
		t.Errorf("list: %v\n%s", err, diff)
	}
}

// BenchmarkCompare compares a thousand changed files, whose cost must not depend on the
// template's size.
func BenchmarkCompare(b *testing.B) {
	root := b.TempDir()
	want := tree{"/": dir(0o755)}
	for i := range 100 {
		sub := fmt.Sprintf("/d%02d", i)
		if err := os.Mkdir(root+sub, 0o755); err != nil {
			b.Fatal(err)
		}
		want[sub] = dir(0o755)
		for j := range 1000 {
			name := fmt.Sprintf("%s/f%03d", sub, j)
			if err := os.WriteFile(root+name, []byte("template"), 0o644); err != nil {
				b.Fatal(err)
			}
			if j < 10 {
				want[name] = reg("changed!")
			}
		}
	}
	lower, err := OpenDir(root, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer lower.Close()
	var buf bytes.Buffer
	writeAll(b, &buf, want)
	for b.Loop() {
		l, err := Read(b.Context(), bytes.NewReader(buf.Bytes()), ReadOptions{})
		if err != nil {
			b.Fatal(err)
		}
		d := mustCompare(b, View{Lower: lower}, View{Lower: lower, Layer: l}, CompareOptions{})
		if d.Modified < 1000 {
			b.Fatalf("%+v", d)
		}
	}
}
