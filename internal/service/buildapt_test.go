package service

import (
	"slices"
	"testing"

	"github.com/cove-sh/cove/internal/image"
	"github.com/cove-sh/cove/sandbox"
)

// TestAptAboveDebian checks that packages are a step above the Debian that all
// share, without those that it has, and that this step is most of the build.
func TestAptAboveDebian(t *testing.T) {
	w := newWorld(t)
	debian := &image.Foundation{Template: sandbox.Template{Packages: []string{"sudo"}}}
	spec := steps("make")
	spec.Apt = []string{"jq", "sudo"}
	var titles []string
	planned := w.buildSteps(spec, debian)
	for _, s := range planned {
		titles = append(titles, s.title)
	}
	if want := []string{"apt: jq", "run: make"}; !slices.Equal(titles, want) {
		t.Errorf("steps %q, want %q", titles, want)
	}
	shares := stepShares(planned)
	if len(shares) != 3 || shares[0] != baseShare || shares[1]-shares[0] < 0.4 || shares[2] < 0.89 || shares[2] > 0.91 {
		t.Errorf("the steps begin at %v", shares)
	}
	spec.Apt = []string{"sudo"}
	if planned = w.buildSteps(spec, debian); len(planned) != 1 {
		t.Errorf("%d steps for what Debian has", len(planned))
	}
	spec.From = sandbox.TemplateSource{Template: "ours"}
	if planned = w.buildSteps(spec, debian); len(planned) != 2 {
		t.Errorf("%d steps above a template whose steps may have removed it", len(planned))
	}
}
