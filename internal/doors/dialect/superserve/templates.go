package superserve

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

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
	r = terms.Shape(r)
	return template{ID: name, Name: name, Status: string(state), VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB}
}

type templateListArgs struct {
	Prefix string `json:"name_prefix"`
}

func listTemplates(ctx context.Context, c *dialect.Call, in templateListArgs) (*mcp.CallToolResult, error) {
	list, err := sandbox.All(ctx, c.Service.ListTemplates)
	if err != nil {
		return nil, err
	}
	all := []template{}
	for _, t := range terms.Templates(list) {
		if strings.HasPrefix(t.Name, in.Prefix) {
			all = append(all, templateOf(t.Name, t.State, t.Resources))
		}
	}
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

func createTemplate(ctx context.Context, c *dialect.Call, in templateArgs) (*mcp.CallToolResult, error) {
	spec, err := in.recipe().Spec()
	if err != nil {
		return nil, err
	}
	again, err := terms.CheckBuild(ctx, c.Service, in.Name)
	if sandbox.CodeOf(err) == sandbox.CodeQuotaExceeded {
		return refuse("Rate limited: %s. Retry after a short backoff.", sandbox.MessageOf(err))
	}
	if err != nil {
		return nil, err
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

// recipe returns the template in the product's terms. This tool has only commands.
func (a *templateArgs) recipe() *terms.Recipe {
	r := &terms.Recipe{
		From: a.From, Start: a.Start, Ready: a.Ready,
		Resources: sandbox.Resources{VCPUs: int(a.VCPUs), MemoryMiB: int64(a.MemoryMiB), DiskMiB: int64(a.DiskMiB)},
	}
	for _, run := range a.Steps {
		r.Steps = append(r.Steps, terms.Step{Run: run})
	}
	return r
}
