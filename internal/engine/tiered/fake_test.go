package tiered

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/objects"
)

var errKilled = errors.New("the daemon was killed")

// memoryBucket is a bucket in memory, with the clock of the test.
type memoryBucket struct {
	mu      sync.Mutex
	objects map[string]stored // guarded by mu
	fail    error             // guarded by mu; what all calls return
}

type stored struct {
	data []byte
	at   time.Time
}

func newBucket() *memoryBucket { return &memoryBucket{objects: map[string]stored{}} }

func (b *memoryBucket) String() string { return "memory" }

func (b *memoryBucket) breaks(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func (b *memoryBucket) Put(ctx context.Context, name string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(ctx.Err(), b.fail); err != nil {
		return err
	}
	b.objects[name] = stored{bytes.Clone(data), time.Now()}
	return nil
}

func (b *memoryBucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[name]
	switch err := errors.Join(ctx.Err(), b.fail); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, objects.ErrNotFound
	case int64(len(o.data)) > limit:
		return nil, objects.ErrTooLarge
	}
	return bytes.Clone(o.data), nil
}

func (b *memoryBucket) Stat(ctx context.Context, name string) (objects.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[name]
	switch err := errors.Join(ctx.Err(), b.fail); {
	case err != nil:
		return objects.Info{}, err
	case !ok:
		return objects.Info{}, objects.ErrNotFound
	}
	return objects.Info{Name: name, Size: int64(len(o.data)), Modified: o.at}, nil
}

func (b *memoryBucket) List(ctx context.Context, prefix string) iter.Seq2[objects.Info, error] {
	return func(yield func(objects.Info, error) bool) {
		for _, name := range b.names(prefix) {
			info, err := b.Stat(ctx, name)
			if errors.Is(err, objects.ErrNotFound) {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
		b.mu.Lock()
		err := b.fail
		b.mu.Unlock()
		if err != nil {
			yield(objects.Info{}, err)
		}
	}
}

func (b *memoryBucket) names(prefix string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(func(yield func(string) bool) {
		for name := range b.objects {
			if strings.HasPrefix(name, prefix) && !yield(name) {
				return
			}
		}
	})
}

func (b *memoryBucket) Delete(ctx context.Context, names []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(ctx.Err(), b.fail); err != nil {
		return err
	}
	for _, name := range names {
		delete(b.objects, name)
	}
	return nil
}

func (b *memoryBucket) clone() *memoryBucket {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &memoryBucket{objects: maps.Clone(b.objects)}
}

// plainEngine is an engine whose checkpoints are files with a name.json beside them. It
// creates nothing, but says which checkpoint an instance would have had.
type plainEngine struct {
	Inner
	dir string

	mu   sync.Mutex
	seen []byte // guarded by mu; what the last instance continued from
}

func (p *plainEngine) add(id, owner string, content []byte) engine.Checkpoint {
	c := engine.Checkpoint{ID: id, Owner: owner, SizeBytes: int64(len(content)), CreatedAt: time.Now().UTC(), Root: engine.Root{Digest: rootDigest, Dir: "/nowhere"}}
	data, err := json.Marshal(c)
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(p.dir, id), content, 0o600), os.WriteFile(filepath.Join(p.dir, id+".json"), data, 0o600))
	}
	if err != nil {
		panic(err)
	}
	return c
}

func (p *plainEngine) find(id string) (c engine.Checkpoint, content []byte, err error) {
	data, err := os.ReadFile(filepath.Join(p.dir, id+".json"))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil {
		content, err = os.ReadFile(filepath.Join(p.dir, id))
	}
	return c, content, err
}

func (p *plainEngine) Checkpoints(context.Context) (list []engine.Checkpoint, err error) {
	names, err := filepath.Glob(filepath.Join(p.dir, "*.json"))
	for _, name := range names {
		c, _, err := p.find(strings.TrimSuffix(filepath.Base(name), ".json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, err
}

func (p *plainEngine) RemoveCheckpoint(_ context.Context, id string) error {
	for _, name := range []string{id + ".json", id} {
		if err := os.Remove(filepath.Join(p.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (p *plainEngine) SetAside(_ context.Context, id, to string) error {
	if _, _, err := p.find(id); err != nil {
		return err
	}
	return errors.Join(os.Mkdir(to, 0o700), os.Rename(filepath.Join(p.dir, id), filepath.Join(to, id)), os.Rename(filepath.Join(p.dir, id+".json"), filepath.Join(to, id+".json")))
}

func (p *plainEngine) BringBack(_ context.Context, id, from string) (engine.Checkpoint, error) {
	if err := errors.Join(os.Rename(filepath.Join(from, id), filepath.Join(p.dir, id)), os.Rename(filepath.Join(from, id+".json"), filepath.Join(p.dir, id+".json"))); err != nil {
		return engine.Checkpoint{}, err
	}
	c, _, err := p.find(id)
	return c, err
}

// program is what all checkpoints of the test share.
var program = bytes.Repeat([]byte("program"), 1<<18)

func (p *plainEngine) Export(_ context.Context, id string) (*engine.Export, error) {
	c, content, err := p.find(id)
	if err != nil {
		return nil, err
	}
	description, err := json.Marshal(c)
	return &engine.Export{Checkpoint: c, Description: description, Files: []engine.ExportFile{
		{Name: "content", Size: int64(len(content)), ReadCloser: io.NopCloser(bytes.NewReader(content))},
		{Name: "program", Size: int64(len(program)), Shared: "program1", ReadCloser: io.NopCloser(bytes.NewReader(program))},
	}}, err
}

func (p *plainEngine) Import(_ context.Context, as engine.Checkpoint, description []byte, fetch engine.Fetch) (c engine.Checkpoint, err error) {
	if err := json.Unmarshal(description, &c); err != nil {
		return c, err
	}
	if as.ID != c.ID {
		return c, errors.New("it is another checkpoint")
	}
	for name, size := range map[string]int64{"content": c.SizeBytes, "program": int64(len(program))} {
		data, err := p.fetch(name, size, fetch)
		if err != nil {
			return engine.Checkpoint{}, err
		}
		if name == "program" && !bytes.Equal(data, program) {
			return engine.Checkpoint{}, errors.New("another program")
		}
		if name == "content" {
			defer func() {
				if err == nil {
					err = errors.Join(os.WriteFile(filepath.Join(p.dir, c.ID), data, 0o600), os.WriteFile(filepath.Join(p.dir, c.ID+".json"), description, 0o600))
				}
			}()
		}
	}
	return c, nil
}

func (p *plainEngine) fetch(name string, size int64, fetch engine.Fetch) ([]byte, error) {
	want := engine.ExportFile{Name: name, Size: size}
	if name == "program" {
		want.Shared = "program1"
	}
	f, err := os.CreateTemp(p.dir, ".import-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	if err := errors.Join(f.Truncate(size), fetch(want, f)); err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, 0, size))
}

func (p *plainEngine) Create(_ context.Context, spec engine.Spec) (engine.Instance, error) {
	_, content, err := p.find(spec.Checkpoint)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = content
	return nil, err
}

func (p *plainEngine) Close() error { return nil }

const rootDigest = "sha256-aaaa"

// plainRoots has one root or none.
type plainRoots struct {
	mu        sync.Mutex
	root      []byte // guarded by mu
	unpacked  int    // guarded by mu; how often
	unpacking func() // called before; nil does nothing
}

func (r *plainRoots) Here(root engine.Root) engine.Root { root.Dir = "/here"; return root }

func (r *plainRoots) HasRoot(digest string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.root != nil && digest == rootDigest
}

func (r *plainRoots) PackRoot(_ context.Context, _ string, w io.Writer) error {
	_, err := w.Write(r.root)
	return err
}

func (r *plainRoots) UnpackRoot(_ context.Context, _ string, from io.Reader, _ func() error) error {
	if r.unpacking != nil {
		r.unpacking()
	}
	data, err := io.ReadAll(from)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.root = data
	r.unpacked++
	return err
}

// machine is a machine with a daemon that can be killed at each change.
type machine struct {
	t      *testing.T
	dir    string
	bucket objects.Bucket
	inner  *plainEngine
	spread *spreadEngine // replaces inner, if it is set
	early  *earlyEngine  // replaces inner, if it is set
	roots  *plainRoots
	e      *Engine
	cache  int64
	key    byte
	build  []byte // the program that the daemon stores ahead of need, or nil
	other  bool   // its nodes are of another build
	log    logged

	mu    sync.Mutex
	armed bool   // guarded by mu
	left  int    // guarded by mu; changes until it is killed
	until string // guarded by mu; or the beginning of the change at which it is killed
	dead  bool   // guarded by mu
	at    string
}

// logged is a log that may be read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

func newMachine(t *testing.T, bucket objects.Bucket) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), bucket: bucket, roots: &plainRoots{}, key: 1}
	m.inner = &plainEngine{dir: filepath.Join(m.dir, "engine")}
	if err := os.Mkdir(m.inner.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) step(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dead:
	case m.armed && m.left == 0 && strings.HasPrefix(name, m.until):
		m.dead, m.at = true, name
	case m.armed && m.left > 0:
		m.left--
	}
	if m.dead {
		return errKilled
	}
	return nil
}

// start starts a daemon; the last one has been stopped.
func (m *machine) start() error {
	key := bytes.Repeat([]byte{m.key}, KeySize)
	inner := Inner(m.inner)
	if m.early != nil {
		inner = m.early
	}
	if m.spread != nil {
		inner = m.spread
		if m.other {
			inner = stranger{m.spread}
		}
	}
	cfg := Config{
		Engine: inner, Roots: m.roots, Bucket: m.bucket, Key: key, Installation: "installation-1",
		Dir: filepath.Join(m.dir, "objects"), CacheBytes: m.cache, Log: slog.New(slog.NewTextHandler(&m.log, nil)), step: m.step,
	}
	if m.build != nil {
		cfg.Build = m.shared
	}
	e, err := New(cfg)
	if err != nil {
		return err
	}
	clear(key) // as its owner does
	m.e = e
	return e.Start(m.t.Context())
}

func (m *machine) stop() {
	if err := m.e.Close(); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) restart() {
	m.t.Helper()
	m.stop()
	m.mu.Lock()
	m.armed, m.dead = false, false
	m.mu.Unlock()
	m.must(m.start())
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// add makes a checkpoint, as [Engine.Checkpoint] does.
func (m *machine) add(id, owner string, content []byte) {
	m.e.added(m.inner.add(id, owner, content))
}

// read returns what an instance that continues from a checkpoint gets.
func (m *machine) read(id string) ([]byte, error) {
	_, err := m.e.Create(m.t.Context(), engine.Spec{Checkpoint: id, Root: engine.Root{Digest: rootDigest, Dir: "/nowhere"}})
	m.inner.mu.Lock()
	defer m.inner.mu.Unlock()
	return m.inner.seen, err
}

func (m *machine) wants(id string, want []byte) {
	m.t.Helper()
	if got, err := m.read(id); err != nil || !bytes.Equal(got, want) {
		m.t.Errorf("%s has %d bytes, %v; want %d", id, len(got), err, len(want))
	}
}

// chunkSize is about how large a chunk is.
const chunkSize = 1 << 20

// content returns n MiB, which depend on the seed.
func content(seed string, n int) []byte {
	var b bytes.Buffer
	for i := range n {
		line := fmt.Appendf(nil, "%s, chunk %d\n", seed, i)
		b.Write(bytes.Repeat(line, chunkSize/len(line)+1)[:chunkSize])
	}
	return b.Bytes()
}

// wait lets time pass, in testing/synctest.
func wait(d time.Duration) { time.Sleep(d) }
