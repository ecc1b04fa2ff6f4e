package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/sandbox"
)

// packed makes a tar archive of a directory, directories last.
func packed(t testing.TB, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		data, err := os.ReadFile(p)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + rel, Mode: 0o644, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func opened(t testing.TB, path string) (*Image, error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	img, err := OpenArchive(t.Context(), f, t.TempDir())
	if err == nil {
		t.Cleanup(func() { img.Close() })
	}
	return img, err
}

func written(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func layoutOf(t testing.TB, images ...v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range images {
		if err := l.AppendImage(img); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestArchives(t *testing.T) {
	img, plain := imageOf(t, platform.Architecture)
	other, _ := imageOf(t, "s390x")
	var docker bytes.Buffer
	if err := tarball.Write(name.MustParseReference("app:1"), img, &docker); err != nil {
		t.Fatal(err)
	}
	dir := layoutOf(t, img)
	index := t.TempDir()
	l, err := layout.Write(index, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	err = l.AppendIndex(mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: platform.Architecture}}}))
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"docker save": written(t, docker.Bytes()), "docker save, gzip": written(t, gz(t, docker.Bytes())), "docker save, zstd": written(t, zst(t, docker.Bytes())),
		"layout": dir, "layout as tar": written(t, packed(t, dir)), "index in a layout": index, "index as tar, gzip": written(t, gz(t, packed(t, index))),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := opened(t, path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(wantSettings, got.Config); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
			read(t, got, plain)
		})
	}
}

func TestHostileArchives(t *testing.T) {
	img, _ := imageOf(t, platform.Architecture)
	other, _ := imageOf(t, "s390x")
	secret := written(t, []byte(`{"manifests":[]}`))
	pack := func(headers ...tar.Header) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			content := h.Uname
			h.Uname, h.Size = "", int64(len(content))
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return written(t, b.Bytes())
	}
	text := func(name, content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: content}
	}
	linked := t.TempDir()
	if err := os.Symlink(secret, filepath.Join(linked, "index.json")); err != nil {
		t.Fatal(err)
	}
	pipe := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(pipe, "index.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost := layoutOf(t, img)
	if err := os.RemoveAll(filepath.Join(lost, "blobs")); err != nil {
		t.Fatal(err)
	}
	big := layoutOf(t, img)
	if err := os.Truncate(filepath.Join(big, "index.json"), maxManifest+1); err != nil {
		t.Fatal(err)
	}
	zero := strings.Repeat("0", 64)
	for name, path := range map[string]string{
		"nothing":              written(t, nil),
		"no archive":           written(t, bytes.Repeat([]byte("no archive "), 200)),
		"empty directory":      t.TempDir(),
		"empty archive":        pack(),
		"device":               "/dev/null",
		"two images":           layoutOf(t, img, imageMust(t)),
		"another machine's":    layoutOf(t, other),
		"parts lost":           lost,
		"index too large":      big,
		"link out of a layout": linked,
		"pipe in a layout":     pipe,
		"links in a circle":    pack(tar.Header{Typeflag: tar.TypeSymlink, Name: "manifest.json", Linkname: "a"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "manifest.json"}),
		"no images":            pack(text("manifest.json", `[]`)),
		"two in docker save":   pack(text("manifest.json", `[{},{}]`)),
		"nonsense":             pack(text("manifest.json", `{"a":`)),
		"file of the server":   pack(text("manifest.json", `[{"Config":"../../../../`+secret+`"}]`)),
		"layer lost":           pack(text("manifest.json", `[{"Config":"c","Layers":["x"]}]`), text("c", `{"rootfs":{"diff_ids":["sha256:`+zero+`"]}}`)),
		"too few layers":       pack(text("manifest.json", `[{"Config":"c","Layers":[]}]`), text("c", `{"rootfs":{"diff_ids":["sha256:`+zero+`"]}}`)),
		"weak digest":          pack(text("manifest.json", `[{"Config":"c","Layers":["c"]}]`), text("c", `{"rootfs":{"diff_ids":["md5:`+zero[:32]+`"]}}`)),
		"index in a circle":    pack(text("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","size":2,"digest":"sha256:`+zero+`"}]}`), text("blobs/sha256/"+zero, `{}`)),
		"digest that is a way": pack(text("index.json", `{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":2,"digest":"sha256:../../../etc/passwd"}]}`)),
		"user of many words":   pack(text("manifest.json", `[{"Config":"c","Layers":[]}]`), text("c", `{"config":{"User":"a b\n"},"rootfs":{"diff_ids":[]}}`)),
		"directory of bytes":   pack(text("manifest.json", `[{"Config":"c","Layers":[]}]`), text("c", `{"config":{"WorkingDir":"/a\u0000b"},"rootfs":{"diff_ids":[]}}`)),
		"name without an end":  pack(text("manifest.json", `[{}]`), text(strings.Repeat("n/", 100<<10)+"n", "")),
		"link without an end":  pack(text("manifest.json", `[{}]`), tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("n/", 100<<10) + "n"}),
		"huge environment":     pack(text("manifest.json", `[{"Config":"c","Layers":[]}]`), text("c", `{"config":{"Env":["A=`+strings.Repeat("x", sandbox.MaxEnvBytes)+`"]},"rootfs":{"diff_ids":[]}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := opened(t, path); sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Open(written(t, gz(t, packed(t, layoutOf(t, img)))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenArchive(ctx, f, t.TempDir()); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
}

func imageMust(t testing.TB) v1.Image {
	img, _ := imageOf(t, platform.Architecture)
	return img
}

// FuzzArchive reads arbitrary data as an archive of an image.
func FuzzArchive(f *testing.F) {
	img, _ := imageOf(f, platform.Architecture)
	f.Add(packed(f, layoutOf(f, img)))
	var docker bytes.Buffer
	if err := tarball.Write(name.MustParseReference("app:1"), img, &docker); err != nil {
		f.Fatal(err)
	}
	f.Add(docker.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(data); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		img, err := OpenArchive(t.Context(), file, t.TempDir())
		if err != nil {
			return
		}
		defer img.Close()
		for i := range img.Layers {
			_, _ = readLayer(t.Context(), &img.Layers[i])
		}
	})
}
