package service

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/image"
	"github.com/cove-sh/cove/sandbox"
)

// Commands of a template find the registry of the machine's own npm, as an npm
// step does, with the network that builds have by default. What the template
// says itself, and a network that it has chosen, stay as they are.
func TestNPMOfTheMachine(t *testing.T) {
	w := newWorld(t)
	w.templates.NPM = image.NPMSettings{Registry: "http://127.0.0.1:4873/", Authorities: []byte("an authority\n")}
	const show = `echo "asks $npm_config_registry"; cat "$NODE_EXTRA_CA_CERTS"`
	own := steps(show)
	own.Env = map[string]string{"npm_config_registry": "https://npm.example.com", "NODE_EXTRA_CA_CERTS": "/dev/null"}
	for want, spec := range map[string]*sandbox.TemplateSpec{
		"asks http://127.0.0.1:4873/\nan authority\n": steps(show),
		"asks https://npm.example.com\n":              own,
	} {
		b, log, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "asking", Spec: spec, Force: true}).ID)
		if b.State != sandbox.BuildReady || !strings.Contains(log, want) || strings.Contains(log, "authority") != strings.Contains(want, "authority") {
			t.Errorf("%+v says %q, want %q", b, log, want)
		}
	}

	registry := []sandbox.NetworkRule{{Action: sandbox.NetworkAllow, To: "127.0.0.1", Protocol: "tcp", Ports: []string{"4873"}}}
	base := &image.Foundation{}
	if got := w.buildSteps(steps("true"), base)[0].network; !cmp.Equal(registry, got.Rules[:1]) || got.Preset != sandbox.NetworkPackages {
		t.Errorf("a command reaches %+v", got)
	}
	closed := steps("true")
	closed.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	if got := w.buildSteps(closed, base)[0].network; len(got.Rules) > 0 || got.Preset != sandbox.NetworkNone {
		t.Errorf("a command of a template without a network reaches %+v", got)
	}
}

// Templates that install the same packages share these steps whatever their
// environments are, unless npm is told something else in them.
func TestInstallStepsShared(t *testing.T) {
	w := newWorld(t)
	keys := func(env map[string]string) []any {
		spec := &sandbox.TemplateSpec{Apt: []string{"jq"}, Pip: []string{"flask"}, NPM: []string{"vite"}, Env: env}
		var keys []any
		for _, s := range w.buildSteps(spec, &image.Foundation{}) {
			keys = append(keys, s.key)
		}
		return keys
	}
	none := keys(nil)
	if other := keys(map[string]string{"NEXT_TELEMETRY_DISABLED": "1"}); !cmp.Equal(none, other) {
		t.Errorf("another environment, other steps: %s", cmp.Diff(none, other))
	}
	if asking := keys(map[string]string{"npm_config_registry": "https://npm.example.com"}); !cmp.Equal(none[:2], asking[:2]) || cmp.Equal(none[2], asking[2]) {
		t.Errorf("another registry, steps %v", asking)
	}
}
