package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// A root that was packed on one machine is the same root on another.
func TestPackRoot(t *testing.T) {
	from, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1234567890, 0)
	tr, err := newTree(mkdir(t, filepath.Join(from.dir, "made")), from.own)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		tr.mkdir("bin", meta{mode: 0o755, mtime: at}),
		tr.put("bin/su", meta{mode: 0o4755, mtime: at}, "program"),
		tr.hardlink("bin/su2", "bin/su"),
		tr.mkdir("home/user", meta{mode: 0o750, uid: 1000, gid: 1000, mtime: at}),
		tr.put("home/user/file", meta{mode: 0o600, uid: 1000, gid: 1000, mtime: at}, "mine"),
		tr.symlink("sh", "../bin/su", meta{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	digest, err := tr.finish()
	tr.close()
	if err == nil {
		err = os.Rename(filepath.Join(from.dir, "made"), from.rootfsDir(digest))
	}
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := from.PackRoot(t.Context(), digest, &packed); err != nil {
		t.Fatal(err)
	}
	to, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if to.HasRoot(digest) {
		t.Error("it is there before")
	}
	for range 2 {
		if err := to.UnpackRoot(t.Context(), digest, bytes.NewReader(packed.Bytes()), nil); err != nil {
			t.Fatal(err)
		}
	}
	var again bytes.Buffer
	if err := to.PackRoot(t.Context(), digest, &again); err != nil || !bytes.Equal(again.Bytes(), packed.Bytes()) {
		t.Errorf("the copy is another one: %v\n%v\n%v", err, entries(t, packed.Bytes()), entries(t, again.Bytes()))
	}
	if here := to.Here(engine.Root{Digest: digest, Dir: "/elsewhere", Binds: []engine.Bind{{Source: "/x/mask/dir", Target: "/a", Mask: true}, {Source: "/usr", Target: "/usr"}}}); here.Dir != to.rootfsDir(digest) || here.Binds[0].Source != to.mask("dir") || here.Binds[1].Source != "/usr" {
		t.Errorf("it is at %+v", here)
	}
	if left, _ := os.ReadDir(filepath.Join(to.dir, "tmp")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// entries lists what a tar stream has.
func entries(t *testing.T, stream []byte) (all []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(stream)); ; {
		h, err := r.Next()
		if err != nil {
			return all
		}
		all = append(all, fmt.Sprint(h.Name, " ", h.Mode, " ", h.Uid, " ", h.Linkname, " ", h.ModTime.UnixNano()))
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A stream that is cut off, or that leads elsewhere, makes no root.
func TestUnpackHostileRoot(t *testing.T) {
	p, err := New(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256-" + string(bytes.Repeat([]byte("a"), 64))
	if err := p.PackRoot(t.Context(), digest, &bytes.Buffer{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pack of a root that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, err := range map[string]error{
		"a cut-off stream":   p.UnpackRoot(t.Context(), digest, bytes.NewReader(archive(t, file("a", "content"))[:515]), nil),
		"a path above":       p.UnpackRoot(t.Context(), digest, bytes.NewReader(archive(t, file("../a", "content"))), nil),
		"a cancelled unpack": p.UnpackRoot(ctx, digest, bytes.NewReader(archive(t, file("a", "content"))), nil),
		"a bad digest":       p.UnpackRoot(t.Context(), "../x", bytes.NewReader(archive(t, file("a", "content"))), nil),
	} {
		if err == nil || p.HasRoot(digest) {
			t.Errorf("%s makes a root: %v", what, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(p.dir, "tmp")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
