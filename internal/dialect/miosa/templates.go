package miosa

import (
	"context"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// defaultTemplate is the product's, which here is the server's.
	defaultTemplate = "miosa-sandbox"
	// workDir is where the product's commands start and its files are.
	workDir = "/workspace"
)

// substitute is what stands here for a template of the product.
type substitute struct {
	// template is one of this server's, if it has it.
	template string
	// programs are what the server's default template must have to do in its
	// place.
	programs []string
}

var substitutes = map[string]substitute{
	defaultTemplate: {},
	"static":        {},
	"nextjs":        {"node", []string{"node", "npm"}},
	"node-22":       {"node", []string{"node", "npm"}},
	"react-vite":    {"node", []string{"node", "npm"}},
	"python-3.12":   {"code-interpreter", []string{"python3"}},
}

// source is what a sandbox is made from.
type source struct {
	asked string
	// name is the template's, empty for the server's default.
	name      string
	resources sandbox.Resources
	sub       substitute
	// programs must be in the sandbox.
	programs []string
}

// findTemplate returns what a sandbox is made from: the template of this name,
// or what stands for it here.
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
	from.sub = sub
	if sub.template != "" {
		if t, err := c.Service.GetTemplate(ctx, sub.template); err == nil && t.State == sandbox.TemplateReady {
			from.name, from.resources = t.Name, t.Resources
			return from, nil
		}
	}
	from.programs = sub.programs
	return from, nil
}

// unknownTemplate explains why there is no template of a name: that is a wrong
// argument in the product, and nothing that was not found.
func unknownTemplate(asked string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeInvalid:
		return refusal("unknown template %s: %s", quoted(asked), sandbox.MessageOf(err))
	}
	return err
}

// check refuses a sandbox of the server's default template that lacks what was
// asked for.
func (f *source) check(ctx context.Context, c *call, id string) error {
	for _, program := range f.programs {
		job, err := c.Service.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/bin/sh", "-c", "command -v " + program}}, nil)
		if err != nil {
			return err
		}
		if job.ExitCode != 0 {
			return refusal("template %s is not on this server, and its default template has no %s; build the template %s (cove template build %s), or choose another",
				f.asked, program, f.sub.template, f.sub.template)
		}
	}
	return nil
}
