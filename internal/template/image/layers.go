package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// layerStore stores layers: the changes of one step of an image, unpacked once and
// named by the digest of the tar stream (OCI's diff id), "sha256-…".
//
// A layer on the disk has no directory tree. Its files are stored under numbers, with
// their owners, modes and times, and an index has their names; no name from a layer
// ever becomes a name on the disk of the store. Only [Provider.compose] resolves names:
// it composes a base and layers in memory, and writes the result into an empty
// directory, where files share their content with the store by hard links.
//
// A source of templates uses it in three steps, with the [job] that it gets:
//
//	l, err := p.addLayer(ctx, want, from, open)       // once per layer, or per build step
//	j.layers = append(j.layers, l.Digest)             // so that it is kept with the template
//	err = p.compose(ctx, j.tree, base, j.layers, nil) // j.tree is empty
//
// After that the tree can be changed like any other: put replaces a shared file, and
// never writes to it. A layer made by a build step is a tar stream of the files that
// the step changed, with OCI whiteouts (.wh.NAME and .wh..wh..opq) or an overlay's (a
// character device 0:0, and the extended attribute trusted.overlay.opaque); its digest
// is not known in advance, so want is "". The result depends on the digests of the base
// and the layers alone: the same digests give a root of the same digest.
type layerStore struct {
	dir string // directory of the layers
	tmp string // where they are unpacked
	own bool
	log *slog.Logger
	// limits of one layer
	maxBytes, maxEntries int64

	pulls flights[pullKey, layerInfo]

	mu      sync.Mutex
	used    map[string]time.Time // under mu: when a layer was last asked for
	unpacks int                  // under mu: how many were unpacked, for tests
}

// layerInfo describes a stored layer.
type layerInfo struct {
	// Digest is the digest of its tar stream.
	Digest string `json:"digest"`
	// Bytes is the size of all its files, Entries the number of its entries.
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
}

// openLayer opens the uncompressed tar stream of a layer. A stream that is not what
// its source promised fails before its end.
type openLayer func(ctx context.Context) (io.ReadCloser, error)

// pullKey identifies pulls that can be shared: those of the same layer from the same
// source. A bad source fails only the callers that use it.
type pullKey struct{ digest, from string }

// addLayer makes sure that a layer is stored. want is its digest, or "" if the digest
// is not known before the stream was read. If want is set, the stream is opened only
// if the layer is missing, and callers that want the same layer from the same source
// at the same time share one stream. A stream with a digest other than want is
// refused, and nothing of it is stored.
func (p *Provider) addLayer(ctx context.Context, want, from string, open openLayer) (layerInfo, error) {
	if want == "" {
		return p.layers.unpack(ctx, "", open)
	}
	if !validDigest.MatchString(want) {
		return layerInfo{}, fmt.Errorf("%w: %.80q is not the digest of a layer", errHostile, want)
	}
	return p.layers.get(ctx, pullKey{want, from}, open)
}

// base is the root of another template, below the layers. The zero value is an empty
// root.
type base struct {
	// digest names the content, which is in dir; see [Provider.rootfsDir].
	digest, dir string
}

// compose fills an empty tree with a base and the layers on top of it, in order.
// progress, unless nil, is called from time to time with the number of entries made
// so far and of all. Layers must have been added by this process, or belong to a
// template that exists.
func (p *Provider) compose(ctx context.Context, t *tree, b base, layers []string, progress func(done, all int)) error {
	top := newNode()
	if b.dir != "" {
		if err := readBase(ctx, top, b, t.own); err != nil {
			return fmt.Errorf("read base: %w", err)
		}
	}
	budget := newBudget(t.maxBytes, t.maxEntries)
	for _, d := range layers {
		if err := p.layers.merge(ctx, top, d, budget); err != nil {
			return err
		}
	}
	t.onSync(func() error { return p.layers.markDurable(layers) })
	return plant(ctx, t, top, progress)
}

// markDurable records that layers are on the disk. The caller has synced them.
func (s *layerStore) markDurable(layers []string) error {
	for _, d := range layers {
		r, err := readLayerRecord(s.layerDir(d))
		if err == nil && r.Boot != "" {
			err = writeLayerInfo(s.layerDir(d), r.layerInfo, "")
		}
		if err != nil {
			return fmt.Errorf("mark layer durable: %w", err)
		}
	}
	return nil
}

// sweep removes unusable layers: those that a power failure may have damaged, and
// those of other versions.
func (s *layerStore) sweep() {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		dir := filepath.Join(s.dir, e.Name())
		if r, err := readLayerRecord(dir); err == nil && (r.Boot == "" || r.Boot == bootID()) {
			continue
		}
		if err := removeTree(dir); err != nil {
			s.log.Warn("remove a layer that cannot be used", "directory", dir, "error", err)
		}
	}
}

func newLayerStore(dir string, own bool, log *slog.Logger) (*layerStore, error) {
	s := &layerStore{
		dir: filepath.Join(dir, "layers"), tmp: filepath.Join(dir, "tmp"), own: own, log: log,
		maxBytes: maxTreeBytes, maxEntries: maxTreeEntries, used: map[string]time.Time{},
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open layers: %w", err)
	}
	s.sweep()
	return s, nil
}

func (s *layerStore) layerDir(digest string) string { return filepath.Join(s.dir, digest) }

// stored returns a stored layer, or [fs.ErrNotExist]. The layer is not collected for a
// while, nor before all builds that run now have ended.
func (s *layerStore) stored(digest string) (layerInfo, error) {
	s.mu.Lock()
	s.used[digest] = time.Now()
	s.mu.Unlock()
	r, err := readLayerRecord(s.layerDir(digest))
	return r.layerInfo, err
}

// get returns a layer by its digest, and reads it from the stream if it is not stored.
func (s *layerStore) get(ctx context.Context, want pullKey, open openLayer) (layerInfo, error) {
	info, err := s.stored(want.digest)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	quiet := func(string, float64, string) {}
	return s.pulls.get(ctx, want, quiet, func(ctx context.Context, _ reporter) (layerInfo, error) {
		return s.unpack(ctx, want.digest, open)
	})
}

// hold keeps layers from being collected for a while.
func (s *layerStore) hold(digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range digests {
		s.used[d] = time.Now()
	}
}

// moveToTrash moves to trash the layers that are not in keep and have not been requested
// since the given time.
func (s *layerStore) moveToTrash(trash string, keep map[string]bool, since time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	coming := map[string]bool{}
	for _, k := range s.pulls.keys() {
		coming[k.digest] = true
	}
	for _, e := range entries {
		d := e.Name()
		if keep[d] || !validDigest.MatchString(d) || coming[d] || !s.used[d].Before(since) {
			continue
		}
		if err := os.Rename(s.layerDir(d), filepath.Join(trash, "layer-"+d)); err != nil {
			return fmt.Errorf("remove layer %s: %w", d, err)
		}
	}
	maps.DeleteFunc(s.used, func(_ string, at time.Time) bool { return at.Before(since) })
	return nil
}
