package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// sent returns an archive of these entries, whose content is their name.
func sent(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if h.Mode == 0 {
			h.Mode = 0o640
		}
		h.Uid, h.Gid = 1000, 1000
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.WriteString(w, h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// copying returns a provider with an upload, and a base with some directories and links.
func copying(t *testing.T, archive []byte) (*Provider, *Foundation, string) {
	t.Helper()
	p := newProvider(t, "")
	up, err := p.KeepArchive(t.Context(), Upload{}, bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	empty := "sha256-" + strings.Repeat("0", 64)
	if err := os.Mkdir(p.rootfsDir(empty), 0o755); err != nil {
		t.Fatal(err)
	}
	first := &Foundation{Root: engine.Root{Digest: empty, Dir: p.rootfsDir(empty)}}
	base, err := p.Extend(t.Context(), first, "", func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(sent(t,
			tar.Header{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755}, tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "abs", Linkname: "/usr"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "../../../../etc"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "loop", Linkname: "loop"}, tar.Header{Typeflag: tar.TypeDir, Name: "app/", Mode: 0o711},
			tar.Header{Name: "app/old"}))), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, base, up.Archive
}

// listed returns the names in a root, and the targets of links.
func listed(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		name, _ := filepath.Rel(dir, file)
		switch {
		case d.IsDir():
			name += "/"
		case d.Type()&os.ModeSymlink != 0:
			to, _ := os.Readlink(file)
			name += " -> " + to
		}
		names = append(names, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestCopy(t *testing.T) {
	archive := sent(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}, tar.Header{Name: "./run.py"}, tar.Header{Typeflag: tar.TypeDir, Name: "src/"},
		tar.Header{Name: "src/a.py"}, tar.Header{Typeflag: tar.TypeDir, Name: "src/deep/"}, tar.Header{Name: "src/deep/b.py"}, tar.Header{Name: "src/c.txt"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "src/l", Linkname: "/etc/passwd"}, tar.Header{Typeflag: tar.TypeLink, Name: "src/h", Linkname: "src/a.py"},
		tar.Header{Typeflag: tar.TypeDir, Name: "root/bin/"}, tar.Header{Name: "root/bin/tool"})
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	_, err := zw.Write(archive)
	if err := errors.Join(err, zw.Close()); err != nil {
		t.Fatal(err)
	}
	p, base, up := copying(t, z.Bytes())
	before := listed(t, base.Root.Dir)
	for _, tt := range []struct {
		to      string
		sources []string
		want    []string // more than before
	}{
		{"/x/y", []string{"run.py"}, []string{"x/", "x/y"}},
		{"/x/", []string{"run.py"}, []string{"x/", "x/run.py"}},
		{"/app", []string{"run.py"}, []string{"app/run.py"}},
		{"/bin", []string{"./run.py"}, []string{"usr/bin/run.py"}},
		{"/abs/new", []string{"run.py"}, []string{"usr/new"}},
		{"/s", []string{"src"}, []string{"s/", "s/a.py", "s/c.txt", "s/deep/", "s/deep/b.py", "s/h", "s/l -> /etc/passwd"}},
		{"/app", []string{"src/deep/"}, []string{"app/b.py"}},
		{"/s", []string{"src/*.py"}, []string{"s/", "s/a.py"}},
		{"/s", []string{"**/*.py"}, []string{"s/", "s/a.py", "s/b.py", "s/run.py"}},
		{"/s", []string{"run.py", "src/deep"}, []string{"s/", "s/b.py", "s/run.py"}},
		{"/", []string{"root"}, []string{"usr/bin/tool"}},
		{"/s", nil, []string{"s/", "s/root/", "s/root/bin/", "s/root/bin/tool", "s/run.py", "s/src/", "s/src/a.py", "s/src/c.txt", "s/src/deep/", "s/src/deep/b.py", "s/src/h", "s/src/l -> /etc/passwd"}},
	} {
		c := &sandbox.TemplateCopy{Archive: up, Sources: tt.sources, To: tt.to}
		got, kept, err := p.Copy(t.Context(), base, c, false)
		if err != nil || kept {
			t.Errorf("%v to %s: %v, kept %v", tt.sources, tt.to, err, kept)
			continue
		}
		more := slices.DeleteFunc(listed(t, got.Root.Dir), func(s string) bool { return slices.Contains(before, s) })
		if diff := cmp.Diff(tt.want, more); diff != "" {
			t.Errorf("%v to %s (-want +got):\n%s", tt.sources, tt.to, diff)
		}
		if again, kept, err := p.Copy(t.Context(), base, c, false); err != nil || !kept || again.Root.Digest != got.Root.Digest {
			t.Errorf("%v to %s again: %v, kept %v", tt.sources, tt.to, err, kept)
		}
	}
}

// TestCopyHostile attacks with archives that would write elsewhere, remove files, fill the
// disk or name the machine's own files. "make soak" sends one that swells to 300 MiB;
// otherwise TestBomb of package oci covers that.
func TestCopyHostile(t *testing.T) {
	bomb := func() []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: 300 << 20, Mode: 0o644})
		if err == nil {
			_, err = io.CopyN(w, zeros{}, 300<<20)
		}
		if err := errors.Join(err, w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	far := "../../../../../../../../tmp/cove-copied"
	hostile := map[string][]byte{
		"out":                sent(t, tar.Header{Name: far}),
		"out, in the middle": sent(t, tar.Header{Name: "a/../../x"}),
		"absolute":           sent(t, tar.Header{Name: "/etc/x"}),
		"link out":           sent(t, tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: far}),
		"link to the host's": sent(t, tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "/etc/passwd"}),
		"link to the base's": sent(t, tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "app/old"}),
		"whiteout":           sent(t, tar.Header{Name: "app/.wh.old"}),
		"opaque":             sent(t, tar.Header{Name: "app/.wh..wh..opq"}),
		"device":             sent(t, tar.Header{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1, Devminor: 1}),
		"whiteout device":    sent(t, tar.Header{Typeflag: tar.TypeChar, Name: "app"}),
		"fifo":               sent(t, tar.Header{Typeflag: tar.TypeFifo, Name: "x"}),
		"cut":                sent(t, tar.Header{Name: "x"})[:512],
		"no archive":         []byte(strings.Repeat("no archive ", 100)),
		"no gzip":            []byte("\x1f\x8b\x08nonsense"),
		"deep":               sent(t, tar.Header{Name: strings.Repeat("d/", 2000) + "x"}),
	}
	if needs.Soak() {
		hostile["bomb"] = bomb()
	}
	for name, archive := range hostile {
		t.Run(name, func(t *testing.T) {
			p, base, up := copying(t, archive)
			_, _, err := p.Copy(t.Context(), base, &sandbox.TemplateCopy{Archive: up, To: "/"}, false)
			if sandbox.CodeOf(err) != sandbox.CodeInvalid && sandbox.CodeOf(err) != sandbox.CodeTooLarge {
				t.Errorf("the error is %v", err)
			}
			if _, err := os.Lstat("/tmp/cove-copied"); err == nil {
				t.Error("a file was written outside the root")
			}
		})
	}
	// A symbolic link in the archive, and then a file through it, stay inside.
	p, base, up := copying(t, sent(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp"}, tar.Header{Name: "l/cove-copied"}, tar.Header{Name: "out/cove-copied"}))
	got, _, err := p.Copy(t.Context(), base, &sandbox.TemplateCopy{Archive: up, To: "/"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if names := listed(t, got.Root.Dir); !slices.Contains(names, "tmp/cove-copied") || !slices.Contains(names, "etc/cove-copied") {
		t.Errorf("it has %v", names)
	}
	for _, file := range []string{"/tmp/cove-copied", "/etc/cove-copied"} {
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("%s was written", file)
		}
	}
	for _, c := range []sandbox.TemplateCopy{
		{Archive: up, Sources: []string{"nothing"}, To: "/"}, {Archive: up, Sources: []string{"l", "[x"}, To: "/"}, {Archive: "upload-" + strings.Repeat("a", 26), To: "/"}, {Archive: "../../etc/passwd", To: "/"},
	} {
		if _, _, err := p.Copy(t.Context(), base, &c, false); err == nil {
			t.Errorf("%+v was copied", c)
		}
	}
	base.Root.Binds = []engine.Bind{{Target: "/usr"}}
	if _, _, err := p.Copy(t.Context(), base, &sandbox.TemplateCopy{Archive: up, To: "/usr/x/"}, false); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("below the machine's own: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestCopyOwner checks that copies have the owner and modes of the request.
func TestCopyOwner(t *testing.T) {
	archive := sent(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o700}, tar.Header{Name: "d/f"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "f"})
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	accounts := "root:x:0:0::/root:/bin/sh\nbroken\nbad:x:-1:x::/:\ndev:x:1001:1002::/home/dev:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(accounts), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/group"), []byte("root:x:0:\nbroken\nbad:x:-1:\nweb:x:33:dev\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := &Foundation{Root: engine.Root{Dir: dir}}
	for _, tt := range []struct {
		owner, mode string
		uid, gid    int
		file, dir   int64
	}{
		{"", "", 0, 0, 0o640, 0o700}, {"dev", "", 1001, 1002, 0o640, 0o700}, {"1001", "", 1001, 1002, 0o640, 0o700}, {"5", "0711", 5, 5, 0o711, 0o711}, {"5:6", "0o444", 5, 6, 0o444, 0o444},
		{"dev:web", "", 1001, 33, 0o640, 0o700}, {"dev:dev", "", 1001, 1002, 0o640, 0o700}, {"1001:web", "", 1001, 33, 0o640, 0o700}, {"dev:33", "", 1001, 33, 0o640, 0o700},
	} {
		k, err := newUploadCopier(base, &sandbox.TemplateCopy{To: "/x/", Owner: tt.owner, Mode: tt.mode})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := k.run(tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&out)); err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(&out)
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			mode := map[byte]int64{tar.TypeDir: tt.dir, tar.TypeReg: tt.file, tar.TypeSymlink: 0o640}[h.Typeflag]
			if h.Uid != tt.uid || h.Gid != tt.gid || h.Mode != mode {
				t.Errorf("%+v: %s is %d:%d %o", tt, h.Name, h.Uid, h.Gid, h.Mode)
			}
		}
	}
	for _, owner := range []string{"nobody-here", "bad", "dev:none-here", "dev:bad"} {
		if _, err := newUploadCopier(base, &sandbox.TemplateCopy{To: "/x", Owner: owner}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", owner, err)
		}
	}
}

func TestMatched(t *testing.T) {
	for _, tt := range []struct {
		source, name string
		want         int
	}{
		{"a/b", "a/b/c", 2}, {"a/b", "a", -1}, {"a/*", "a/b", 2}, {"a/[", "a/[", 2}, {"**", "a/b", 0}, {"**/b", "a/b/c/b", 2}, {"a/**/b/**/c", "a/b/x/b/c/d", 5},
		{"**/a/**/b/c", "x/a/b/b/c", 5}, {"**/a/**", "x/a/b", 2}, {"**/a/b", "a/a/a/c", -1},
		// Attack: an entry that would keep a backtracking matcher busy for years.
		{"**/a/**/a/**/a/**/b", strings.Repeat("a/", 2000) + "c", -1},
	} {
		if got := matched(strings.Split(tt.source, "/"), strings.Split(tt.name, "/")); got != tt.want {
			t.Errorf("%s of %.40s: %d, want %d", tt.source, tt.name, got, tt.want)
		}
	}
}
