// Package image builds and stores templates: root file systems from which
// sandboxes start.
//
// The content of a template is a directory named by its digest, which never changes; a
// small manifest under the template's name holds its current digest. A build works in a
// directory of its own and becomes visible by a rename, so an incomplete build is never
// visible; [New] removes what crashed builds have left.
//
// Two kinds of source are built in. The host source shows the machine's own
// programs read-only beside a few files of /etc chosen by an allow-list. The
// Debian source runs mmdebstrap. More kinds implement [source].
//
// When the daemon runs as root, files have their proper owners. An ordinary user cannot
// give files away: then all of them belong to that user, who is root in the sandbox, and
// the directories of the sandbox's user are writable by everyone.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/oci"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures a [Provider].
type Config struct {
	// Dir is where templates are stored. It is made if missing, readable by its owner
	// only.
	Dir string
	// Log defaults to [slog.Default].
	Log *slog.Logger
	// Registries says how images are fetched.
	Registries oci.Config
	// AllowPaths are absolute paths on this machine at or below which archives and
	// directories may be read.
	AllowPaths []string
	// StateDir is the server's state directory, with its secrets: whatever AllowPaths
	// says, nothing in it gets into a template.
	StateDir string
}

// Provider stores the templates of one directory. Its methods are safe for
// concurrent use.
type Provider struct {
	dir      string
	stateDir string
	log      *slog.Logger
	own      bool
	builtins map[string]definition
	debian   source
	layers   *layerStore
	// bootstraps are shared by builds that need the same Debian, by [chainKey].
	bootstraps flights[string, *manifest]

	registries  *oci.Registries
	allowPaths  []string
	maxUpload   int64
	pullSlots   chan struct{}
	uploadSlots chan struct{}
	pullWait    time.Duration // before a layer is fetched again, multiplied by the attempts
	recent      time.Duration // see [recent]

	host    *hostCache
	sharing *sharing // nil if this provider's directory has all; set before the provider is used

	mu       sync.Mutex
	building map[string]time.Time // under mu: when running builds began
	failed   map[string]string    // under mu: why the newest build of a name failed
	// shapes are the resources that builds were claimed with, of all names in
	// building and failed. Under mu.
	shapes  map[string]sandbox.Resources
	used    map[string]time.Time // under mu: when a digest was last handed out; see [Provider.hold]
	aliases map[string]string    // under mu: NAME or NAME@N by alias; replaced, not changed

	publishing sync.Mutex // held to change the versions of templates, before mu
}

// New opens the templates stored in a directory and removes what crashed builds have
// left there.
func New(cfg Config) (*Provider, error) {
	p := &Provider{
		dir: cfg.Dir, log: cfg.Log, own: os.Geteuid() == 0,
		debian: &debianSource{machine: "/"},
		recent: recent, building: map[string]time.Time{}, failed: map[string]string{}, used: map[string]time.Time{},
		shapes:     map[string]sandbox.Resources{},
		bootstraps: flights[string, *manifest]{joined: "another build makes the same Debian, which this one waits for"},
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	for _, d := range []string{"", "rootfs", manifestsDir, cacheDir, "tmp", "uploads", "mask/dir"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("open templates: %w", err)
		}
	}
	// Files inside may be setuid root, and belong to sandboxes only.
	if err := os.Chmod(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open templates: %w", err)
	}
	if err := os.WriteFile(p.mask("file"), nil, 0o444); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("open templates: %w", err)
	}
	p.pullWait, p.maxUpload = pullWait, sandbox.MaxUploadBytes
	p.pullSlots, p.uploadSlots = make(chan struct{}, pullsAtOnce), make(chan struct{}, uploadsAtOnce)
	for _, a := range cfg.AllowPaths {
		p.allowPaths = append(p.allowPaths, filepath.Clean(a))
	}
	var err error
	if p.registries, err = oci.New(cfg.Registries); err != nil {
		return nil, err
	}
	if p.layers, err = newLayerStore(p.dir, p.own, p.log); err != nil {
		return nil, err
	}
	if cfg.StateDir != "" {
		if p.stateDir, err = filepath.EvalSymlinks(cfg.StateDir); err != nil {
			return nil, fmt.Errorf("open templates: %w", err)
		}
	}
	p.setHost(&hostSource{machine: "/", maskDir: p.mask("dir"), maskFile: p.mask("file")})
	p.sweep()
	p.expireUploads()
	p.readAliases()
	return p, nil
}

func (p *Provider) setHost(h *hostSource) {
	p.host = &hostCache{source: h}
	p.builtins = builtin(h, p.debian)
}

// List returns all templates, built or only defined, sorted by name.
func (p *Provider) List(context.Context) ([]sandbox.Template, error) {
	c, err := p.catalog()
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	byName := map[string]sandbox.Template{}
	for name, d := range p.builtins {
		byName[name] = d.template()
	}
	for _, m := range c.newest() {
		byName[m.Name] = m.template()
	}
	p.mu.Lock()
	for name, shape := range p.shapes {
		if _, ok := byName[name]; !ok {
			byName[name] = unbuilt(name, shape)
		}
	}
	p.mu.Unlock()
	out := make([]sandbox.Template, 0, len(byName))
	for _, t := range byName {
		t = p.status(t)
		t.Versions = newestFirst(c.versions[t.Name])
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b sandbox.Template) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// unbuilt describes a template that is not built in and has no build.
func unbuilt(name string, shape sandbox.Resources) sandbox.Template {
	return sandbox.Template{Name: name, State: sandbox.TemplateAvailable, User: userName, WorkDir: workDir, Resources: shape}
}

// Get returns a template in any state by its name, NAME@VERSION or an alias, or a
// not_found error.
func (p *Provider) Get(ctx context.Context, ref string) (*sandbox.Template, error) {
	name, number, err := p.resolved(ref)
	if err != nil {
		return nil, err
	}
	if number > 0 {
		m, err := p.version(name, number)
		if err != nil {
			return nil, notFound(ref, err)
		}
		numbers, err := p.versions(name)
		if err != nil {
			return nil, err
		}
		t := p.status(m.template())
		t.Versions = newestFirst(numbers)
		return &t, nil
	}
	all, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range all {
		if t.Name == name {
			return &t, nil
		}
		names = append(names, t.Name)
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %.80q; use one of %s", name, strings.Join(names, ", "))
}

// status completes a template with the state of its builds and its aliases.
func (p *Provider) status(t sandbox.Template) sandbox.Template {
	if d, ok := p.builtins[t.Name]; ok {
		// These come from this program, not from a build.
		now := d.template()
		t.Warm, t.Start, t.Desktop, t.Ports, t.Resources = now.Warm, now.Start, now.Desktop, now.Ports, now.Resources
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Aliases = p.aliasesOf(t.Name)
	reason, failed := p.failed[t.Name]
	if failed {
		t.Reason = reason
	}
	switch {
	case t.State == sandbox.TemplateReady:
	case !p.building[t.Name].IsZero():
		t.State, t.Reason = sandbox.TemplateBuilding, ""
	case failed:
		t.State = sandbox.TemplateFailed
	case t.Name == Host:
		t.State = sandbox.TemplateReady // made on first use
	}
	return t
}

// Root returns the root file system of a ready template and the template. The host
// template is made, or made anew, when needed.
func (p *Provider) Root(ctx context.Context, ref string) (engine.Root, sandbox.Template, error) {
	name, number, err := p.resolved(ref)
	if err != nil {
		return engine.Root{}, sandbox.Template{}, err
	}
	m, err := p.held(ctx, name, number)
	if err != nil {
		return engine.Root{}, sandbox.Template{}, err
	}
	return p.rootOf(m), p.status(m.template()), nil
}

// held is like current, and keeps the root from being collected for a while.
func (p *Provider) held(ctx context.Context, name string, number int) (m *manifest, err error) {
	for range 3 {
		if m, err = p.current(ctx, name, number); err != nil {
			return nil, err
		}
		if err = p.fetchRoot(ctx, m.Digest); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		// The template was replaced or deleted, and its root collected, meanwhile.
	}
	if err == nil {
		err = p.bindHere(ctx, m)
	}
	if errors.Is(err, fs.ErrNotExist) && p.sharing != nil && name != Host {
		return nil, lostRoot(name, number)
	}
	if err != nil {
		return nil, fmt.Errorf("the root of template %s: %w", name, err)
	}
	return m, nil
}

// hold keeps a root from being collected for a while, and until all builds that run
// now have ended. The error is [fs.ErrNotExist] if the root is gone already.
func (p *Provider) hold(digest string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[digest] = time.Now()
	_, err := os.Stat(p.rootfsDir(digest))
	return err
}

// hasRoot reports whether a root exists.
func (p *Provider) hasRoot(digest string) bool {
	_, err := os.Stat(p.rootfsDir(digest))
	return err == nil
}

// current returns the manifest of a usable template: of one version, or of the
// newest for 0.
func (p *Provider) current(ctx context.Context, name string, number int) (*manifest, error) {
	if name == Host && number == 0 {
		return p.currentHost(ctx, false)
	}
	m, err := p.version(name, number)
	if err == nil {
		return m, nil
	}
	if number > 0 {
		return nil, notFound(versioned(name, number), err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		p.log.Error("read template", "template", name, "error", err)
	}
	t, err := p.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	how := fmt.Sprintf("build it first with 'cove template build %s'", name)
	if t.Desktop == nil {
		how += ", or use the template host"
	}
	switch t.State {
	case sandbox.TemplateBuilding:
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s is being built; try again when it is ready", name)
	case sandbox.TemplateFailed:
		if _, ok := p.builtins[name]; !ok {
			how = "fix that and build it again, or use another template"
		}
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s could not be built: %s; %s", name, strings.TrimSuffix(t.Reason, "."), how)
	}
	return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s is not built yet; %s", name, how)
}

// recent is how long a root is kept after it was handed out, even if nothing is known
// to use it: a sandbox may be about to start.
const recent = 15 * time.Minute

// Collect removes root file systems that no template has any more, except for the
// digests in use by sandboxes, and layers that no template is made of. It returns
// the digests of the roots removed.
//
// Builds may run: whatever a build needs was handed out after it began, so Collect
// keeps everything that was handed out since the oldest running build began. Builds
// end within [sandbox.MaxBuildTime].
func (p *Provider) Collect(inUse map[string]bool) ([]string, error) {
	trash, err := os.MkdirTemp(filepath.Join(p.dir, "tmp"), "collect-")
	if err != nil {
		return nil, fmt.Errorf("collect templates: %w", err)
	}
	removed, err := p.moveToTrash(trash, inUse)
	return removed, errors.Join(err, removeTree(trash))
}

// moveToTrash moves unused roots and layers to trash, which is quick.
func (p *Provider) moveToTrash(trash string, inUse map[string]bool) ([]string, error) {
	p.publishing.Lock() // so that no manifest is renamed while they are read
	defer p.publishing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	// A build of the host template is not in building, but its newest digest is
	// protected by its time of use.
	since := time.Now().Add(-p.recent)
	for _, began := range p.building {
		if began.Before(since) {
			since = began
		}
	}
	c, err := p.catalog()
	if err != nil {
		return nil, err
	}
	keep, err := p.recorded()
	if err != nil {
		return nil, err
	}
	p.expireCache()
	files, err := p.local().ReadAll(cacheDir)
	if err != nil {
		return nil, err
	}
	kept, err := p.parseAll(files)
	if err != nil {
		return nil, err
	}
	ms := append(c.all, kept...)
	for _, m := range kept {
		keep[m.Digest] = true
	}
	for d, at := range p.used {
		if at.Before(since) {
			delete(p.used, d)
		} else {
			keep[d] = true
		}
	}
	entries, err := os.ReadDir(filepath.Join(p.dir, "rootfs"))
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, e := range entries {
		d := e.Name()
		if keep[d] || inUse[d] || !validDigest.MatchString(d) {
			continue
		}
		if err := os.Rename(p.rootfsDir(d), filepath.Join(trash, d)); err != nil {
			return removed, fmt.Errorf("remove root %s: %w", d, err)
		}
		removed = append(removed, d)
	}
	layers := map[string]bool{}
	for _, m := range ms {
		for _, d := range m.Layers {
			layers[d] = true
		}
	}
	return removed, p.layers.moveToTrash(trash, layers, since)
}

// recorded returns the digests in all records: the shared ones, and those of this directory.
func (p *Provider) recorded() (map[string]bool, error) {
	if _, err := os.Stat(filepath.Join(p.dir, manifestsDir)); err != nil {
		return nil, err // else all roots would be taken for unused
	}
	own, err := p.local().ReadAll(manifestsDir)
	digests := digestsOf(own)
	if err == nil && p.sharing != nil {
		var shared map[string]bool
		shared, err = p.SharedRoots()
		maps.Copy(digests, shared)
	}
	return digests, err
}

// expireCache removes cached roots that no build has used for [cacheMaxAge].
func (p *Provider) expireCache() {
	entries, _ := os.ReadDir(filepath.Join(p.dir, cacheDir))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > cacheMaxAge {
			_ = os.Remove(filepath.Join(p.dir, cacheDir, e.Name()))
		}
	}
}

// sweep removes the directories of builds whose process is gone. A running build
// holds a lock on its directory.
func (p *Provider) sweep() {
	entries, _ := os.ReadDir(filepath.Join(p.dir, "tmp"))
	for _, e := range entries {
		dir := filepath.Join(p.dir, "tmp", e.Name())
		unlock, err := lockDir(dir)
		if err != nil {
			continue
		}
		if err := discard(dir); err != nil {
			p.log.Warn("remove build leftovers", "directory", dir, "error", err)
		}
		unlock()
	}
	for _, dir := range []string{"", cacheDir, manifestsDir} {
		stale, _ := filepath.Glob(filepath.Join(p.dir, dir, durable.TempFiles))
		for _, f := range stale {
			_ = os.Remove(f)
		}
	}
}

// lockDir locks a directory against other processes, and does not wait for the lock.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
