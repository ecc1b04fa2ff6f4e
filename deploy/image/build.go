package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is as whom Cove runs unless a Pod says otherwise; nobody else has this id.
const user = 10001

const (
	programPath      = "/usr/local/bin/cove"
	controllerPath   = "/usr/local/bin/cove-kubernetes"
	certificatesPath = "/etc/ssl/certs/ca-certificates.crt"
	statePath        = "/var/lib/cove"
)

// parents are the directories of these files, except those of statePath, which the template
// host does not show.
var parents = []string{"usr", "usr/local", "usr/local/bin", "etc", "etc/ssl", "etc/ssl/certs"}

// build puts a layer with the program on top of a base.
func build(base v1.Image, o options) (v1.Image, error) {
	dirs, err := parentsOf(base)
	if err != nil {
		return nil, err
	}
	data, err := layer(o, dirs)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, tarball.WithCompressionLevel(1), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(base, l)
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created, cfg.History = platform.OS, platform.Architecture, v1.Time{}, nil
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + statePath, "COVE_STATE_DIR=" + statePath}
	cfg.Config = v1.Config{User: fmt.Sprintf("%d:%d", user, user), Entrypoint: []string{programPath}, Cmd: []string{"serve"}, Env: env, WorkingDir: "/"}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return nil, err
	}
	return mutate.MediaType(mutate.ConfigMediaType(img, types.OCIConfigJSON), types.OCIManifestSchema1), nil
}

// parentsOf returns entries for parents, as they are in the base. Without entries of their own,
// they would get the time at which a machine unpacks the layer, and the template host would
// differ from one machine to the next.
func parentsOf(base v1.Image) ([]*tar.Header, error) {
	r := mutate.Extract(base)
	defer r.Close()
	has := map[string]*tar.Header{}
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the base: %w", err)
		}
		has[path.Clean(h.Name)] = h
	}
	var dirs []*tar.Header
	for _, name := range parents {
		h := has[name]
		switch {
		case h == nil:
			h = &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
		case h.Typeflag != tar.TypeDir:
			continue // a link, which a directory would replace
		}
		dirs = append(dirs, &tar.Header{Typeflag: tar.TypeDir, Name: h.Name, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: time.Unix(0, 0)})
	}
	return dirs, nil
}

// layer is a tar file with what Cove adds to the base.
func layer(o options, dirs []*tar.Header) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range dirs {
		if err := w.WriteHeader(dir); err != nil {
			return nil, err
		}
	}
	add := func(path string, mode int64, data []byte) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: mode, Size: int64(len(data)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	program, err := os.ReadFile(o.program)
	if err != nil {
		return nil, fmt.Errorf("read the program: %w; build it with: make build", err)
	}
	certificates, err := os.ReadFile(o.certificates)
	if err != nil {
		return nil, fmt.Errorf("read the certificates: %w; name another file with --certificates", err)
	}
	if err := add(programPath, 0o755, program); err != nil {
		return nil, err
	}
	if o.controller != "" {
		controller, err := os.ReadFile(o.controller)
		if err != nil {
			return nil, fmt.Errorf("read the controller: %w; build it with: make bin/cove-kubernetes", err)
		}
		if err := add(controllerPath, 0o755, controller); err != nil {
			return nil, err
		}
	}
	if err := add(certificatesPath, 0o644, certificates); err != nil {
		return nil, err
	}
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: statePath[1:] + "/", Mode: 0o700, Uid: user, Gid: user, ModTime: time.Unix(0, 0)})
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// writeLayout writes an image as a tar file with an OCI layout.
func writeLayout(path string, img v1.Image, tag name.Tag) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// Both names are in use: that of the specification, and that of containerd.
	if err := l.AppendImage(img, layout.WithPlatform(platform), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag.TagStr(), "io.containerd.image.name": tag.Name(),
	})); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pack(out, dir); err != nil {
		return err
	}
	return out.Close()
}

// pack writes the files of a directory as a tar file, in the order of their names.
func pack(out io.Writer, dir string) error {
	w := tar.NewWriter(out)
	var files []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		return err
	}
	slices.Sort(files)
	for _, path := range files {
		if err := packFile(w, dir, path); err != nil {
			return err
		}
	}
	return w.Close()
}

func packFile(w *tar.Writer, dir, path string) error {
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: info.Size(), ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
