package terms

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// TestSpecOfAllSteps checks that a step sees the settings of earlier steps, and not those
// of later ones, although the service applies variables and the directory to the whole
// template.
func TestSpecOfAllSteps(t *testing.T) {
	r := Recipe{From: "python:3.11", Start: "serve", Ready: "true", Steps: []Step{
		{Run: "one"},
		{Env: &StepEnv{"A", "1"}},
		{WorkDir: "/srv"},
		{Run: "two"},
		{User: &StepUser{Name: "app"}},
		{WorkDir: "it's here"},
		{Env: &StepEnv{"A", "2"}},
		{Env: &StepEnv{"PATH", "/opt/bin:/bin"}},
		{Run: "three"},
	}}
	got, err := r.Spec()
	if err != nil {
		t.Fatal(err)
	}
	made := got.Run[3].Run
	if !strings.Contains(made, "useradd -m -s /bin/sh app") {
		t.Errorf("the user is made by %q", made)
	}
	want := &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Image: "python:3.11"},
		Run: []sandbox.TemplateStep{
			{Run: "unset A\none", WorkDir: "/"},
			{Run: "mkdir -p '/srv' && chown root '/srv'", WorkDir: "/"},
			{Run: "two", WorkDir: "/srv", Env: map[string]string{"A": "1"}},
			{Run: made, WorkDir: "/"},
			{Run: `mkdir -p '/srv/it'\''s here' && chown app '/srv/it'\''s here'`, WorkDir: "/"},
			{Run: "three", WorkDir: "/srv/it's here", User: "app", Env: map[string]string{"A": "2", "PATH": "/opt/bin:/bin"}},
		},
		Env: map[string]string{"A": "2", "PATH": "/opt/bin:/bin"}, WorkDir: "/srv/it's here", User: "app",
		Start:        &sandbox.StartCommand{Command: "serve", Ready: "true", TimeoutMS: 600_000},
		BuildNetwork: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSpecRefusesSteps(t *testing.T) {
	for name, step := range map[string]Step{
		"nothing":                 {},
		"a variable that is none": {Env: &StepEnv{Key: "A=B"}},
		"a user that is a script": {User: &StepUser{Name: "a;id"}},
		"a directory of lines":    {WorkDir: "/a\nb"},
		"a directory too deep":    {WorkDir: strings.Repeat("/a", sandbox.MaxPathBytes)},
	} {
		r := Recipe{From: "x", Steps: []Step{step}}
		if _, err := r.Spec(); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "steps[0]") {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := Recipe{From: "x", Steps: slices.Repeat([]Step{{Env: &StepEnv{Key: "A"}}}, sandbox.MaxTemplateSteps+1)}
	if _, err := many.Spec(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("many steps: %v", err)
	}
}

// TestSudo checks that sudo is set up as root, for an existing user.
func TestSudo(t *testing.T) {
	r := Recipe{From: "debian:12", Steps: []Step{{Run: "apt-get install -y curl"}, {User: &StepUser{Name: "dev", Sudo: true}}}}
	got, err := r.Spec()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Apt) != 1 || len(got.Run) != 1 || got.Run[0].User != "" || !strings.Contains(got.Run[0].Run, "dev ALL=(ALL) NOPASSWD: ALL") {
		t.Errorf("got %+v", got)
	}
}
