package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// ageCache makes the cached roots too old to keep.
func ageCache(t *testing.T, p *Provider) {
	t.Helper()
	old := time.Now().Add(-2 * cacheMaxAge)
	kept, _ := filepath.Glob(filepath.Join(p.dir, "cache", "*.json"))
	for _, f := range kept {
		if err := os.Chtimes(f, old, old); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}

// there reports which of these roots are on the disk.
func there(p *Provider, digests ...string) (out []bool) {
	for _, d := range digests {
		_, err := os.Stat(p.rootfsDir(d))
		out = append(out, err == nil)
	}
	return out
}

// TestCollectWhileBuilding collects in the middle of a build: old versions are removed, and
// what the build was handed out stays until it ends, whatever happens to the records.
func TestCollectWhileBuilding(t *testing.T) {
	p, src := withHandmade(t)
	p.recent = 0
	collect := func() {
		t.Helper()
		ageCache(t, p)
		if _, err := p.Collect(nil); err != nil {
			t.Fatal(err)
		}
	}
	old := build(t, p, sandbox.BuildTemplateRequest{Name: "old", Packages: []string{"jq"}}).Digest
	src.content = "two "
	from := build(t, p, sandbox.BuildTemplateRequest{Name: "from", Packages: []string{"jq"}, Force: true}).Digest
	if err := p.Delete("old"); err != nil {
		t.Fatal(err)
	}

	done, err := p.Claim("mine", sandbox.Resources{})
	if err != nil {
		t.Fatal(err)
	}
	spec := &sandbox.TemplateSpec{From: sandbox.TemplateSource{Template: "from"}}
	base, err := p.Base(t.Context(), &Plan{Spec: *spec}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Delete("from"); err != nil {
		t.Fatal(err)
	}
	collect()
	if got := there(p, old, from); got[0] || !got[1] {
		t.Fatalf("in the middle of a build there are %v", got)
	}
	// A second build is younger, and continues after the first ends.
	young, err := p.Claim("young", sandbox.Resources{})
	if err != nil {
		t.Fatal(err)
	}
	key := ChainKey(base.Root, "step")
	step, err := p.Extend(t.Context(), base, key, layerOf(t, map[string]string{"etc/step": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	kept := p.Extended(base, key)
	collect()
	if p.Extended(base, key) != nil {
		t.Error("a step is kept for builds although it is old")
	}
	last, err := p.Extend(t.Context(), kept, "", layerOf(t, map[string]string{"etc/last": "2"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish("mine", spec, last); err != nil {
		t.Fatal(err)
	}
	done(nil)
	collect()
	// What was handed out before the younger build began is gone; Extend has requested its
	// base again.
	if got := there(p, from, step.Root.Digest, last.Root.Digest); !got[0] || !got[1] || !got[2] {
		t.Errorf("as a younger build goes on there are %v", got)
	}
	if layers, _ := os.ReadDir(p.layers.dir); len(layers) != 2 {
		t.Errorf("as a younger build goes on there are layers %v", layers)
	}
	young(nil)
	collect()
	if got := there(p, from, step.Root.Digest, last.Root.Digest); got[0] || got[1] || !got[2] {
		t.Errorf("without a build there are %v", got)
	}
	if layers, _ := os.ReadDir(p.layers.dir); len(layers) > 0 {
		t.Errorf("without a build there are layers %v", layers)
	}
	if err := p.hold(from); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is gone is held: %v", err)
	}
	// The root of a snapshot may be gone.
	if _, err := p.Extend(t.Context(), base, "", layerOf(t, map[string]string{"etc/more": "3"})); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a base that is gone: %v", err)
	}
}

// TestBuildsBesideCollect runs builds that share their steps beside a collector that treats
// nothing as recent or as worth caching.
func TestBuildsBesideCollect(t *testing.T) {
	p, _ := withHandmade(t)
	p.recent = 0
	const builders, rounds = 3, 6
	var building, collecting sync.WaitGroup
	ended := make(chan struct{})
	removed := map[string]bool{}
	collecting.Go(func() {
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			default:
			}
			ageCache(t, p)
			got, err := p.Collect(nil)
			if err != nil {
				t.Errorf("collect: %v", err)
			}
			for _, d := range got {
				removed[d] = true
			}
		}
	})
	for b := range builders {
		building.Go(func() {
			for r := range rounds {
				name := fmt.Sprint("t", b)
				if err := buildBeside(t, p, name, r); err != nil {
					t.Errorf("build %d of %s: %v", r, name, err)
					return
				}
				if r%2 == 1 {
					if err := p.Delete(name); err != nil {
						t.Errorf("delete %s: %v", name, err)
					}
				}
			}
		})
	}
	building.Wait()
	close(ended)
	collecting.Wait()
	if len(removed) == 0 {
		t.Error("nothing was collected")
	}
	entries, err := os.ReadDir(filepath.Join(p.dir, "rootfs"))
	if err != nil || len(entries) > 0 {
		t.Errorf("all templates are deleted, but there are %v, %v", entries, err)
	}
	if layers, _ := os.ReadDir(p.layers.dir); len(layers) > 0 {
		t.Errorf("all templates are deleted, but there are layers %v", layers)
	}
}

// buildBeside builds a template from steps that others share, and checks all of their
// results after it is published.
func buildBeside(t *testing.T, p *Provider, name string, round int) error {
	done, err := p.Claim(name, sandbox.Resources{})
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	spec := &sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: suite}}
	f, err := p.Base(t.Context(), &Plan{Spec: *spec}, func(string, float64, string) {})
	if err != nil {
		return err
	}
	roots, files := []string{f.Root.Dir}, []string{"etc/content"}
	for i := range 3 {
		file := fmt.Sprintf("etc/step-%d-%d", round/2, i)
		key := ChainKey(f.Root, file)
		next := p.Extended(f, key)
		if next == nil {
			if next, err = p.Extend(t.Context(), f, key, layerOf(t, map[string]string{file: file})); err != nil {
				return err
			}
		}
		f = next
		roots, files = append(roots, f.Root.Dir), append(files, file)
	}
	if _, err = p.Publish(name, spec, f); err != nil {
		return err
	}
	for i, dir := range roots {
		for _, file := range files[:i+1] {
			if _, err = os.Stat(filepath.Join(dir, file)); err != nil {
				return err
			}
		}
	}
	return nil
}
