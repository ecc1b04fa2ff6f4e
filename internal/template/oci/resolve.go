package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-sh/cove/sandbox"
)

// bad returns the error for an invalid image.
func bad(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, "the image cannot be used: "+format, args...)
}

// content reads the parts of an image. What it returns is not checked.
type content interface {
	// manifest returns the bytes of a manifest or index.
	manifest(ctx context.Context, d v1.Descriptor) ([]byte, error)
	// blob opens a configuration or layer.
	blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// resolve finds the image for this machine in a manifest or an index, whose digest the
// caller has checked.
func resolve(ctx context.Context, c content, d v1.Descriptor, data []byte) (*Image, error) {
	// An index may refer to another one, but honest images do not nest them deeply.
	for range 4 {
		if !isIndex(d, data) {
			return fromManifest(ctx, c, d, data)
		}
		next, err := choose(data)
		if err != nil {
			return nil, err
		}
		if data, err = readManifest(ctx, c, *next); err != nil {
			return nil, err
		}
		d = *next
	}
	return nil, bad("its indexes are nested too deep")
}

func isIndex(d v1.Descriptor, data []byte) bool {
	if d.MediaType.IsIndex() || d.MediaType.IsImage() {
		return d.MediaType.IsIndex()
	}
	var m struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	return json.Unmarshal(data, &m) == nil && m.Manifests != nil
}

// readManifest reads a manifest and checks it.
func readManifest(ctx context.Context, c content, d v1.Descriptor) ([]byte, error) {
	if err := checkDescriptor(d, maxManifest); err != nil {
		return nil, err
	}
	data, err := c.manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	return data, checkContent(d, data)
}

func checkDescriptor(d v1.Descriptor, limit int64) error {
	switch {
	case d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 64:
		return bad("a part is named by %.90q; use an image with sha256 digests", d.Digest.String())
	case d.Size < 0 || d.Size > limit:
		return bad("a part has %d bytes; at most %d are read", d.Size, limit)
	}
	return nil
}

func checkContent(d v1.Descriptor, data []byte) error {
	h := sha256.Sum256(data)
	if got := hex.EncodeToString(h[:]); got != d.Digest.Hex || d.Size > 0 && int64(len(data)) != d.Size {
		return bad("a part is sha256:%s, not %s as it is named", got, d.Digest)
	}
	return nil
}

// choose finds the manifest for this machine in an index.
func choose(data []byte) (*v1.Descriptor, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, bad("its index is not valid: %v", err)
	}
	var others []string
	var plain []v1.Descriptor
	for _, d := range index.Manifests {
		switch {
		case d.Platform == nil:
			plain = append(plain, d)
		case d.Platform.OS == platform.OS && d.Platform.Architecture == platform.Architecture && (d.Platform.Variant == "" || platform.Architecture != "arm" || d.Platform.Variant == "v7"):
			return &d, nil
		case d.Platform.OS != "unknown": // attestations
			others = append(others, d.Platform.String())
		}
	}
	if len(plain) == 1 && len(others) == 0 {
		return &plain[0], nil // its configuration has the platform
	}
	if len(plain) > 1 {
		return nil, bad("it has %d images; create an archive with a single image", len(plain))
	}
	slices.Sort(others)
	if len(others) > 20 {
		others = others[:20]
	}
	if len(others) == 0 {
		return nil, bad("it has no image for a single platform; name one by its digest")
	}
	return nil, bad("it is for %s, not for %s/%s", strings.Join(slices.Compact(others), ", "), platform.OS, platform.Architecture)
}

// fromManifest reads a manifest and its configuration.
func fromManifest(ctx context.Context, c content, d v1.Descriptor, data []byte) (*Image, error) {
	if d.MediaType.IsSchema1() {
		return nil, bad("its manifest is in Docker's old format; push it again with a newer tool")
	}
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil, bad("its manifest is not valid: %v", err)
	}
	switch m.Config.MediaType {
	case types.DockerConfigJSON, types.OCIConfigJSON, "":
	default:
		return nil, bad("it is a %.80q, not a container image", string(m.Config.MediaType))
	}
	if len(m.Layers) > maxLayers {
		return nil, bad("it has %d layers; at most %d are read", len(m.Layers), maxLayers)
	}
	conf, err := readConfig(ctx, c, m.Config)
	if err != nil {
		return nil, err
	}
	img, err := newImage(conf, len(m.Layers))
	if err != nil {
		return nil, err
	}
	img.Digest = d.Digest.String()
	for i, l := range m.Layers {
		if err := checkDescriptor(l, maxStored); err != nil {
			return nil, err
		}
		if !l.MediaType.IsDistributable() && l.MediaType != "" || strings.Contains(string(l.MediaType), "encrypted") {
			return nil, bad("a layer is a %.80q, which cannot be unpacked", string(l.MediaType))
		}
		img.Layers[i].Size, img.Layers[i].digest = l.Size, l.Digest
		img.Layers[i].open = func(ctx context.Context) (io.ReadCloser, error) { return c.blob(ctx, l) }
	}
	return img, nil
}

// newImage returns an image with a configuration. Its layers, whose number the manifest
// gives, have only their DiffID.
func newImage(conf *v1.ConfigFile, layers int) (*Image, error) {
	if len(conf.RootFS.DiffIDs) != layers {
		return nil, bad("its configuration names %d layers, its manifest %d", len(conf.RootFS.DiffIDs), layers)
	}
	set, err := settings(&conf.Config)
	if err != nil {
		return nil, err
	}
	img := &Image{Config: set}
	for _, h := range conf.RootFS.DiffIDs {
		if h.Algorithm != "sha256" || len(h.Hex) != 64 {
			return nil, bad("a layer's content is named by %.90q; use sha256", h.String())
		}
		img.Layers = append(img.Layers, Layer{DiffID: h.String()})
	}
	return img, nil
}

// readConfig reads an image's configuration and checks that it is for this machine's
// platform.
func readConfig(ctx context.Context, c content, d v1.Descriptor) (*v1.ConfigFile, error) {
	if err := checkDescriptor(d, maxConfig); err != nil {
		return nil, err
	}
	r, err := c.blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil && notAsNamed(err) {
		return nil, bad("its configuration is not what it is named: %v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if err := checkContent(d, data); err != nil {
		return nil, err
	}
	return parseConfig(data)
}

func parseConfig(data []byte) (*v1.ConfigFile, error) {
	conf, err := v1.ParseConfigFile(bytes.NewReader(data))
	if err != nil {
		return nil, bad("its configuration is not valid: %v", err)
	}
	if conf.OS != "" && conf.OS != platform.OS || conf.Architecture != "" && conf.Architecture != platform.Architecture {
		return nil, bad("it is for %.40s/%.40s, not for %s/%s", conf.OS, conf.Architecture, platform.OS, platform.Architecture)
	}
	return conf, nil
}
