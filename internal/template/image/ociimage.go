package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/template/oci"
	"github.com/cove-sh/cove/sandbox"
)

// imageSource makes a root from an image in a registry.
type imageSource struct {
	p     *Provider
	ref   string
	login *sandbox.RegistryLogin // nil is the server's own
}

func (*imageSource) kind() string { return "image" }

func (s *imageSource) build(ctx context.Context, j *job) error {
	j.report("finding the image", 0, s.ref)
	img, err := s.p.registries.Resolve(ctx, s.ref, s.login)
	if err != nil {
		return err
	}
	j.notes = append(j.notes, "image "+s.ref+" "+img.Digest)
	return s.p.fromImage(ctx, j, img, "")
}

// archiveSource makes a root from an image in a file on the server.
type archiveSource struct {
	p    *Provider
	path string
}

func (*archiveSource) kind() string { return "archive" }

func (s *archiveSource) build(ctx context.Context, j *job) error {
	j.report("reading the archive", 0, s.path)
	open := s.p.openAllowed
	if validUpload.MatchString(s.path) {
		open = s.p.openUpload
	}
	f, err := open(s.path)
	if err != nil {
		return err
	}
	img, err := oci.OpenArchive(ctx, f, j.dir)
	if err != nil {
		return err
	}
	j.notes = append(j.notes, strings.TrimSpace("archive "+s.path+" "+img.Digest))
	return s.p.fromImage(ctx, j, img, s.path)
}

// pullsAtOnce is how many layers all builds together fetch at the same time. Each
// build may fetch one more, so that slow registries do not block other builds.
const pullsAtOnce = 4

// fromImage fills a job's tree with an image, and closes the image.
func (p *Provider) fromImage(ctx context.Context, j *job, img *oci.Image, from string) (err error) {
	defer func() { err = errors.Join(err, img.Close()) }()
	if err := p.pullAll(ctx, j, img, from); err != nil {
		return err
	}
	for i := range img.Layers {
		j.layers = append(j.layers, layerDigest(img.Layers[i].DiffID))
	}
	j.report("putting the layers together", 0.8, "")
	err = p.compose(ctx, j.tree, base{}, j.layers, func(done, all int) {
		j.report("putting the layers together", 0.8+0.15*float64(done)/float64(max(all, 1)), "")
	})
	if err != nil {
		return err
	}
	j.report("adding what sandboxes need", 0.95, "")
	if err := furnishImage(j.tree, img.Config.WorkDir); err != nil {
		return err
	}
	j.env, j.ports = img.Config.Env, img.Config.Ports
	j.user, j.workDir = img.Config.User, img.Config.WorkDir
	if j.user == "" {
		j.user = imageRoot(j.tree)
	}
	return nil
}

func layerDigest(diffID string) string { return strings.Replace(diffID, ":", "-", 1) }

// puller fetches the layers of one image and reports its progress.
type puller struct {
	p        *Provider
	j        *job
	from     string // the archive, if it is one
	mu       sync.Mutex
	sizes    []int64 // of the layers as transferred; at least 1
	got      []int64 // under mu
	reported time.Time
}

// pullAll makes sure that all layers of an image are in place.
func (p *Provider) pullAll(ctx context.Context, j *job, img *oci.Image, from string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pu := &puller{p: p, j: j, from: from, got: make([]int64, len(img.Layers))}
	var all int64
	for i := range img.Layers {
		pu.sizes = append(pu.sizes, max(1, img.Layers[i].Size))
		all += pu.sizes[i]
	}
	if all > maxTreeBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the image has %d bytes; at most %d are unpacked", all, int64(maxTreeBytes))
	}
	own := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for i := range img.Layers {
		var slots chan struct{}
		select {
		case p.pullSlots <- struct{}{}:
			slots = p.pullSlots
		case own <- struct{}{}:
			slots = own
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := pu.pull(ctx, i, &img.Layers[i]); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// pullAttempts is how often a layer is fetched if the connection breaks, and pullWait
// the time before the second attempt, which grows.
const (
	pullAttempts = 4
	pullWait     = time.Second
)

func (pu *puller) pull(ctx context.Context, i int, l *oci.Layer) error {
	for attempt := 1; ; attempt++ {
		fetched := false
		info, err := pu.p.addLayer(ctx, layerDigest(l.DiffID), cmp.Or(l.From, pu.from), func(ctx context.Context) (io.ReadCloser, error) {
			fetched = true
			return l.Open(ctx, func(n int64) { pu.progress(i, n, false) })
		})
		if err == nil {
			how := "unpacked"
			if !fetched {
				how = "there already"
			}
			pu.progress(i, pu.sizes[i], true)
			pu.j.report("downloading", pu.fraction(), fmt.Sprintf("layer %d of %d %s: %s, %d files", i+1, len(pu.sizes), l.DiffID, how, info.Entries))
			return nil
		}
		if ctx.Err() != nil || !oci.Temporary(err) || isDiskFull(err) {
			return err
		}
		if attempt == pullAttempts {
			return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("layer %d of the image cannot be downloaded: the connection broke %d times; try again", i+1, attempt))
		}
		pu.j.report("downloading", pu.fraction(), fmt.Sprintf("layer %d of %d: the connection broke; trying again", i+1, len(pu.sizes)))
		select {
		case <-ctx.Done():
		case <-time.After(pu.p.pullWait * time.Duration(attempt)):
		}
	}
}

// progress records how much of a layer was received, and reports it now and then
// unless quiet is set.
func (pu *puller) progress(i int, n int64, quiet bool) {
	pu.mu.Lock()
	pu.got[i] = min(n, pu.sizes[i])
	due := !quiet && time.Since(pu.reported) > 100*time.Millisecond
	if due {
		pu.reported = time.Now()
	}
	pu.mu.Unlock()
	if due {
		pu.j.report("downloading", pu.fraction(), "")
	}
}

func (pu *puller) fraction() float64 {
	pu.mu.Lock()
	defer pu.mu.Unlock()
	var got, all int64
	for i := range pu.sizes {
		got, all = got+pu.got[i], all+pu.sizes[i]
	}
	return 0.02 + 0.78*float64(got)/float64(max(all, 1))
}

// furnishImage adds only what a sandbox needs to the root of an image: accounts, libraries
// and programs are the image's own, if it has any.
func furnishImage(t *tree, wd string) error {
	// Mount points must be directories, whatever the image has at their paths.
	for _, d := range []string{".cove", "dev", "proc", "sys", "tmp"} {
		if err := t.replaceDir(d, d == ".cove"); err != nil {
			return err
		}
	}
	if err := t.mkdir("tmp", meta{mode: 0o1777}); err != nil {
		return err
	}
	for _, d := range []struct {
		path string
		mode uint32
	}{{"run", 0o755}, {"var", 0o755}, {"var/tmp", 0o1777}, {"root", 0o700}, {"etc", 0o755}, {workDir[1:], 0o777}, {strings.TrimPrefix(cmp.Or(wd, workDir), "/"), 0o755}} {
		if err := t.ensureDir(d.path, d.mode); err != nil {
			return err
		}
	}
	if !t.has("etc", 'd') {
		return fmt.Errorf("%w: /etc is not a directory", errHostile)
	}
	return nameMachine(t)
}

// imageRoot returns the user for an image that names none: root, or its number.
func imageRoot(t *tree) string {
	passwd, err := t.read("etc/passwd")
	if err == nil && (strings.HasPrefix(passwd, "root:") || strings.Contains(passwd, "\nroot:")) {
		return "root"
	}
	return "0"
}

// ensureDir makes a directory and its parents, unless something else is at one of their
// paths: what the image has there is kept.
func (t *tree) ensureDir(p string, mode uint32) error {
	for at := ""; at != p; {
		rest := strings.TrimPrefix(p[len(at):], "/")
		first, _, _ := strings.Cut(rest, "/")
		at = path.Join(at, first)
		e, there := t.entries[at]
		switch {
		case there && e.kind != 'd':
			return nil // such as a link, which is resolved only in a sandbox
		case there:
			continue
		}
		m := uint32(0o755)
		if at == p {
			m = mode
		}
		if err := t.mkdir(at, meta{mode: m}); err != nil {
			return err
		}
	}
	return nil
}

// replaceDir makes sure that there is a directory. If empty is set, it is emptied.
func (t *tree) replaceDir(p string, empty bool) error {
	if _, there := t.entries[p]; there && (empty || !t.has(p, 'd')) {
		if err := t.removeAll(p); err != nil {
			return err
		}
	}
	if t.has(p, 'd') {
		return nil
	}
	return t.mkdir(p, meta{mode: 0o755})
}

// removeAll removes an entry with everything below it.
func (t *tree) removeAll(p string) error {
	if t.open != nil {
		t.open.Close()
		t.open = nil
	}
	if err := t.root.RemoveAll(p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for q, e := range t.entries {
		if q == p || strings.HasPrefix(q, p+"/") {
			t.bytes -= e.size
			delete(t.entries, q)
		}
	}
	return nil
}
