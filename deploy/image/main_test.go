package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestImage makes an image twice, and reads it as a runtime does.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var base bytes.Buffer
	w := tar.NewWriter(&base)
	if err := w.WriteHeader(&tar.Header{Name: "bin/sh", Typeflag: tar.TypeReg, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	o := options{program: file("program", "the program"), controller: file("controller", "the controller"), certificates: file("ca.pem", "authorities"), baseTar: file("base.tar", base.String()), tag: "registry.example.com/cove:1"}
	var made [2][]byte
	for i := range made {
		o.out = filepath.Join(dir, "image.tar")
		if err := run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		var err error
		if made[i], err = os.ReadFile(o.out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("two images of the same differ")
	}

	unpacked := filepath.Join(dir, "layout")
	for name, data := range files(t, bytes.NewReader(made[0])) {
		to := filepath.Join(unpacked, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["io.containerd.image.name"] != o.tag {
		t.Fatalf("the index is %+v, %v", manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil || cfg.Config.User != "10001:10001" || strings.Join(cfg.Config.Entrypoint, " ") != programPath {
		t.Errorf("the configuration is %+v, %v", cfg, err)
	}
	got := files(t, mutate.Extract(img))
	if got["usr/local/bin/cove"] != "the program" || got["usr/local/bin/cove-kubernetes"] != "the controller" || got["etc/ssl/certs/ca-certificates.crt"] != "authorities" {
		t.Errorf("the image has %q", got)
	}
	if _, ok := got["bin/sh"]; !ok {
		t.Error("the image has no base")
	}
	// What has no entry gets the time at which a machine unpacks the image.
	entries := map[string]time.Time{}
	for tr := tar.NewReader(mutate.Extract(img)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		entries[path.Clean(h.Name)] = h.ModTime
	}
	for _, file := range []string{programPath, controllerPath, certificatesPath} {
		for dir := path.Dir(file[1:]); dir != "."; dir = path.Dir(dir) {
			if at, ok := entries[dir]; !ok || at.Unix() != 0 {
				t.Errorf("directory %s has the time %v, %t", dir, at, ok)
			}
		}
	}
}

// files returns the regular files of a tar file.
func files(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(data)
	}
}

// TestMistakes names what is missing.
func TestMistakes(t *testing.T) {
	for want, o := range map[string]options{
		"--out FILE, or --push": {tag: "cove:1"},
		"--base-tar":            {tag: "cove:1", out: "/x", base: "127.0.0.1:1/none"},
	} {
		if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
