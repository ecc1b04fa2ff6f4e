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

// layerStore keeps layers: what one step of an image changed, unpacked once
// and named by the digest of its tar stream (OCI's diff id), "sha256-…".
//
// A layer on the disk has no tree. Its files lie side by side under numbers of
// our own making, with their owners, modes and times, and an index says what
// they are called; no name that a layer brings is ever a name on the disk.
// Names get a meaning in [Provider.compose] only, which puts a base and layers
// together in memory and then makes the result in an empty directory, where
// the content of files is shared by hard links.
//
// A source of templates uses it in three steps, with the [job] that it gets:
//
//	l, err := p.addLayer(ctx, want, from, open)       // once per layer, or per build step
//	j.layers = append(j.layers, l.Digest)             // so that it is kept with the template
//	err = p.compose(ctx, j.tree, base, j.layers, nil) // j.tree is empty
//
// After that the tree can be changed as any other: a file that is put replaces
// the shared one, and never writes to it. A layer made by a build step is a tar
// stream of the files that the step changed, with OCI whiteouts (.wh.NAME and
// .wh..wh..opq) or an overlay's (a character device 0:0, and the extended
// attribute trusted.overlay.opaque); its digest is not known before, so want
// is "". Composition of (base, layers) depends on their digests alone: the same
// ones give the same digest of the root.
type layerStore struct {
	dir string // of the layers
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

// layerInfo is what is known of a layer that is in place.
type layerInfo struct {
	// Digest is that of its tar stream.
	Digest string `json:"digest"`
	// Bytes is the content of its files, Entries how many names it has.
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
}

// openLayer opens the tar stream of a layer, not compressed. A stream that is
// not what was promised fails before it ends.
type openLayer func(ctx context.Context) (io.ReadCloser, error)

// pullKey is what makes two pulls one: the layer, and who gives it. One who
// gives something else, or never ends, fails those who ask there, and nobody else.
type pullKey struct{ digest, from string }

// addLayer makes sure that a layer is in place. want is its digest, or "" if
// only the stream can tell: one that turns out to be there already costs
// nothing but the reading. If want is known, the stream is opened only if the
// layer is not there; callers who want the same from the same place at the same
// time share one. A stream with another digest than want is refused, and nothing
// of it kept.
func (p *Provider) addLayer(ctx context.Context, want, from string, open openLayer) (layerInfo, error) {
	if want == "" {
		return p.layers.unpack(ctx, "", open)
	}
	if !validDigest.MatchString(want) {
		return layerInfo{}, fmt.Errorf("%w: %.80q is not the digest of a layer", errHostile, want)
	}
	return p.layers.get(ctx, pullKey{want, from}, open)
}

// base is a root to put layers on: that of another template. The zero value is
// an empty one.
type base struct {
	// digest names the content, dir is where it lies; see [Provider.rootfsDir].
	digest, dir string
}

// compose fills the tree, which is empty, with a base and on it the layers in
// order. progress, unless nil, is told from time to time how many of all
// entries are made. Layers must have been added by this process, or be those
// of a template that exists.
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
	t.onSync(func() error { return p.layers.settle(layers) })
	return plant(ctx, t, top, progress)
}

// settle notes that layers are on the disk, which the caller has made sure of.
func (s *layerStore) settle(layers []string) error {
	for _, d := range layers {
		r, err := readLayerRecord(s.layerDir(d))
		if err == nil && r.Boot != "" {
			err = writeLayerInfo(s.layerDir(d), r.layerInfo, "")
		}
		if err != nil {
			return fmt.Errorf("settle layer: %w", err)
		}
	}
	return nil
}

// sweep removes layers that cannot be used: those that a power cut may have
// damaged, and those of other versions.
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

// look returns a layer that is in place, or [fs.ErrNotExist]. It is safe from
// being collected for a while, and while the builds go on that run now.
func (s *layerStore) look(digest string) (layerInfo, error) {
	s.mu.Lock()
	s.used[digest] = time.Now()
	s.mu.Unlock()
	r, err := readLayerRecord(s.layerDir(digest))
	return r.layerInfo, err
}

// get returns a layer by its digest, from the stream if it is not there.
func (s *layerStore) get(ctx context.Context, want pullKey, open openLayer) (layerInfo, error) {
	info, err := s.look(want.digest)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	quiet := func(string, float64, string) {}
	return s.pulls.get(ctx, want, quiet, func(ctx context.Context, _ reporter) (layerInfo, error) {
		return s.unpack(ctx, want.digest, open)
	})
}

// hold keeps layers from being collected for a while, if they are there.
func (s *layerStore) hold(digests []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range digests {
		s.used[d] = time.Now()
	}
}

// throwOut moves layers to trash that nothing needs, and that nobody has asked
// for since a time.
func (s *layerStore) throwOut(trash string, keep map[string]bool, since time.Time) error {
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
