package miosa

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// defaultTemplate is the product's default, for which the server's default is used.
	defaultTemplate = "miosa-sandbox"
	// workDir is where the product's commands start and where its files are.
	workDir = "/workspace"
)

// substitute stands in for a template of the product.
type substitute struct {
	// template is a template of this server, used if it is built.
	template string
	// exact is the server's template that matches the name exactly, if there is one.
	exact string
	// programs are the programs that the server's default template must have to stand in.
	// If missing is empty, the note states the version of the first.
	programs []string
	missing  string
}

var substitutes = map[string]substitute{
	defaultTemplate: {},
	"static":        {},
	"nextjs":        {template: "node", exact: "nextjs", programs: []string{"node", "npm"}, missing: "a project in " + workDir},
	"react-vite":    {template: "node", exact: "react-vite", programs: []string{"node", "npm"}, missing: "a project in " + workDir},
	"node-22":       {template: "node", exact: "node", programs: []string{"node", "npm"}},
	"python-3.12":   {template: "code-interpreter", programs: []string{"python3"}},
}

// source is what a sandbox is made from.
type source struct {
	asked string
	// name is the template's name, "" for the server's default.
	name      string
	resources sandbox.Resources
	// sub is set if a substitute was found for the requested template.
	sub *substitute
}

// findTemplate returns the source of a sandbox: the template with this name, or its
// substitute.
func findTemplate(ctx context.Context, c *call, asked string) (source, error) {
	from := source{asked: asked}
	sub, known := substitutes[asked]
	t, err := c.Service.GetTemplate(ctx, asked)
	switch {
	case err == nil && (t.State == sandbox.TemplateReady || !known):
		from.name, from.resources = t.Name, t.Resources
		if strings.Contains(asked, "@") {
			from.name = asked
		}
		return from, nil
	case err != nil && sandbox.CodeOf(err) == sandbox.CodeForbidden:
		return from, err
	case !known:
		return from, unknownTemplate(asked, err)
	}
	from.sub = &sub
	if sub.template != "" {
		if t, err := c.Service.GetTemplate(ctx, sub.template); err == nil && t.State == sandbox.TemplateReady {
			from.name, from.resources = t.Name, t.Resources
			return from, nil
		}
	}
	return from, nil
}

// unknownTemplate explains why there is no template with a name. In the product that is an
// invalid argument, and not a "not found".
func unknownTemplate(asked string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeInvalid:
		return dialect.Invalid("unknown template %s: %s", quoted(asked), sandbox.MessageOf(err))
	}
	return err
}

// check returns a note if a sandbox is not what was requested, or "". It refuses a sandbox
// of the server's default template that cannot stand in.
func (f *source) check(ctx context.Context, c *call, id string) (note string, err error) {
	if f.sub == nil || f.asked == defaultTemplate || f.name != "" && f.name == f.sub.exact {
		return "", nil
	}
	instead, build := "its default template", cmp.Or(f.sub.exact, f.sub.template)
	if f.name != "" {
		instead = "its template " + f.name
	}
	note = fmt.Sprintf("template %s is not built on this server, so %s stands in", f.asked, instead)
	if len(f.sub.programs) > 0 && (f.name == "" || f.sub.missing == "") {
		version, lacking, err := look(ctx, c, id, f.sub.programs)
		switch {
		case err != nil:
			return "", err
		case lacking != "":
			return "", dialect.Invalid("template %s is not on this server, and %s has no %s; build the template %s (cove template build %[4]s), or choose another",
				f.asked, instead, lacking, build)
		case f.sub.missing == "":
			note += fmt.Sprintf(", with %s %s", f.sub.programs[0], version)
		}
	}
	if f.sub.missing != "" {
		note += ", without " + f.sub.missing
	}
	if f.sub.exact != "" {
		note += "; to have it: cove template build " + f.sub.exact
	}
	return note, nil
}

// lookScript prints the name of the first missing program, or else the version of the first
// program.
const lookScript = `for p; do command -v "$p" >/dev/null || { echo "$p"; exit 1; }; done; "$1" --version || echo unknown`

// look returns the version of the first of a sandbox's programs, or the first one that is
// missing.
func look(ctx context.Context, c *call, id string, programs []string) (version, lacking string, err error) {
	var out strings.Builder
	job, err := c.Service.Exec(ctx, id, sandbox.ExecRequest{Command: append([]string{"/bin/sh", "-c", lookScript, "sh"}, programs...)}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		return "", "", err
	}
	words := strings.Fields("? " + out.String())
	last := quoted(words[len(words)-1])
	if job.ExitCode != 0 {
		return "", last, nil
	}
	return last, "", nil
}
