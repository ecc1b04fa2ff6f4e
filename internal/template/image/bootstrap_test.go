package image

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// TestBootstrapShared builds templates with different packages, which share one Debian.
func TestBootstrapShared(t *testing.T) {
	p, src := withHandmade(t)
	for _, name := range []string{"debian", "base", "node"} {
		build(t, p, sandbox.BuildTemplateRequest{Name: name})
	}
	open := &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	for _, spec := range []sandbox.TemplateSpec{{}, {Apt: []string{"jq"}}, {Apt: []string{"jq=1"}, BuildNetwork: open}} {
		spec.From.Debian = suite
		if _, err := p.Base(t.Context(), &Plan{Spec: spec}, func(string, float64, string) {}); err != nil {
			t.Fatal(err)
		}
	}
	if src.builds != 1 {
		t.Errorf("Debian was made %d times", src.builds)
	}
}

// TestBootstrapAtOnce runs two builds that need a Debian at the same time. They share it,
// both get reports of its progress, and it survives the build that began it.
func TestBootstrapAtOnce(t *testing.T) {
	p, src := withHandmade(t)
	going, goOn := make(chan struct{}), make(chan struct{})
	src.enter = func(ctx context.Context, j *job) error {
		going <- struct{}{}
		select {
		case <-goOn:
			j.report("nearly", 0.9, "")
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	plan := &Plan{Spec: sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: suite}}}
	first, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := p.Base(first, plan, func(string, float64, string) {})
		ended <- err
	}()
	<-going
	var steps []string
	joined := make(chan struct{})
	go func() {
		_, err := p.Base(t.Context(), plan, func(step string, _ float64, _ string) {
			if steps = append(steps, step); len(steps) == 1 {
				close(joined)
			}
		})
		ended <- err
	}()
	<-joined
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the build that was cancelled: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the other build: %v", err)
	}
	if got := strings.Join(steps, ", "); src.builds != 1 || !strings.HasPrefix(got, "half way, nearly") {
		t.Errorf("%d builds, the second was told %q", src.builds, got)
	}

	// When the last caller stops waiting, the work is cancelled.
	second, cancel := context.WithCancel(t.Context())
	goOn = make(chan struct{})
	plan.Anew = true
	go func() {
		_, err := p.Base(second, plan, func(string, float64, string) {})
		ended <- err
	}()
	<-going
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if l := leftovers(p); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

// TestBootstrapAges makes a two-week-old Debian again, or uses it if no newer one can be
// made.
func TestBootstrapAges(t *testing.T) {
	p, src := withHandmade(t)
	plan := &Plan{Spec: sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: suite}}}
	silent := func(string, float64, string) {}
	old, err := p.Base(t.Context(), plan, silent)
	if err != nil {
		t.Fatal(err)
	}
	key := chainKey("debian", suite, basePackages, debianRecipe)
	file, m := p.cacheFile(key), p.cached(key)
	if m == nil {
		t.Fatal("it is not cached")
	}
	m.BuiltAt = time.Now().Add(-14 * 24 * time.Hour)
	data, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	src.content = "two "
	src.enter = func(context.Context, *job) error {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the mirror does not answer")
	}
	var log string
	kept, err := p.Base(t.Context(), plan, func(_ string, _ float64, text string) { log += text })
	if err != nil || kept.Root.Digest != old.Root.Digest || !strings.Contains(log, "the mirror does not answer") {
		t.Errorf("without a mirror: %+v, %v, log %q", kept, err, log)
	}
	src.enter = nil
	if next, err := p.Base(t.Context(), plan, silent); err != nil || next.Root.Digest == old.Root.Digest {
		t.Errorf("with a mirror: %+v, %v", next, err)
	}
}

func TestAptProgress(t *testing.T) {
	var a AptProgress
	for _, c := range []struct {
		text string
		want float64
	}{
		{"Get:1 lists\n0 upgraded, 2 newly installed, 0 to remove\n", 0},
		{"Get:1 a\nGet:2 b\n", 2.0 / 6},
		{"Unpacking a (1) ...\nUnpac", 3.0 / 6},
		{"king b (1) ...\n" + strings.Repeat("x", 1<<20), 4.0 / 6},
		{"\nSetting up a\nSetting up b\nSetting up b again\n", 1},
	} {
		if got := a.Write(c.text); got != c.want {
			t.Errorf("after %.40q: %g, want %g", c.text, got, c.want)
		}
	}
}
