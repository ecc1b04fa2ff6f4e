package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/sandbox"
)

func opener(data []byte) openLayer {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256-%x", sha256.Sum256(data)) }

// addLayers stores layers.
func addLayers(t testing.TB, p *Provider, layers ...[]byte) (digests []string) {
	t.Helper()
	for i, data := range layers {
		info, err := p.addLayer(t.Context(), digestOf(data), "", opener(data))
		if err != nil {
			t.Fatalf("layer %d: %v", i, err)
		}
		digests = append(digests, info.Digest)
	}
	return digests
}

// composed composes into a new directory and returns it with its digest.
func composed(t testing.TB, p *Provider, b base, layers ...string) (string, string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = removeTree(dir) })
	tr, err := newTree(dir, p.own)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	if err := p.compose(t.Context(), tr, b, layers, nil); err != nil {
		return dir, "", err
	}
	digest, err := tr.finish()
	return dir, digest, err
}

// contents returns names with their kinds; files with their content.
func contents(t testing.TB, top string) map[string]string {
	t.Helper()
	out := listTree(t, top)
	for name, kind := range out {
		if kind == "f" {
			data, err := os.ReadFile(filepath.Join(top, name))
			if err != nil {
				t.Fatal(err)
			}
			out[name] = "= " + string(data)
		}
	}
	return out
}

func opaque(dir string) tar.Header           { return file(dir+"/.wh..wh..opq", "") }
func gone(dir, name string) tar.Header       { return file(dir+"/.wh."+name, "") }
func device(name string) tar.Header          { return tar.Header{Typeflag: tar.TypeChar, Name: name} }
func owned(h tar.Header, uid int) tar.Header { h.Uid, h.Gid = uid, uid; return h }
func mode(h tar.Header, m int64) tar.Header  { h.Mode = m; return h }

func TestCompose(t *testing.T) {
	p := newProvider(t, "")
	deepest := strings.Repeat("d/", maxPathDepth-2) + "f"
	tests := map[string]struct {
		layers [][]tar.Header
		want   map[string]string
	}{
		"nothing": {want: map[string]string{}},
		"files of both": {
			[][]tar.Header{{dir("a"), file("a/x", "1")}, {file("a/y", "2")}},
			map[string]string{"a": "d", "a/x": "= 1", "a/y": "= 2"}},
		"replaced": {
			[][]tar.Header{{file("f", "1"), link("l", "f"), file("g", "1")}, {file("f", "2"), file("l", "2"), link("g", "f")}},
			map[string]string{"f": "= 2", "l": "= 2", "g": "-> f"}},
		"duplicates in one layer": {
			[][]tar.Header{{file("f", "1"), file("f", "2"), dir("d"), file("d/x", ""), file("d", "3")}},
			map[string]string{"f": "= 2", "d": "= 3"}},
		"file for a directory, and back": {
			[][]tar.Header{{dir("d"), file("d/x", "1"), file("f", "1")}, {file("d", "2"), dir("f"), file("f/y", "2")}},
			map[string]string{"d": "= 2", "f": "d", "f/y": "= 2"}},
		"whiteouts": {
			[][]tar.Header{{file("a/x", "1"), file("a/y", "1"), file("b/z", "1"), dir("c")}, {gone("a", "x"), gone(".", "b"), gone("c", "nothing"), gone("nowhere", "x")}},
			map[string]string{"a": "d", "a/y": "= 1", "c": "d"}},
		"whiteouts of an overlay": {
			[][]tar.Header{{file("a/x", "1"), file("a/y", "1"), file("o/x", "1")}, {
				device("a/x"),
				{Typeflag: tar.TypeDir, Name: "o", PAXRecords: map[string]string{layer.OverlayOpaque: "y"}},
			}},
			map[string]string{"a": "d", "a/y": "= 1", "o": "d"}},
		"whiteout does not reach its own layer": {
			[][]tar.Header{{file("a/x", "1"), file("a/y", "1")}, {file("a/x", "2"), gone("a", "x"), opaque("a")}},
			map[string]string{"a": "d", "a/x": "= 2"}},
		"opaque after the content": {
			[][]tar.Header{{file("a/b/x", "1"), file("a/y", "1")}, {dir("a"), file("a/z", "2"), opaque("a")}},
			map[string]string{"a": "d", "a/z": "= 2"}},
		"opaque top": {
			[][]tar.Header{{file("x", "1")}, {file(".wh..wh..opq", ""), file("y", "2")}},
			map[string]string{"y": "= 2"}},
		"records of aufs": {
			[][]tar.Header{{file("x", "1")}, {file(".wh..wh.aufs", ""), dir(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x"), dir("d/.wh..wh.orph")}},
			map[string]string{"x": "= 1"}},
		"parents that are links": {
			[][]tar.Header{{dir("usr/bin"), link("bin", "usr/bin"), link("abs", "/usr"), link("up", "../../..")}, {file("bin/sh", "2"), file("abs/lib/c", "2"), file("up/top", "2"), gone("bin", "sh")}},
			map[string]string{"usr": "d", "usr/bin": "d", "usr/bin/sh": "= 2", "bin": "-> usr/bin", "abs": "-> /usr", "usr/lib": "d", "usr/lib/c": "= 2", "up": "-> ../../..", "top": "= 2"}},
		"directory replaces a link": {
			[][]tar.Header{{dir("usr/bin"), file("usr/bin/x", "1"), link("bin", "usr/bin")}, {dir("bin"), file("bin/sh", "2")}},
			map[string]string{"usr": "d", "usr/bin": "d", "usr/bin/x": "= 1", "bin": "d", "bin/sh": "= 2"}},
		"whiteout of a link": {
			[][]tar.Header{{dir("d"), file("d/x", "1"), link("l", "d")}, {gone(".", "l")}},
			map[string]string{"d": "d", "d/x": "= 1"}},
		"opaque through a link": {
			[][]tar.Header{{dir("d"), file("d/x", "1"), link("l", "/d")}, {opaque("l")}},
			map[string]string{"d": "d", "l": "-> /d"}},
		"hard links": {
			[][]tar.Header{{file("a", "1"), hard("b", "a"), hard("c", "/b")}, {hard("d/e", "a"), file("a", "2")}},
			map[string]string{"a": "= 2", "b": "= 1", "c": "= 1", "d": "d", "d/e": "= 1"}},
		"hard link to a link": {
			[][]tar.Header{{link("l", "/nowhere"), hard("m", "l")}},
			map[string]string{"l": "-> /nowhere", "m": "-> /nowhere"}},
		"hard link through a link": {
			[][]tar.Header{{file("d/x", "1"), link("l", "d"), hard("m", "l/x")}},
			map[string]string{"d": "d", "d/x": "= 1", "l": "-> d", "m": "= 1"}},
		"devices, pipes and global headers": {
			[][]tar.Header{{{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 8}, {Typeflag: tar.TypeFifo, Name: "pipe"}, {Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3},
				{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, file("f", "1")}},
			map[string]string{"f": "= 1"}},
		"names that are bytes": {
			[][]tar.Header{{{Typeflag: tar.TypeReg, Name: "b\xff\xfe", Uname: "1", Format: tar.FormatGNU}, file(strings.Repeat("n", 255), "2"), file("new\nline", "3"), file(`back\slash`, "4"), file("-rf", "5")}},
			map[string]string{"b\xff\xfe": "= 1", strings.Repeat("n", 255): "= 2", "new\nline": "= 3", `back\slash`: "= 4", "-rf": "= 5"}},
		"names that are ours": {
			[][]tar.Header{{file("index", "1"), file("layer.json", "2"), file("f/0/0", "3")}},
			map[string]string{"index": "= 1", "layer.json": "= 2", "f": "d", "f/0": "d", "f/0/0": "= 3"}},
		"as deep as may be": {[][]tar.Header{{file(deepest, "1")}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, h := range tt.layers {
				layers = append(layers, archive(t, h...))
			}
			digests := addLayers(t, p, layers...)
			top, digest, err := composed(t, p, base{}, digests...)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want != nil {
				tt.want["."] = "d"
				if d := cmp.Diff(tt.want, contents(t, top)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
			// A base instead of a first layer gives the same files.
			if len(digests) > 1 {
				lower, low, err := composed(t, p, base{}, digests[0])
				if err != nil {
					t.Fatal(err)
				}
				again, _, err := composed(t, p, base{low, lower}, digests[1:]...)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(contents(t, top), contents(t, again)); d != "" {
					t.Errorf("on a base (-layers +base):\n%s", d)
				}
			}
			if _, same, err := composed(t, p, base{}, digests...); err != nil || same != digest {
				t.Errorf("digest %s, then %s, %v", digest, same, err)
			}
		})
	}
}

// TestComposeMetadata checks that owners, modes and times are kept, in a layer, over
// another, and on a base.
func TestComposeMetadata(t *testing.T) {
	when := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	data := archive(t,
		mode(dir("closed"), 0o500), file("closed/x", "1"),
		tar.Header{Typeflag: tar.TypeReg, Name: "su", Uname: "elf", Mode: 0o6755, ModTime: when},
		owned(mode(file("theirs", "1"), 0o4640), 1000), owned(mode(dir("home"), 0o700), 1000), owned(link("l", "x"), 1000),
		mode(file("private", "1"), 0o100), tar.Header{Typeflag: tar.TypeReg, Name: "early", ModTime: time.Unix(-1<<40, 0)}, tar.Header{Typeflag: tar.TypeReg, Name: "late", ModTime: time.Unix(1<<40, 0)},
		tar.Header{Typeflag: tar.TypeReg, Name: "xattr", Mode: 0o755, Uname: "1", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\xff", "SCHILY.xattr.user.x": "y"}},
	)
	for _, own := range []bool{true, false} {
		if own && os.Geteuid() != 0 {
			continue
		}
		t.Run(fmt.Sprintf("own=%v", own), func(t *testing.T) {
			p := newProvider(t, "")
			p.own, p.layers.own = own, own
			d := addLayers(t, p, data)
			first, low, err := composed(t, p, base{}, d...)
			if err != nil {
				t.Fatal(err)
			}
			second, _, err := composed(t, p, base{low, first}, addLayers(t, p, archive(t, file("more", "")))...)
			if err != nil {
				t.Fatal(err)
			}
			theirs, home, private := fs.FileMode(0o640)|fs.ModeSetuid, fs.FileMode(0o700), fs.FileMode(0o100)
			if !own { // everybody is root's guest, nobody becomes root by it, and root reads all
				theirs, home, private = 0o666, 0o777, 0o500
			}
			for _, top := range []string{first, second} {
				for name, want := range map[string]fs.FileMode{
					"su": 0o755 | fs.ModeSetuid | fs.ModeSetgid, "theirs": theirs, "home": home | fs.ModeDir, "closed": 0o500 | fs.ModeDir, "private": private,
				} {
					info, err := os.Lstat(filepath.Join(top, name))
					if err != nil || info.Mode() != want {
						t.Errorf("%s is %v, want %v; %v", name, info.Mode(), want, err)
					}
				}
				for name, want := range map[string]int64{"su": when.Unix(), "early": 0, "late": 1<<32 - 1} {
					if info, err := os.Stat(filepath.Join(top, name)); err != nil || info.ModTime().Unix() != want {
						t.Errorf("%s is of %v, want %d; %v", name, info.ModTime(), want, err)
					}
				}
				for name, want := range map[string]uint32{"su": 0, "theirs": 1000, "home": 1000, "l": 1000} {
					var st unix.Stat_t
					if err := unix.Lstat(filepath.Join(top, name), &st); err != nil || own && (st.Uid != want || st.Gid != want) {
						t.Errorf("%s belongs to %d:%d, want %d; %v", name, st.Uid, st.Gid, want, err)
					}
				}
				if n, err := unix.Llistxattr(filepath.Join(top, "xattr"), make([]byte, 4096)); err != nil || n != 0 {
					t.Errorf("%d bytes of extended attributes, %v", n, err)
				}
			}
		})
	}
}

// TestShared checks that all roots made from a layer share its files' content, and that a
// change in one root does not show in the others.
func TestShared(t *testing.T) {
	p := newProvider(t, "")
	d := addLayers(t, p, archive(t, file("f", "1"), hard("g", "f"), file("etc/passwd", "root:x:0:0::/:\n")), archive(t, mode(file("f", "1"), 0o600)))
	one, low, err := composed(t, p, base{}, d[0])
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := composed(t, p, base{}, d...)
	if err != nil {
		t.Fatal(err)
	}
	three, _, err := composed(t, p, base{low, one}, d[1])
	if err != nil {
		t.Fatal(err)
	}
	ino := func(parts ...string) uint64 {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(parts...), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if ino(one, "f") != ino(one, "g") || ino(one, "g") != ino(two, "g") || ino(two, "g") != ino(three, "g") || ino(one, "etc/passwd") != ino(two, "etc/passwd") {
		t.Error("content is not shared")
	}
	if ino(two, "f") == ino(one, "f") || ino(two, "f") != ino(three, "f") {
		t.Error("a file with another mode in an upper layer is not one of its own")
	}
	if info, _ := os.Stat(filepath.Join(one, "f")); info.Mode() != 0o644 {
		t.Errorf("the lower file became %v", info.Mode())
	}

	// Changing a tree after composing leaves the stored file unchanged.
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tr, err := newTree(dir, p.own)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	if err := p.compose(t.Context(), tr, base{}, d[:1], nil); err != nil {
		t.Fatal(err)
	}
	if err := furnish(tr, "/bin/sh"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "etc/passwd")); !strings.Contains(string(b), "user:x:1000") {
		t.Errorf("passwd of the furnished tree: %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(one, "etc/passwd")); string(b) != "root:x:0:0::/:\n" {
		t.Errorf("passwd of the other: %q", b)
	}
}

// TestCopiedWhenNotLinked checks that content which cannot be linked is copied with all its
// attributes.
func TestCopiedWhenNotLinked(t *testing.T) {
	p := newProvider(t, "")
	d := addLayers(t, p, archive(t, owned(mode(file("f", "content"), 0o640), 5)))
	for _, why := range []error{unix.EMLINK, unix.EXDEV, unix.EPERM} {
		top := newNode()
		if err := p.layers.merge(t.Context(), top, d[0], newBudget(1<<20, 100)); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		tr, err := newTree(dir, p.own)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		pl := &planter{ctx: t.Context(), tree: tr, names: 1000, dirs: map[string]int{}, link: func(int, string, int, string, int) error { return why }}
		if err := pl.fill(fd, ".", top); err != nil {
			t.Errorf("%v: %v", why, err)
		}
		unix.Close(fd)
		pl.close()
		tr.close()
		var a, b unix.Stat_t
		if err := errors.Join(unix.Stat(filepath.Join(dir, "f"), &a), unix.Stat(filepath.Join(p.layers.layerDir(d[0]), layerFilesDir, "0/0"), &b)); err != nil {
			t.Fatal(err)
		}
		if a.Ino == b.Ino || a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Mtim != b.Mtim || a.Size != b.Size {
			t.Errorf("%v: copied %+v of %+v", why, a, b)
		}
	}
}

// TestLayerIsUnpackedOnce checks that a layer that several callers need is unpacked once; the work
// continues when the first caller gives up, and ends with the last.
func TestLayerIsUnpackedOnce(t *testing.T) {
	p := newProvider(t, "")
	data := archive(t, file("f", strings.Repeat("x", 1<<16)))
	var opened atomic.Int32
	ready, release := make(chan struct{}), make(chan struct{})
	open := func(ctx context.Context) (io.ReadCloser, error) {
		if opened.Add(1) == 1 {
			close(ready)
		}
		select {
		case <-release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return opener(data)(ctx)
	}
	first, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.addLayer(first, digestOf(data), "", open); !errors.Is(err, context.Canceled) {
			t.Errorf("the first, who gave up, got %v", err)
		}
	})
	<-ready
	for range 8 {
		wg.Go(func() {
			if _, err := p.addLayer(t.Context(), digestOf(data), "", open); err != nil {
				t.Error(err)
			}
		})
	}
	waiting := func() int {
		p.layers.pulls.mu.Lock()
		defer p.layers.pulls.mu.Unlock()
		pull := p.layers.pulls.running[pullKey{digestOf(data), ""}]
		pull.mu.Lock()
		defer pull.mu.Unlock()
		return len(pull.waiting)
	}
	await := func(want int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); waiting() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d wait, want %d", waiting(), want)
			}
		}
	}
	await(9)
	giveUp()
	await(8)
	close(release)
	wg.Wait()
	if n := opened.Load(); n != 1 {
		t.Errorf("the layer was opened %d times", n)
	}

	// All callers give up: the stream ends, and nothing is left.
	other := archive(t, file("g", "x"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	_, err := p.addLayer(ctx, digestOf(other), "", func(ctx context.Context) (io.ReadCloser, error) {
		cancel()
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-ended
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	addLayers(t, p, other) // and it can be had after all
}

func TestLayerOfAnotherDigest(t *testing.T) {
	p := newProvider(t, "")
	data, other := archive(t, file("f", "1")), archive(t, file("f", "2"))
	if _, err := p.addLayer(t.Context(), digestOf(other), "", opener(data)); !errors.Is(err, errHostile) {
		t.Errorf("got %v", err)
	}
	// Bytes after the archive's end are part of the digest.
	if _, err := p.addLayer(t.Context(), digestOf(data), "", opener(append(bytes.Clone(data), 0))); !errors.Is(err, errHostile) {
		t.Errorf("with more behind it: %v", err)
	}
	for _, want := range []string{"sha256-xyz", "../../x", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := p.addLayer(t.Context(), want, "", opener(data)); !errors.Is(err, errHostile) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if entries, _ := os.ReadDir(p.layers.dir); len(entries) != 0 {
		t.Errorf("kept: %v", entries)
	}
	info, err := p.addLayer(t.Context(), "", "", opener(data))
	if err != nil || info.Digest != digestOf(data) || info.Entries != 1 || info.Bytes != 1 {
		t.Errorf("layer %+v, %v", info, err)
	}
	// The next process finds it, and removes the remains of another that crashed.
	left := filepath.Join(p.dir, "tmp", "layer-1", "layer", "f", "0")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	never := func(context.Context) (io.ReadCloser, error) { return nil, errors.New("opened again") }
	if again, err := p2.addLayer(t.Context(), info.Digest, "", never); err != nil || again != info {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}

	// After a power failure, a layer is available only if it was on the disk.
	settled := addLayers(t, p, other)[0]
	if err := p.layers.markDurable([]string{settled}); err != nil {
		t.Fatal(err)
	}
	if err := writeLayerInfo(p.layers.layerDir(info.Digest), info, "an earlier boot"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.layers.dir, "garbage"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if p2, err = New(Config{Dir: p.dir, Log: p.log}); err != nil {
		t.Fatal(err)
	}
	if _, err := p2.addLayer(t.Context(), settled, "", never); err != nil {
		t.Errorf("a layer that was on the disk: %v", err)
	}
	if _, err := p2.layers.stored(info.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a layer that may be damaged: %v", err)
	}
	if entries, _ := os.ReadDir(p.layers.dir); len(entries) != 1 {
		t.Errorf("layers: %v", entries)
	}
}

func TestLayersAreCollected(t *testing.T) {
	p := newProvider(t, "")
	d := addLayers(t, p, archive(t, file("kept", "1")), archive(t, file("old", "1")), archive(t, file("new", "1")))
	p.layers.mu.Lock()
	p.layers.used = map[string]time.Time{d[2]: time.Now()}
	p.layers.mu.Unlock()
	trash := t.TempDir()
	if err := p.layers.moveToTrash(trash, map[string]bool{d[0]: true}, time.Now().Add(-recent)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true} {
		if _, err := os.Stat(p.layers.layerDir(d[i])); (err == nil) != want {
			t.Errorf("layer %d: %v, want there: %v", i, err, want)
		}
	}
}

// TestImagesOnAFullDisk checks that a full disk is reported and nothing is left, both when
// a layer does not fit and when the error comes late.
func TestImagesOnAFullDisk(t *testing.T) {
	h := newHub(t)
	noise := make([]byte, 4<<20)
	_, _ = rand.Read(noise)
	small, big := archive(t, file("small", "1")), archive(t, file("big", string(noise)))
	ref := h.push(t, "big:1", makeImage(t, v1.Config{}, small, big))
	if os.Geteuid() == 0 {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		p := h.provider(t)
		full, err := New(Config{Dir: dir, Log: p.log})
		if err != nil {
			t.Fatal(err)
		}
		full.registries = p.registries
		_, err = full.Build(t.Context(), fromImage("big", ref), nil)
		wantCode(t, err, sandbox.CodeUnavailable)
		if err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("error %v", err)
		}
		if l := leftovers(full); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
		build(t, full, fromImage("small", h.push(t, "small:1", makeImage(t, v1.Config{}, small))))
	}
	p := newProvider(t, "")
	late := func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(small[:1024]), failing{unix.ENOSPC})), nil
	}
	if _, err := p.addLayer(t.Context(), "", "", late); !isDiskFull(err) {
		t.Errorf("got %v", err)
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
