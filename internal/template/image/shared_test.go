package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// shelf stores roots in memory, for all providers of an installation.
type shelf struct {
	mu    sync.Mutex
	roots map[string][]byte // under mu; by digest
	down  error             // under mu; why nothing can be fetched
	// collected is how often CollectRoots was called. Under mu.
	collected int
}

// shelfOf is the shelf as one provider uses it.
type shelfOf struct {
	*shelf
	t *testing.T
	p *Provider
}

func (s shelfOf) KeepRoot(digest string) {
	s.t.Helper()
	var b bytes.Buffer
	if err := s.p.PackRoot(s.t.Context(), digest, &b); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roots[digest] = b.Bytes()
}

func (s shelfOf) CollectRoots() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collected++
}

func (s shelfOf) FetchRoot(ctx context.Context, digest string) error {
	s.mu.Lock()
	data, down := s.roots[digest], s.down
	s.mu.Unlock()
	switch {
	case down != nil:
		return down
	case data == nil:
		return fs.ErrNotExist
	}
	return s.p.UnpackRoot(ctx, digest, bytes.NewReader(data), nil)
}

// installation is servers that share templates.
type installation struct {
	*shelf
	t       *testing.T
	records durable.Files
}

func newInstallation(t *testing.T) *installation {
	return &installation{shelf: &shelf{roots: map[string][]byte{}}, t: t, records: durable.Dir(t.TempDir())}
}

// open has a provider share its templates.
func (in *installation) open(p *Provider) *Provider {
	in.t.Helper()
	if err := p.Share(in.records, shelfOf{in.shelf, in.t, p}); err != nil {
		in.t.Fatal(err)
	}
	return p
}

// server returns a provider of a new machine, whose Debian has this content.
func (in *installation) server(content string) *Provider {
	in.t.Helper()
	p, src := withHandmade(in.t)
	src.content = content
	return in.open(p)
}

// again returns the provider of the next process on a machine.
func (in *installation) again(p *Provider) *Provider {
	in.t.Helper()
	next, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		in.t.Fatal(err)
	}
	return in.open(next)
}

// versionsOf returns which templates that are not built in there are, with their aliases.
func versionsOf(t *testing.T, p *Provider) map[string][]int {
	t.Helper()
	all, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]int{}
	for _, tm := range all {
		if _, known := p.builtins[tm.Name]; !known {
			found[strings.Join(append([]string{tm.Name}, tm.Aliases...), " ")] = tm.Versions
		}
	}
	return found
}

func wantVersions(t *testing.T, p *Provider, name string, numbers ...int) {
	t.Helper()
	if got := versionsOf(t, p); len(got) != 1 || !slices.Equal(got[name], numbers) {
		t.Errorf("templates: %v, want %s with %v", got, name, numbers)
	}
}

func wantContent(t *testing.T, root engine.Root, want string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root.Dir, "etc/content"))
	if err != nil || !strings.HasPrefix(string(data), want) {
		t.Errorf("content %q, %v; want %q", data, err, want)
	}
}

func packages(name, p string) sandbox.BuildTemplateRequest {
	return sandbox.BuildTemplateRequest{Name: name, Packages: []string{p}, Force: true}
}

// The next server has the templates of the one before, can build more versions of them, and
// has what it deletes deleted for all.
func TestShare(t *testing.T) {
	in := newInstallation(t)
	a := in.server("one")
	first := build(t, a, packages("mine", "jq"))
	if err := a.Alias("ours", "mine"); err != nil {
		t.Fatal(err)
	}
	b := in.server("two")
	wantVersions(t, b, "mine ours", 1)
	root, tm, err := b.Root(t.Context(), "ours")
	if err != nil || root.Digest != first.Digest || tm.Name != "mine" || root.Dir != b.rootfsDir(first.Digest) {
		t.Fatalf("root: %+v, %+v, %v", root, tm, err)
	}
	wantContent(t, root, "one")
	if again := build(t, b, sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"jq"}}); again.Digest != first.Digest || again.Version != 1 {
		t.Errorf("built from the same: %+v", again)
	}
	second := build(t, b, packages("mine", "curl"))
	a = in.again(a)
	wantVersions(t, a, "mine ours", 2, 1)
	for _, want := range []*sandbox.Template{first, second} {
		root, _, err := a.Root(t.Context(), versioned("mine", want.Version))
		if err != nil || root.Digest != want.Digest {
			t.Errorf("version %d: %+v, %v", want.Version, root, err)
		}
	}
	digests, err := a.SharedRoots()
	if err != nil || len(digests) != 2 || !digests[first.Digest] || !digests[second.Digest] {
		t.Errorf("shared roots: %v, %v", digests, err)
	}
	a.recent = 0
	if removed, err := a.Collect(nil); err != nil || slices.Contains(removed, first.Digest) || slices.Contains(removed, second.Digest) {
		t.Errorf("collected: %v, %v", removed, err)
	}
	if err := a.Delete("mine@1"); err != nil {
		t.Error(err)
	}
	wantVersions(t, in.again(b), "mine ours", 2)
	if err := a.Delete("mine"); err != nil {
		t.Error(err)
	}
	if got := versionsOf(t, in.again(b)); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.collected != 2 {
		t.Errorf("the store has looked for roots without use %d times, want 2", in.collected)
	}
}

// The template host shows the machine of each server.
func TestHostIsNotShared(t *testing.T) {
	in := newInstallation(t)
	for _, p := range []*Provider{in.server("one"), in.server("two")} {
		root, _, err := p.Root(t.Context(), Host)
		if err != nil || root.Dir != p.rootfsDir(root.Digest) {
			t.Errorf("host: %+v, %v", root, err)
		}
		if digests, err := p.SharedRoots(); err != nil || len(digests) != 0 || len(in.roots) != 0 {
			t.Errorf("shared: %v, %v; stored: %d", digests, err, len(in.roots))
		}
		if tm, err := p.Get(t.Context(), Host); err != nil || tm.Version != 1 {
			t.Errorf("host: %+v, %v", tm, err)
		}
	}
}

// If the server that built a template was lost before its root was stored, the error says
// what to do, and doing so makes the template again.
func TestRootIsLost(t *testing.T) {
	in := newInstallation(t)
	first := build(t, in.server("one"), packages("mine", "jq"))
	delete(in.roots, first.Digest)
	p := in.server("two")
	_, _, err := p.Root(t.Context(), "mine")
	wantCode(t, err, sandbox.CodeConflict)
	if !strings.Contains(err.Error(), "cove template build mine") {
		t.Errorf("the error is %q", err)
	}
	in.down = sandbox.Errorf(sandbox.CodeUnavailable, "the object store is down")
	_, _, err = p.Root(t.Context(), "mine")
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: "mine"}, nil)
	wantCode(t, err, sandbox.CodeUnavailable)
	in.down = nil
	again := build(t, p, sandbox.BuildTemplateRequest{Name: "mine"})
	if root, _, err := p.Root(t.Context(), "mine"); err != nil || root.Digest != again.Digest || again.Version != 2 {
		t.Errorf("built again: %+v, %v", root, err)
	}
	if in.roots[again.Digest] == nil {
		t.Error("the root that was made again is not stored")
	}
}

// What a server's directory has from before is moved to the shared templates: what is deleted
// later does not come back, and what is shared is not replaced. What is left out keeps its root.
func TestSharesOwn(t *testing.T) {
	in := newInstallation(t)
	a, src := withHandmade(t)
	build(t, a, packages("mine", "jq"))
	src.content = "three "
	left := build(t, a, packages("taken", "jq"))
	build(t, a, packages("mine", "curl"))
	for alias, name := range map[string]string{"ours": "mine", "first": "mine@1", "lost": "taken", "theirs": "mine"} {
		if err := a.Alias(alias, name); err != nil {
			t.Fatal(err)
		}
	}
	other := in.server("two")
	taken := build(t, other, packages("taken", "wget"))
	build(t, other, packages("theirs", "wget"))
	a = in.again(a)
	if got := versionsOf(t, a); len(got) != 3 || !slices.Equal(got["mine first ours"], []int{2, 1}) || !slices.Equal(got["taken"], []int{1}) || !slices.Equal(got["theirs"], []int{1}) {
		t.Errorf("shared: %v", got)
	}
	if got, err := a.Get(t.Context(), "taken"); err != nil || got.Digest != taken.Digest {
		t.Errorf("taken: %+v, %v", got, err)
	}
	a.recent = 0
	a.used = map[string]time.Time{}
	if removed, err := a.Collect(nil); err != nil || slices.Contains(removed, left.Digest) {
		t.Errorf("the root of what is left out is removed: %v, %v", removed, err)
	}
	b := in.server("two")
	root, _, err := b.Root(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	wantContent(t, root, "one ")
	if err := errors.Join(b.Delete("mine"), b.Delete("taken"), b.Delete("theirs")); err != nil {
		t.Fatal(err)
	}
	a = in.again(a) // the name is free now
	wantVersions(t, a, "taken lost", 1)
	if got, err := a.Get(t.Context(), "taken"); err != nil || got.Digest != left.Digest {
		t.Errorf("what was left out: %+v, %v", got, err)
	}
}

// A template whose name is an alias of the other servers is left out.
func TestSharedAliasIsKept(t *testing.T) {
	in := newInstallation(t)
	a, _ := withHandmade(t)
	build(t, a, packages("prod", "jq"))
	other := in.server("two")
	build(t, other, packages("theirs", "wget"))
	if err := other.Alias("prod", "theirs"); err != nil {
		t.Fatal(err)
	}
	wantVersions(t, in.again(a), "theirs prod", 1)
}

// What a template shows of its machine must be hidden on this one as well.
func TestTemplateOfAnotherMachine(t *testing.T) {
	in := newInstallation(t)
	from := sandbox.BuildTemplateRequest{Name: "mine", Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Host: true}}}
	built := build(t, in.open(newProvider(t, fakeMachine(t))), from)
	same := in.open(newProvider(t, fakeMachine(t)))
	root, _, err := same.Root(t.Context(), "mine")
	if err != nil || root.Digest != built.Digest || len(root.Binds) == 0 {
		t.Fatalf("on a machine like it: %+v, %v", root, err)
	}
	own, _, err := same.Root(t.Context(), Host)
	if err != nil || !slices.Equal(root.Binds, own.Binds) {
		t.Errorf("it shows %v, and not this machine's %v: %v", root.Binds, own.Binds, err)
	}
	machine := fakeMachine(t)
	if err := os.WriteFile(filepath.Join(machine, "usr/bin/private"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	_, _, err = in.open(newProvider(t, machine)).Root(t.Context(), "mine")
	wantCode(t, err, sandbox.CodeUnsupported)
}

// The root of a record that this program cannot read stays in use.
func TestRecordOfLaterProgram(t *testing.T) {
	in := newInstallation(t)
	p := in.server("one")
	digest := "sha256-" + strings.Repeat("a", 64)
	if err := in.records.Write(recordName("later"), []byte(`{"version": 9, "digest": "`+digest+`"}`)); err != nil {
		t.Fatal(err)
	}
	p = in.again(p)
	if got := versionsOf(t, p); len(got) != 0 {
		t.Errorf("templates: %v", got)
	}
	if digests, err := p.SharedRoots(); err != nil || !digests[digest] {
		t.Errorf("in use: %v, %v", digests, err)
	}
}

// stuck is records that cannot be written.
type stuck struct{ durable.Files }

func (stuck) Write(string, []byte) error { return errors.New("the database is away") }

// Records that cannot be written are shared by the next start.
func TestShareFails(t *testing.T) {
	in := newInstallation(t)
	a, _ := withHandmade(t)
	build(t, a, packages("mine", "jq"))
	if err := a.Share(stuck{in.records}, shelfOf{in.shelf, t, a}); err == nil {
		t.Error("sharing did not fail")
	}
	wantVersions(t, in.again(a), "mine", 1)
	if len(in.roots) != 1 {
		t.Errorf("%d roots are stored", len(in.roots))
	}
}
