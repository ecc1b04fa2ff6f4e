package builds

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// steps returns a spec with these commands.
func steps(run ...string) *sandbox.TemplateSpec {
	s := &sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: "bookworm"}}
	for _, r := range run {
		s.Run = append(s.Run, sandbox.TemplateStep{Run: r})
	}
	return s
}

// planner returns a builder that plans steps but runs none.
func planner(t *testing.T) (*Builder, *faketemplates.Provider) {
	templates := faketemplates.New(t.TempDir())
	return New(Config{Templates: templates, Dir: t.TempDir()}), templates
}

// TestAptAboveDebian checks that packages are a step on top of the shared Debian root,
// without packages that this root has, and that the step is most of the build.
func TestAptAboveDebian(t *testing.T) {
	x, _ := planner(t)
	debian := &image.Foundation{Template: sandbox.Template{Packages: []string{"sudo"}}}
	spec := steps("make")
	spec.Apt = []string{"jq", "sudo"}
	var titles []string
	planned := x.buildSteps(spec, debian)
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
	if planned = x.buildSteps(spec, debian); len(planned) != 1 {
		t.Errorf("%d steps for what Debian has", len(planned))
	}
	spec.From = sandbox.TemplateSource{Template: "ours"}
	if planned = x.buildSteps(spec, debian); len(planned) != 2 {
		t.Errorf("%d steps above a template whose steps may have removed it", len(planned))
	}
}

// By default, steps can reach the registry of the machine's own npm. A policy that the
// template sets is not changed.
func TestNPMNetwork(t *testing.T) {
	x, templates := planner(t)
	templates.NPM = image.NPMSettings{Registry: "http://127.0.0.1:4873/"}
	registry := []sandbox.NetworkRule{{Action: sandbox.NetworkAllow, To: "127.0.0.1", Protocol: "tcp", Ports: []string{"4873"}}}
	base := &image.Foundation{}
	if got := x.buildSteps(steps("true"), base)[0].network; !cmp.Equal(registry, got.Rules[:1]) || got.Preset != sandbox.NetworkPackages {
		t.Errorf("a command reaches %+v", got)
	}
	closed := steps("true")
	closed.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	if got := x.buildSteps(closed, base)[0].network; len(got.Rules) > 0 || got.Preset != sandbox.NetworkNone {
		t.Errorf("a command of a template without a network reaches %+v", got)
	}
}

// Templates that install the same packages share these steps, whatever their
// environments, unless these have settings of npm.
func TestInstallStepsShared(t *testing.T) {
	x, _ := planner(t)
	keys := func(env map[string]string) []any {
		spec := &sandbox.TemplateSpec{Apt: []string{"jq"}, Pip: []string{"flask"}, NPM: []string{"vite"}, Env: env}
		var keys []any
		for _, s := range x.buildSteps(spec, &image.Foundation{}) {
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

// TestBuildLogBounded runs a step that writes more than the log keeps.
func TestBuildLogBounded(t *testing.T) {
	x, _ := planner(t)
	l, err := x.newBuildLog("bld-long")
	if err != nil {
		t.Fatal(err)
	}
	for range maxBuildLog/(64<<10) + 8 {
		l.add(sandbox.BuildEvent{Step: "1/1", Log: strings.Repeat("x", 64<<10)})
	}
	l.add(sandbox.BuildEvent{Step: "ready", Template: &sandbox.Template{Name: "x"}})
	l.end()
	last, note, total := sandbox.BuildEvent{}, false, 0
	if err := x.followLog(t.Context(), "bld-long", l, func(e sandbox.BuildEvent) error {
		last, total = e, total+len(e.Log)
		note = note || strings.Contains(e.Log, "the log is full")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if last.Template == nil || !note || total > maxBuildLog+1<<20 {
		t.Errorf("%d bytes, note %v, last %+v", total, note, last)
	}
}

// TestBuildResources checks that the sandbox of a build is no larger than what there is, even
// if the spec is a definition's.
func TestBuildResources(t *testing.T) {
	x := &Builder{cfg: Config{Capacity: validate.Capacity{Placed: true, Largest: func() sandbox.Resources {
		return sandbox.Resources{VCPUs: 1, MemoryMiB: 512}
	}}}}
	spec := &sandbox.TemplateSpec{Resources: sandbox.Resources{VCPUs: 2, DiskMiB: 9000}}
	got := x.buildResources(spec, &sandbox.Template{Resources: sandbox.Resources{VCPUs: 3, MemoryMiB: 2048, MaxPIDs: 70}})
	if want := (sandbox.Resources{VCPUs: 1, MemoryMiB: 512, DiskMiB: 9000, MaxPIDs: 70}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
