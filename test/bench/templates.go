package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// templates measures how long an image takes to become a template, compared with tar on the
// same files. No sandbox is started.
func (b *bench) templates(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cove-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	common, err := manyFiles()
	if err != nil {
		return err
	}
	packed, err := zipped(common)
	if err != nil {
		return err
	}
	d, err := covetest.Launch(ctx, covetest.Options{Dev: true, Args: []string{"--warm=0", "--template-paths=" + dir}})
	if err != nil {
		return err
	}
	defer func() { _ = d.Shutdown(context.WithoutCancel(ctx)) }()

	n := max(3, b.n/6)
	what := fmt.Sprintf("%d files, %d MB", benchFiles, len(common)>>20)
	tgz := filepath.Join(dir, "files.tar.gz")
	if err := os.WriteFile(tgz, packed, 0o644); err != nil {
		return err
	}
	if err := b.rate(ctx, "tar -xzf: "+what, "", n, int64(len(common)), func(ctx context.Context) (time.Duration, error) {
		out, err := os.MkdirTemp(dir, "out-")
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(out)
		began := time.Now()
		err = command(ctx, "tar", "-xzf", tgz, "-C", out)
		return time.Since(began), err
	}); err != nil {
		return err
	}
	var image string
	i := 0
	if err := b.rate(ctx, "template from an image: "+what, "≤ 2 × tar", n, int64(len(common)), func(ctx context.Context) (time.Duration, error) {
		i++
		var err error
		if image, err = benchImage(filepath.Join(dir, fmt.Sprintf("image-%d", i)), i, common, packed); err != nil {
			return 0, err
		}
		return buildFrom(ctx, d, fmt.Sprintf("bench-%d", i), image)
	}); err != nil {
		return err
	}
	return b.time(ctx, "template from an image whose layers are there", "", n, func(ctx context.Context) (time.Duration, error) {
		i++
		return buildFrom(ctx, d, fmt.Sprintf("bench-%d", i), image)
	})
}

func buildFrom(ctx context.Context, d *covetest.Daemon, name, archive string) (time.Duration, error) {
	began := time.Now()
	req := sandbox.BuildTemplateRequest{Name: name, Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Archive: archive}}}
	_, err := d.Client.BuildTemplate(ctx, req, func(sandbox.BuildEvent) error { return nil })
	return time.Since(began), err
}

// benchFiles is the number of files in the measured layer: most small, some large, as in a
// distribution.
const benchFiles = 4000

// manyFiles returns a tar stream of benchFiles files.
func manyFiles() ([]byte, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 4000)
	for i := range words {
		words[i] = fmt.Appendf(nil, "%x ", rng.Uint32())
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range benchFiles {
		size := 4 << 10
		switch {
		case i%40 == 0:
			size = 1 << 20
		case i%4 == 0:
			size = 32 << 10
		}
		content := make([]byte, 0, size+16)
		for len(content) < size {
			content = append(content, words[rng.IntN(len(words))]...)
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/lib/d%d/f%d", i/50, i), Mode: 0o644, Size: int64(size)}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content[:size]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func zipped(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// benchImage writes an OCI layout with a unique layer: it has a file of its own before the
// common ones.
func benchImage(dir string, i int, common, packed []byte) (string, error) {
	var own bytes.Buffer
	w := tar.NewWriter(&own)
	content := fmt.Appendf(nil, "image %d", i)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "own", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return "", err
	}
	first, err := zipped(own.Bytes())
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(own.Bytes())
	h.Write(common)
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return "", err
	}
	keep := func(data []byte, mediaType string) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		if werr := os.WriteFile(filepath.Join(blobs, sum), data, 0o644); err == nil {
			err = werr
		}
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(data)}
	}
	text := func(v any) []byte {
		data, merr := json.Marshal(v)
		if err == nil {
			err = merr
		}
		return data
	}
	layer := keep(append(first, packed...), "application/vnd.oci.image.layer.v1.tar+gzip")
	conf := keep(text(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", h.Sum(nil))}},
	}), "application/vnd.oci.image.config.v1+json")
	manifest := keep(text(map[string]any{"schemaVersion": 2, "config": conf, "layers": []any{layer}}), "application/vnd.oci.image.manifest.v1+json")
	index := text(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	if werr := os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644); err == nil {
		err = werr
	}
	return dir, err
}
