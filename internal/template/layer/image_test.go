package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// image writes entries as a sandbox's changes, and lists the layer that is made from them.
func image(t *testing.T, opts ImageOptions, entries ...tar.Header) ([]string, error) {
	t.Helper()
	var changes, out bytes.Buffer
	w := tar.NewWriter(&changes)
	for _, h := range append([]tar.Header{{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}}, entries...) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := WriteImage(t.Context(), &out, &changes, opts); err != nil {
		return nil, err
	}
	var list []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%c %s %o %d:%d %d %s", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, h.Size, h.Linkname))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWriteImage(t *testing.T) {
	dir := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: "./" + name + "/", Mode: 0o755}
	}
	file := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o4755, Uid: 5, Gid: 6, Size: 3}
	}
	opaqueDir := dir("d")
	opaqueDir.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	changes := []tar.Header{
		dir("etc"), file("etc/hosts"), file("etc/machine-id"), file("etc/new"), file("etc/resolv.conf"), dir("etc/ssl"), dir("etc/ssl/certs"), file("etc/ssl/certs/ca-certificates.crt"),
		opaqueDir, file("d/x"), {Typeflag: tar.TypeLink, Name: "./d/y", Linkname: "./d/x"}, {Typeflag: tar.TypeLink, Name: "./d/z", Linkname: "./etc/hosts"},
		{Typeflag: tar.TypeSymlink, Name: "./d/l", Linkname: "../../etc/passwd", Mode: 0o777}, {Typeflag: tar.TypeChar, Name: "./gone"}, {Typeflag: tar.TypeFifo, Name: "./pipe"},
		dir("tmp"), file("tmp/x"), dir("run"), dir("run/cove"), file("run/cove/fork.json"), dir("usr"), dir("usr/lib"), dir("usr/lib/__pycache__"),
	}
	got, err := image(t, ImageOptions{}, append(changes, file("usr/lib/x"))...)
	want := []string{
		"5 etc/ 755 0:0 0 ", "0 etc/new 4755 5:6 3 ", "5 etc/ssl/ 755 0:0 0 ", "5 etc/ssl/certs/ 755 0:0 0 ", "0 etc/ssl/certs/ca-certificates.crt 4755 5:6 3 ",
		"5 d/ 755 0:0 0 ", "0 d/.wh..wh..opq 600 0:0 0 ", "0 d/x 4755 5:6 3 ", "1 d/y 0 0:0 0 d/x", "2 d/l 777 0:0 0 ../../etc/passwd", "0 .wh.gone 600 0:0 0 ", "0 .wh.pipe 600 0:0 0 ",
		"5 run/ 755 0:0 0 ", "5 usr/ 755 0:0 0 ", "5 usr/lib/ 755 0:0 0 ", "5 usr/lib/__pycache__/ 755 0:0 0 ", "0 usr/lib/x 4755 5:6 3 ",
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// Below a bound path, directories and Python's caches are ignored, and files are
	// refused.
	bound := ImageOptions{Bound: []string{"/usr"}, Trust: true}
	got, err = image(t, bound, append(changes, file("usr/lib/__pycache__/x.pyc"), tar.Header{Typeflag: tar.TypeChar, Name: "./usr/lib/.cove-abc.tmp"})...)
	if joined := strings.Join(got, "\n"); err != nil || strings.Contains(joined, "usr") || strings.Contains(joined, "ca-certificates") {
		t.Errorf("%v:\n%s", err, joined)
	}
	for want, entries := range map[string][]tar.Header{
		"/usr/a, /usr/b, /usr/c, and more": {dir("usr"), file("usr/a"), file("usr/b"), file("usr/c"), file("usr/d"), file("usr/e")},
		"/usr/gone":                        {dir("usr"), {Typeflag: tar.TypeChar, Name: "./usr/gone"}},
		"marks a removed file":             {file(".wh.x")},
		"larger than 5 bytes":              {file("a"), file("b")},
		"not clean":                        {file("../x")},
	} {
		_, err := image(t, ImageOptions{Bound: []string{"/usr"}, MaxBytes: map[bool]int64{true: 5, false: 100}[strings.HasPrefix(want, "larger")]}, entries...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzWriteImage(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Typeflag: tar.TypeDir, Name: "./"}, {Typeflag: tar.TypeReg, Name: "./a", Size: 1}, {Typeflag: tar.TypeLink, Name: "./b", Linkname: "./a"}, {Typeflag: tar.TypeChar, Name: "./c"}} {
		if err := errors.Join(w.WriteHeader(&h), func() error { _, err := w.Write(make([]byte, h.Size)); return err }()); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		if WriteImage(t.Context(), &out, bytes.NewReader(data), ImageOptions{Bound: []string{"/usr"}, MaxBytes: 1 << 20}) != nil {
			return
		}
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("the layer is no archive: %v", err)
			}
			if strings.HasPrefix(h.Name, "/") || strings.Contains("/"+h.Name+"/", "/../") || strings.HasPrefix(h.Name, "usr/") {
				t.Fatalf("the layer has %q", h.Name)
			}
		}
	})
}
