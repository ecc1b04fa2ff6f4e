package superserve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// curated is the prefix of the names of the product's own templates.
	curated = "superserve/"
	// baseTemplate is the default template.
	baseTemplate = curated + "base"
)

// standIns are the server's templates in place of the product's own, in the order
// in which they are listed.
var standIns = []struct{ name, template string }{
	{curated + "code-interpreter", "code-interpreter"},
	{curated + "python-3.11", "code-interpreter"}, // Debian 12 has this version
	{curated + "python-ml", "code-interpreter"},
	{curated + "node-22", "node"},
}

// templateName is the service's name of a template; empty is the default.
func templateName(name string) string {
	if name == baseTemplate {
		return ""
	}
	for _, s := range standIns {
		if s.name == name {
			return s.template
		}
	}
	return strings.TrimPrefix(name, curated)
}

// template is a template in a result.
type template struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	VCPUs     int    `json:"vcpu"`
	MemoryMiB int64  `json:"memoryMib"`
	DiskMiB   int64  `json:"diskMib"`
}

func templateOf(name string, state sandbox.TemplateState, r sandbox.Resources) template {
	return template{
		ID: name, Name: name, Status: string(state),
		VCPUs:     cmp.Or(r.VCPUs, sandbox.DefaultVCPUs),
		MemoryMiB: cmp.Or(r.MemoryMiB, sandbox.DefaultMemoryMiB),
		DiskMiB:   cmp.Or(r.DiskMiB, sandbox.DefaultDiskMiB),
	}
}

type templateListArgs struct {
	Prefix string `json:"name_prefix"`
}

func listTemplates(ctx context.Context, c *dialect.Call, in templateListArgs) (*mcp.CallToolResult, error) {
	list, err := sandbox.All(ctx, c.Service.ListTemplates)
	if err != nil {
		return nil, err
	}
	all := []template{templateOf(baseTemplate, sandbox.TemplateReady, sandbox.Resources{})}
	for _, s := range standIns {
		for _, t := range list {
			if t.Name == s.template && t.State != sandbox.TemplateAvailable {
				all = append(all, templateOf(s.name, t.State, t.Resources))
			}
		}
	}
	for _, t := range list {
		if t.State != sandbox.TemplateAvailable { // which no tool can build
			all = append(all, templateOf(t.Name, t.State, t.Resources))
		}
	}
	all = slices.DeleteFunc(all, func(t template) bool { return !strings.HasPrefix(t.Name, in.Prefix) })
	line := func(t template) string {
		return fmt.Sprintf("%s\t%s\t%d vCPU / %d MiB", t.Name, t.Status, t.VCPUs, t.MemoryMiB)
	}
	return listing("templates", all, line, "(no templates)"), nil
}

type templateArgs struct {
	Name      string   `json:"name"`
	From      string   `json:"from"`
	VCPUs     float64  `json:"vcpu"`
	MemoryMiB float64  `json:"memory_mib"`
	DiskMiB   float64  `json:"disk_mib"`
	Steps     []string `json:"run_steps"`
	Start     string   `json:"start_cmd"`
	Ready     string   `json:"ready_cmd"`
}

// maxBuilds bounds the builds that run at once, because agents do not wait for
// them.
const maxBuilds = 5

func createTemplate(ctx context.Context, c *dialect.Call, in templateArgs) (*mcp.CallToolResult, error) {
	spec := in.spec()
	list, err := sandbox.All(ctx, c.Service.ListTemplates)
	if err != nil {
		return nil, err
	}
	builds, again := 0, false // again: there are earlier versions
	for _, t := range list {
		if t.State == sandbox.TemplateBuilding {
			builds++
		}
		if t.Name != in.Name {
			continue
		}
		if again = t.Version > 0; t.State != sandbox.TemplateFailed {
			return nil, sandbox.Errorf(sandbox.CodeConflict, "there is a template %s already, choose another name", in.Name)
		}
	}
	if builds >= maxBuilds {
		return refuse("Rate limited: %d templates are being built. Retry after a short backoff.", builds)
	}
	c.Status("starting the build")
	build, err := c.Service.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: in.Name, Spec: spec, Force: again})
	if err != nil {
		return nil, err
	}
	state := sandbox.TemplateBuilding
	if build.State == sandbox.BuildReady {
		state = sandbox.TemplateReady
	}
	out := templateOf(in.Name, state, spec.Resources)
	text := fmt.Sprintf("building template %s (%d vCPU / %d MiB), status %s. Poll sandbox_template_list until it is ready, then use it as from_template.", out.Name, out.VCPUs, out.MemoryMiB, out.Status)
	return dialect.Text(text, map[string]template{"template": out}), nil
}

// debianNames are images that the service builds itself.
var debianNames = []string{"debian", "debian:12", "debian:bookworm", "debian:12-slim", "debian:bookworm-slim"}

// readyPatience is how long the product tries a ready command.
const readyPatience = 10 * time.Minute

// spec describes the template as the product would build it. Its steps and start
// command run as root, with an open network.
func (a *templateArgs) spec() *sandbox.TemplateSpec {
	s := &sandbox.TemplateSpec{
		Resources: sandbox.Resources{VCPUs: int(a.VCPUs), MemoryMiB: int64(a.MemoryMiB), DiskMiB: int64(a.DiskMiB)},
	}
	steps := a.Steps
	if slices.Contains(debianNames, a.From) {
		s.From.Debian = "bookworm"
		for len(steps) > 0 {
			names, ok := installs(steps[0])
			if !ok {
				break
			}
			s.Apt, steps = append(s.Apt, names...), steps[1:]
		}
		slices.Sort(s.Apt)
		s.Apt = slices.Compact(s.Apt)
	} else {
		s.From.Image = a.From
	}
	for _, step := range steps {
		s.Run = append(s.Run, sandbox.TemplateStep{Run: step})
	}
	if len(s.Run) > 0 {
		s.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	}
	if a.Start != "" {
		s.Start, s.User = &sandbox.StartCommand{Command: a.Start, Ready: a.Ready, TimeoutMS: readyPatience.Milliseconds()}, "root"
	}
	return s
}

// installs returns the packages that a step installs. It is not ok if it does
// anything else.
func installs(step string) (packages []string, ok bool) {
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

// packageName reports whether s can be the name of a Debian package; the service
// checks it again.
func packageName(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.+-") == "" && strings.Trim(s[:1], "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
