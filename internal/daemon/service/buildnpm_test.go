package service

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

// Commands of a template use the registry of the machine's own npm, as an npm step
// does, with the default network of builds. The template's own settings are not
// changed.
func TestNPMOfTheMachine(t *testing.T) {
	w := newHarness(t)
	w.templates.NPM = image.NPMSettings{Registry: "http://127.0.0.1:4873/", Authorities: []byte("an authority\n")}
	const show = `echo "asks $npm_config_registry"; cat "$NODE_EXTRA_CA_CERTS"`
	own := steps(show)
	own.Env = map[string]string{"npm_config_registry": "https://npm.example.com", "NODE_EXTRA_CA_CERTS": "/dev/null"}
	loud := steps(`echo "asks $npm_config_registry and $NPM_CONFIG_REGISTRY"`) // npm takes both
	loud.Env = map[string]string{"NPM_CONFIG_REGISTRY": "https://npm.example.com"}
	for want, spec := range map[string]*sandbox.TemplateSpec{
		"asks http://127.0.0.1:4873/\nan authority\n": steps(show),
		"asks https://npm.example.com\n":              own,
		"asks  and https://npm.example.com\n":         loud,
	} {
		b, log, _ := w.follow(w.beginBuild(sandbox.BuildTemplateRequest{Name: "asking", Spec: spec, Force: true}).ID)
		if b.State != sandbox.BuildReady || !strings.Contains(log, want) || strings.Contains(log, "authority") != strings.Contains(want, "authority") {
			t.Errorf("%+v says %q, want %q", b, log, want)
		}
	}
}
