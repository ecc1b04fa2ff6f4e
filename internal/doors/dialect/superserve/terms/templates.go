package terms

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// Curated is the prefix of the names of the product's own templates.
	Curated = "superserve/"
	// BaseTemplate is the default template.
	BaseTemplate = Curated + "base"
)

// standIns are the server's templates that stand in for the product's own, in listing
// order.
var standIns = []struct{ name, template string }{
	{Curated + "code-interpreter", "code-interpreter"},
	{Curated + "python-3.11", "code-interpreter"}, // Debian 12 has this version
	{Curated + "python-ml", "code-interpreter"},
	{Curated + "node-22", "node"},
}

// TemplateName returns the service's name of a template; "" is the default.
func TemplateName(name string) string {
	if name == BaseTemplate {
		return ""
	}
	for _, s := range standIns {
		if s.name == name {
			return s.template
		}
	}
	return strings.TrimPrefix(name, Curated)
}

// Templates returns the templates that clients see: the product's own first, then the
// server's, without those that are only defined, which no client can build.
func Templates(all []sandbox.Template) []sandbox.Template {
	out := []sandbox.Template{{Name: BaseTemplate, State: sandbox.TemplateReady}}
	for _, s := range standIns {
		for _, t := range all {
			if t.Name == s.template && t.State != sandbox.TemplateAvailable {
				t.Name = s.name
				out = append(out, t)
			}
		}
	}
	for _, t := range all {
		if t.State != sandbox.TemplateAvailable {
			out = append(out, t)
		}
	}
	return out
}

// Shape returns the resources of a template's sandboxes.
func Shape(r sandbox.Resources) sandbox.Resources {
	return sandbox.Resources{
		VCPUs:     cmp.Or(r.VCPUs, sandbox.DefaultVCPUs),
		MemoryMiB: cmp.Or(r.MemoryMiB, sandbox.DefaultMemoryMiB),
		DiskMiB:   cmp.Or(r.DiskMiB, sandbox.DefaultDiskMiB),
	}
}

// maxBuilds bounds the concurrent builds, since clients do not wait for builds.
const maxBuilds = 5

// CheckBuild refuses a build under an existing name, as a conflict, and one in addition to
// too many others, as an exceeded quota. again reports whether the name has earlier
// versions.
func CheckBuild(ctx context.Context, svc sandbox.Service, name string) (again bool, err error) {
	list, err := sandbox.All(ctx, svc.ListTemplates)
	if err != nil {
		return false, err
	}
	builds := 0
	for _, t := range list {
		if t.State == sandbox.TemplateBuilding {
			builds++
		}
		if t.Name != name {
			continue
		}
		if again = t.Version > 0; t.State != sandbox.TemplateFailed {
			return again, sandbox.Errorf(sandbox.CodeConflict, "there is a template %s already, choose another name", name)
		}
	}
	if builds >= maxBuilds {
		return again, sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d templates are being built", builds)
	}
	return again, nil
}

// Recipe is a template as the product describes it.
type Recipe struct {
	From         string
	Steps        []Step
	Start, Ready string
	Resources    sandbox.Resources
}

// debianNames are the images that the service builds itself.
var debianNames = []string{"debian", "debian:12", "debian:bookworm", "debian:12-slim", "debian:bookworm-slim"}

// readyPatience is how long the product retries a ready command.
const readyPatience = 10 * time.Minute

// Spec returns the template as the product would build it. Its steps and start command run
// as root unless a step says otherwise, with an open network.
func (r *Recipe) Spec() (*sandbox.TemplateSpec, error) {
	s := &sandbox.TemplateSpec{Resources: r.Resources}
	steps := r.Steps
	if slices.Contains(debianNames, r.From) {
		s.From.Debian = "bookworm"
		for len(steps) > 0 {
			names, ok := installs(steps[0].Run)
			if !ok {
				break
			}
			s.Apt, steps = append(s.Apt, names...), steps[1:]
		}
		slices.Sort(s.Apt)
		s.Apt = slices.Compact(s.Apt)
	} else {
		s.From.Image = r.From
	}
	if r.Start != "" {
		s.Start, s.User = &sandbox.StartCommand{Command: r.Start, Ready: r.Ready, TimeoutMS: readyPatience.Milliseconds()}, root
	}
	if err := addSteps(s, steps); err != nil {
		return nil, err
	}
	if len(s.Run) > 0 {
		s.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	}
	return s, nil
}

// installs returns the packages that a command installs. ok is false if the command does
// anything else.
func installs(step string) (packages []string, ok bool) {
	if step == "" {
		return nil, false
	}
	for command := range strings.SplitSeq(step, "&&") {
		words := strings.Fields(command)
		if len(words) > 0 && words[0] == "sudo" {
			words = words[1:]
		}
		if len(words) < 2 || words[0] != "apt-get" && words[0] != "apt" {
			return nil, false
		}
		verb := ""
		for _, word := range words[1:] {
			switch {
			case slices.Contains([]string{"-y", "--yes", "-q", "-qq", "-yq", "-yqq", "--no-install-recommends"}, word):
			case verb == "" && (word == "update" || word == "install"):
				verb = word
			case verb == "install" && packageName(word):
				packages = append(packages, word)
			default:
				return nil, false
			}
		}
		if verb == "" {
			return nil, false
		}
	}
	return packages, true
}

// packageName reports whether s can be the name of a Debian package. The service checks it
// again.
func packageName(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.+-") == "" && strings.Trim(s[:1], "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
