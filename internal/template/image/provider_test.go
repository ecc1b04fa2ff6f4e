package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handmade is a source that writes one file, or does what a test says.
type handmade struct {
	mu      sync.Mutex
	builds  int
	content string
	// enter, when set, is called in the middle of a build.
	enter func(context.Context, *job) error
}

func (*handmade) kind() string { return "debian" }

func (s *handmade) build(ctx context.Context, j *job) error {
	s.mu.Lock()
	s.builds++
	content := s.content
	s.mu.Unlock()
	if err := j.tree.put("etc/content", root, content+strings.Join(j.def.packages, " ")); err != nil {
		return err
	}
	j.report("half way", 0.5, "a line")
	if s.enter != nil {
		return s.enter(ctx, j)
	}
	return ctx.Err()
}

func withHandmade(t *testing.T) (*Provider, *handmade) {
	t.Helper()
	p := newProvider(t, "")
	s := &handmade{content: "one "}
	p.debian = s
	p.builtins = builtin(p.host.source, s)
	return p, s
}

func build(t *testing.T, p *Provider, req sandbox.BuildTemplateRequest) *sandbox.Template {
	t.Helper()
	got, err := p.Build(t.Context(), req, func(sandbox.BuildEvent) error { return nil })
	if err != nil {
		t.Fatalf("build %+v: %v", req, err)
	}
	return got
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != code {
		t.Errorf("error %q (%v), want %s", got, err, code)
	}
}

// leftovers lists what is in the provider's working directory.
func leftovers(p *Provider) []string {
	l, _ := filepath.Glob(filepath.Join(p.dir, "tmp", "*"))
	return l
}

func TestBuildAndUse(t *testing.T) {
	p, src := withHandmade(t)
	list := func() map[string]sandbox.TemplateState {
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]sandbox.TemplateState{}
		for _, tm := range all {
			out[tm.Name] = tm.State
		}
		return out
	}
	want := map[string]sandbox.TemplateState{
		"host": "ready", "debian": "available", "code-interpreter": "available",
		"base": "available", "node": "available", "nextjs": "available", "react-vite": "available", "desktop": "available", "browser": "available",
	}
	if d := cmp.Diff(want, list()); d != "" {
		t.Errorf("before (-want +got):\n%s", d)
	}
	_, _, err := p.Root(t.Context(), "debian")
	wantCode(t, err, sandbox.CodeConflict)
	_, _, err = p.Root(t.Context(), "unheard-of")
	wantCode(t, err, sandbox.CodeNotFound)
	_, _, err = p.Root(t.Context(), "../manifests/debian")
	wantCode(t, err, sandbox.CodeNotFound)

	var steps []string
	got, err := p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: "debian"}, func(e sandbox.BuildEvent) error {
		steps = append(steps, e.Step)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"half way", "finishing", "ready"}, steps); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
	if got.State != sandbox.TemplateReady || got.Digest == "" || got.SizeBytes == 0 || got.BuiltAt == nil || got.User != "user" || got.WorkDir != "/workspace" {
		t.Errorf("template = %+v", got)
	}
	root, tmpl, err := p.Root(t.Context(), "debian")
	if err != nil || root.Digest != got.Digest || len(root.Binds) != 0 {
		t.Fatalf("root %+v, %v", root, err)
	}
	if d := cmp.Diff(*got, tmpl); d != "" {
		t.Errorf("template of root (-built +used):\n%s", d)
	}
	if b, err := os.ReadFile(filepath.Join(root.Dir, "etc/content")); err != nil || string(b) != "one ca-certificates sudo" {
		t.Errorf("content %q, %v", b, err)
	}

	// A ready build is not made again, unless forced.
	build(t, p, sandbox.BuildTemplateRequest{Name: "debian"})
	if src.builds != 1 {
		t.Errorf("%d builds, want 1", src.builds)
	}
	src.content = "two "
	again := build(t, p, sandbox.BuildTemplateRequest{Name: "debian", Force: true})
	if src.builds != 2 || again.Digest == got.Digest {
		t.Errorf("%d builds, digest %s", src.builds, again.Digest)
	}
	if _, err := os.Stat(root.Dir); err != nil {
		t.Errorf("the root of the build before is gone: %v", err)
	}

	// The next process finds everything.
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	if root, _, err := p2.Root(t.Context(), "debian"); err != nil || root.Digest != again.Digest {
		t.Errorf("after a restart: %+v, %v", root, err)
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

func TestCustomTemplates(t *testing.T) {
	p, src := withHandmade(t)
	got := build(t, p, sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"jq", "g++", "jq"}})
	if d := cmp.Diff([]string{"ca-certificates", "g++", "jq", "sudo"}, got.Packages); d != "" {
		t.Errorf("packages (-want +got):\n%s", d)
	}
	build(t, p, sandbox.BuildTemplateRequest{Name: "mine"})
	build(t, p, sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"g++", "jq"}})
	if src.builds != 1 {
		t.Errorf("%d builds, want 1", src.builds)
	}
	bad := map[string]struct {
		req  sandbox.BuildTemplateRequest
		code sandbox.Code
	}{
		"other packages":   {sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"curl"}}, sandbox.CodeConflict},
		"nothing to build": {sandbox.BuildTemplateRequest{Name: "unknown"}, sandbox.CodeNotFound},
		"built in":         {sandbox.BuildTemplateRequest{Name: "host", Packages: []string{"jq"}}, sandbox.CodeInvalid},
		"path":             {sandbox.BuildTemplateRequest{Name: "../x", Packages: []string{"jq"}}, sandbox.CodeInvalid},
		"empty":            {sandbox.BuildTemplateRequest{}, sandbox.CodeInvalid},
		"option":           {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"--hook-dir=/tmp"}}, sandbox.CodeInvalid},
		"pattern":          {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"?essential"}}, sandbox.CodeInvalid},
		"removal":          {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"bash-"}}, sandbox.CodeInvalid},
		"file":             {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"./evil.deb"}}, sandbox.CodeInvalid},
		"list":             {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"a,b"}}, sandbox.CodeInvalid},
		"new line":         {sandbox.BuildTemplateRequest{Name: "x", Packages: []string{"a\n"}}, sandbox.CodeInvalid},
		"too many":         {sandbox.BuildTemplateRequest{Name: "x", Packages: make([]string, 501)}, sandbox.CodeInvalid},
	}
	for name, tt := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := p.Build(t.Context(), tt.req, nil)
			wantCode(t, err, tt.code)
		})
	}
}

func TestFailedBuilds(t *testing.T) {
	p, src := withHandmade(t)
	before := build(t, p, sandbox.BuildTemplateRequest{Name: "debian"})
	broken := sandbox.Errorf(sandbox.CodeUnavailable, "the mirror does not answer; try again")
	src.enter = func(context.Context, *job) error { return broken }
	for _, name := range []string{"debian", "mine"} {
		_, err := p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: name, Force: true, Packages: map[string][]string{"mine": {"jq"}}[name]}, nil)
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v, want %v", name, err, broken)
		}
	}
	if root, tm, err := p.Root(t.Context(), "debian"); err != nil || root.Digest != before.Digest || tm.Reason != broken.Message {
		t.Errorf("the build before: %+v %+v, %v", root, tm, err)
	}
	if tm, err := p.Get(t.Context(), "mine"); err != nil || tm.State != sandbox.TemplateFailed || tm.Reason != broken.Message {
		t.Errorf("mine: %+v, %v", tm, err)
	}
	_, _, err := p.Root(t.Context(), "mine")
	wantCode(t, err, sandbox.CodeConflict)

	// A caller that stops listening or cancels ends the build.
	src.enter = func(ctx context.Context, _ *job) error { <-ctx.Done(); return ctx.Err() }
	deaf := errors.New("deaf")
	_, err = p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: "debian", Force: true}, func(sandbox.BuildEvent) error { return deaf })
	if !errors.Is(err, deaf) {
		t.Errorf("error %v, want %v", err, deaf)
	}
	ctx, cancel := context.WithCancel(t.Context())
	src.enter = func(ctx context.Context, _ *job) error { cancel(); <-ctx.Done(); return ctx.Err() }
	_, err = p.Build(ctx, sandbox.BuildTemplateRequest{Name: "debian", Force: true}, nil)
	wantCode(t, err, sandbox.CodeCancelled)

	// An unsafe archive and a panic-free clean-up.
	src.enter = func(_ context.Context, j *job) error { return j.tree.put("../x", root, "") }
	_, err = p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: "debian", Force: true}, nil)
	wantCode(t, err, sandbox.CodeInvalid)
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	entries, _ := os.ReadDir(filepath.Join(p.dir, "rootfs"))
	if len(entries) != 1 {
		t.Errorf("roots: %v, want the first build's only", entries)
	}
}

func TestOneBuildAtATime(t *testing.T) {
	p, src := withHandmade(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	src.enter = func(context.Context, *job) error { close(inside); <-leave; return nil }
	done := make(chan error)
	go func() {
		_, err := p.Build(context.Background(), sandbox.BuildTemplateRequest{Name: "debian"}, nil)
		done <- err
	}()
	<-inside
	_, err := p.Build(t.Context(), sandbox.BuildTemplateRequest{Name: "debian"}, nil)
	wantCode(t, err, sandbox.CodeConflict)
	if tm, err := p.Get(t.Context(), "debian"); err != nil || tm.State != sandbox.TemplateBuilding {
		t.Errorf("meanwhile: %+v, %v", tm, err)
	}
	// A second process on the same directory leaves the build alone.
	if _, err := New(Config{Dir: p.dir, Log: p.log}); err != nil {
		t.Fatal(err)
	}
	if len(leftovers(p)) != 1 {
		t.Errorf("the running build's directory: %v", leftovers(p))
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCrashedBuildsAreSwept(t *testing.T) {
	p, _ := withHandmade(t)
	left := filepath.Join(p.dir, "tmp", "debian-123", "rootfs", "closed")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(left, 0o500); err != nil {
		t.Fatal(err)
	}
	// A scratch name that points elsewhere is not followed.
	if err := os.WriteFile(filepath.Join(p.dir, "manifests", ".new-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "manifests", "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	if _, err := p2.List(t.Context()); err != nil {
		t.Errorf("list with a broken manifest: %v", err)
	}
	if err := removeScratch("/etc"); err == nil {
		t.Error("a directory other than a scratch directory was removed")
	}
}
