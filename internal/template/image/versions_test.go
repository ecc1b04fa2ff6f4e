package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// layerOf returns a layer with these files; a file without content is removed.
func layerOf(t *testing.T, files map[string]string) func(context.Context) (io.ReadCloser, error) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if content == "" {
			dir, base := filepath.Split(name)
			name = dir + ".wh." + base
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
}

// extended builds a base and a layer above it.
func extended(t *testing.T, p *Provider, spec *sandbox.TemplateSpec, key string, files map[string]string) *Foundation {
	t.Helper()
	b, err := p.Base(t.Context(), &Plan{Spec: *spec}, func(string, float64, string) {})
	if err != nil {
		t.Fatal(err)
	}
	next, err := p.Extend(t.Context(), b, key, layerOf(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func TestExtendAndPublish(t *testing.T) {
	p, src := withHandmade(t)
	spec := &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Debian: suite}, Apt: []string{"jq"}, Env: map[string]string{"A": "b"}, Ports: []int{80},
		Start: &sandbox.StartCommand{Command: "serve"}, Warm: map[string]string{"python": "1"}, Resources: sandbox.Resources{VCPUs: 2},
		Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, User: "app", WorkDir: "/app",
	}
	base, err := p.Base(t.Context(), &Plan{Spec: *spec}, func(string, float64, string) {})
	if err != nil {
		t.Fatalf("%+v, %v", base, err)
	}
	key := ChainKey(base.Root, "a step")
	if p.Extended(base, key) != nil || p.Extended(base, "../x") != nil {
		t.Error("files appeared that no build has made")
	}
	next := extended(t, p, spec, key, map[string]string{"etc/new": "new", "etc/content": ""})
	if src.builds != 1 {
		t.Errorf("%d builds of one base", src.builds)
	}
	if b, err := os.ReadFile(filepath.Join(next.Root.Dir, "etc/new")); err != nil || string(b) != "new" {
		t.Errorf("the layer's file: %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(next.Root.Dir, "etc/content")); err == nil {
		t.Error("a file that the layer removes is there")
	}
	if _, err := os.Stat(filepath.Join(base.Root.Dir, "etc/content")); err != nil {
		t.Errorf("the base has changed: %v", err)
	}
	if again := p.Extended(base, key); again == nil || again.Root.Digest != next.Root.Digest {
		t.Errorf("kept %+v, want %s", again, next.Root.Digest)
	}
	got, err := p.Publish("mine", spec, next)
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.Template{
		Name: "mine", Source: "debian", State: sandbox.TemplateReady, Version: 1, Digest: next.Root.Digest, SizeBytes: got.SizeBytes, BuiltAt: got.BuiltAt,
		User: "app", WorkDir: "/app", Env: map[string]string{"A": "b", "LANG": "C.UTF-8", "PATH": baseEnv["PATH"], "PIP_BREAK_SYSTEM_PACKAGES": "1"},
		Packages: []string{"ca-certificates", "jq", "sudo"}, Resources: spec.Resources, Warm: spec.Warm, Start: spec.Start, Ports: spec.Ports, Network: spec.Network,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The next process finds all of it, including what it was made from.
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	want.Versions = []int{1} // set by Get
	if again, err := p2.Get(t.Context(), "mine"); err != nil || cmp.Diff(want, again) != "" {
		t.Errorf("read again: %v %s", err, cmp.Diff(want, again))
	}
	plan, err := p2.Plan(t.Context(), sandbox.BuildTemplateRequest{Name: "mine", Force: true})
	if err != nil || !plan.Anew || cmp.Diff(*spec, plan.Spec) != "" {
		t.Errorf("a rebuild by name: %+v, %v", plan, err)
	}
	other := *spec
	other.Ports = nil
	_, err = p2.Plan(t.Context(), sandbox.BuildTemplateRequest{Name: "mine", Spec: &other})
	wantCode(t, err, sandbox.CodeConflict)
	plan, err = p2.Plan(t.Context(), sandbox.BuildTemplateRequest{Name: "mine", Spec: &other, Force: true})
	if err != nil || plan.Anew || plan.Ready != nil {
		t.Errorf("something else by that name: %+v, %v", plan, err)
	}

	// A layer that cannot be read leaves nothing.
	broken := errors.New("broken")
	_, err = p.Extend(t.Context(), base, key, func(context.Context) (io.ReadCloser, error) { return nil, broken })
	if !errors.Is(err, broken) || len(leftovers(p)) > 0 {
		t.Errorf("%v, left %v", err, leftovers(p))
	}
	if _, err = p.Extend(t.Context(), base, "", layerOf(t, map[string]string{"../x": "x"})); err == nil || len(leftovers(p)) > 0 {
		t.Errorf("a layer that climbs: %v, left %v", err, leftovers(p))
	}
	other.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	if got, err := p.Publish("opened", &other, next); err != nil || cmp.Diff(other.BuildNetwork, got.BuildNetwork) != "" {
		t.Errorf("a build with a network of its own: %+v, %v", got, err)
	}
}

func TestVersionsAndAliases(t *testing.T) {
	p, src := withHandmade(t)
	ctx := t.Context()
	var digests []string
	for i := range keptVersions + 3 {
		src.content = string(rune('a' + i))
		digests = append(digests, build(t, p, sandbox.BuildTemplateRequest{Name: "mine", Packages: []string{"jq"}, Force: true}).Digest)
		if i == 0 {
			if err := p.Alias("first", "mine@1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	newest := len(digests)
	wantDigest := func(ref, want string) {
		t.Helper()
		root, _, err := p.Root(ctx, ref)
		tm, err2 := p.Get(ctx, ref)
		if err := errors.Join(err, err2); err != nil || root.Digest != want || tm.Digest != want {
			t.Errorf("%s: %v, %s, want %s", ref, err, root.Digest, want)
		}
	}
	wantNone := func(ref string) {
		t.Helper()
		_, _, err := p.Root(ctx, ref)
		wantCode(t, err, sandbox.CodeNotFound)
		_, err = p.Get(ctx, ref)
		wantCode(t, err, sandbox.CodeNotFound)
	}
	wantDigest("mine", digests[newest-1])
	wantDigest("mine@12", digests[11])
	wantDigest("mine@1", digests[0]) // old, but it has an alias
	wantDigest("first", digests[0])
	wantNone("mine@2")
	wantNone("mine@99")
	for _, ref := range []string{"mine@", "mine@0", "mine@-1", "mine@01", "mine@x", "first@1"} {
		_, _, err := p.Root(ctx, ref)
		wantCode(t, err, sandbox.CodeInvalid)
	}

	// An alias cannot be a template's name, or vice versa.
	wantCode(t, p.Alias("mine", "debian"), sandbox.CodeConflict)
	wantCode(t, p.Alias("host", "mine"), sandbox.CodeConflict)
	wantCode(t, p.Alias("x", "none"), sandbox.CodeNotFound)
	wantCode(t, p.Alias("x", "mine@99"), sandbox.CodeNotFound)
	wantCode(t, p.Alias("../x", "mine"), sandbox.CodeInvalid)
	wantCode(t, p.Alias("none", ""), sandbox.CodeNotFound)
	_, err := p.Claim("first", sandbox.Resources{})
	wantCode(t, err, sandbox.CodeConflict)
	wantCode(t, p.Delete("first"), sandbox.CodeInvalid)
	if err := p.Alias("latest", "mine"); err != nil {
		t.Fatal(err)
	}
	wantDigest("latest", digests[newest-1])
	wantDigest("latest@12", digests[11])
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	if tm, err := p2.Get(ctx, "mine"); err != nil || !slices.Equal(tm.Aliases, []string{"first", "latest"}) || tm.Version != newest || tm.Versions[0] != newest || !slices.Contains(tm.Versions, 1) {
		t.Errorf("after a restart %+v, %v", tm, err)
	}

	// The second newest replaces the newest, whose number is not reused.
	if err := p.Delete("mine@13"); err != nil {
		t.Fatal(err)
	}
	wantDigest("mine", digests[11])
	wantNone("mine@13")
	wantCode(t, p.Delete("mine@13"), sandbox.CodeNotFound)
	src.content = "again"
	if tm := build(t, p, sandbox.BuildTemplateRequest{Name: "mine", Force: true}); tm.Version != 14 {
		t.Errorf("version %d after 13 was deleted", tm.Version)
	}
	if err := p.Delete("mine@1"); err != nil {
		t.Fatal(err)
	}
	wantNone("first")
	done, err := p.Claim("mine", sandbox.Resources{})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, p.Delete("mine"), sandbox.CodeConflict)
	done(nil)
	if err := p.Delete("mine"); err != nil {
		t.Fatal(err)
	}
	wantNone("mine")
	wantNone("latest")
	wantCode(t, p.Delete("mine"), sandbox.CodeNotFound)
	wantCode(t, p.Delete("host"), sandbox.CodeInvalid)
	if left, _ := filepath.Glob(filepath.Join(p.dir, "manifests", "mine*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}

	// What sandboxes use and what the next build may use is kept; the rest is removed.
	for d := range p.used {
		p.used[d] = time.Now().Add(-time.Hour)
	}
	old := time.Now().Add(-2 * cacheMaxAge)
	kept, _ := filepath.Glob(filepath.Join(p.dir, "cache", "*.json"))
	for _, f := range kept {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := p.Collect(map[string]bool{digests[0]: true})
	if err != nil || slices.Contains(removed, digests[0]) || !slices.Contains(removed, digests[12]) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(p.rootfsDir(digests[0])); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.dir, "cache", "*.json")); len(left) > 0 {
		t.Errorf("kept for builds although old: %v", left)
	}
}

// TestAliasesAreBounded gives a template all the names that there can be.
func TestAliasesAreBounded(t *testing.T) {
	p, _ := withHandmade(t)
	p.mu.Lock()
	full := map[string]string{}
	for i := range sandbox.MaxTemplateAliases - 1 {
		full[fmt.Sprint("a", i)] = Host
	}
	err := p.keepAliases(full)
	p.mu.Unlock()
	if err := errors.Join(err, p.Alias("last", Host)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, p.Alias("more", Host), sandbox.CodeQuotaExceeded)
	// An existing alias can be moved, or removed to make room for another.
	if err := errors.Join(p.Alias("last", "debian"), p.Alias("a0", ""), p.Alias("more", Host)); err != nil {
		t.Error(err)
	}
	wantCode(t, p.Alias("a0", Host), sandbox.CodeQuotaExceeded)
	// The next process finds all of them.
	p2, err := New(Config{Dir: p.dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, p2.Alias("a0", Host), sandbox.CodeQuotaExceeded)
}

// TestReasonOfEarlierBuild checks that the failure of an earlier build is not reported
// while the next one runs.
func TestReasonOfEarlierBuild(t *testing.T) {
	p := newProvider(t, "")
	again := func() func(error) {
		done, err := p.Claim("x", sandbox.Resources{})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	ready := sandbox.Template{Name: "x", State: sandbox.TemplateReady}
	again()(sandbox.Errorf(sandbox.CodeInvalid, "it is of no use"))
	if got := p.status(ready).Reason; got == "" {
		t.Error("a failed build has no reason")
	}
	done := again()
	if got := p.status(ready).Reason; got != "" {
		t.Errorf("built again: %s", got)
	}
	done(nil)
}

// TestShapeOfUnbuilt checks that a template without a version has the requested shape,
// while it is built and after the build has failed.
func TestShapeOfUnbuilt(t *testing.T) {
	p := newProvider(t, "")
	shape := sandbox.Resources{VCPUs: 4, MemoryMiB: 2048}
	done, err := p.Claim("new", shape)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []sandbox.TemplateState{sandbox.TemplateBuilding, sandbox.TemplateFailed} {
		if got, err := p.Get(t.Context(), "new"); err != nil || got.State != state || got.Resources != shape {
			t.Errorf("%s: %+v, %v", state, got, err)
		}
		done(sandbox.Errorf(sandbox.CodeInvalid, "it is of no use"))
	}
	if err := p.Delete("new"); err != nil || len(p.shapes) > 0 {
		t.Errorf("%v; left %v", err, p.shapes)
	}
}

// TestImageInPlaceOfATemplate checks that the error for an image named in place of a
// template says how to make one from the other.
func TestImageInPlaceOfATemplate(t *testing.T) {
	p := newProvider(t, "")
	for ref, want := range map[string]string{
		"python:3.12-slim":                    "'cove template build python-3-12-slim --image python:3.12-slim'",
		"ghcr.io/Org/App@sha256:0123456789ab": "'cove template build app --image ghcr.io/Org/App@sha256:0123456789ab'",
		"a/_":                                 "'cove template build NAME --image a/_'",
		"no-such":                             "use one of",
		"x:\ny":                               "use one of",
	} {
		_, getErr := p.Get(t.Context(), ref)
		_, _, rootErr := p.Root(t.Context(), ref)
		for _, err := range []error{getErr, rootErr} {
			if sandbox.CodeOf(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, want %s", ref, err, want)
			}
		}
	}
}
