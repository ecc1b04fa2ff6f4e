package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) templateCommand() *cobra.Command {
	return group("template", "Manage templates", a.templateLsCommand(), a.templateGetCommand(), a.templateBuildCommand())
}

func (a *app) templateLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List templates, built or only defined",
		Example: "  cove template ls",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runTemplateLs(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTemplateLs(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	templates, err := c.ListTemplates(ctx)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Template]{templates.Items})
	}
	rows := make([][]string, 0, len(templates.Items))
	for _, t := range templates.Items {
		size := ""
		if t.SizeBytes > 0 {
			size = bytesText(t.SizeBytes)
		}
		rows = append(rows, []string{t.Name, t.Source, string(t.State), size, t.Description})
	}
	return a.printTable([]string{"NAME", "SOURCE", "STATE", "SIZE", "DESCRIPTION"}, rows)
}

func (a *app) templateGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a template",
		Example: "  cove template get code-interpreter",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runTemplateGet(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTemplateGet(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	t, err := c.GetTemplate(ctx, args[0])
	if err != nil {
		return err
	}
	return a.printTemplate(t, opts)
}

func (a *app) printTemplate(t *sandbox.Template, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(t)
	}
	size := ""
	if t.SizeBytes > 0 {
		size = bytesText(t.SizeBytes)
	}
	return a.fields(
		"name", t.Name, "description", t.Description, "source", t.Source,
		"state", string(t.State), "reason", t.Reason, "digest", t.Digest, "size", size,
		"built", stamp(t.BuiltAt), "user", t.User, "workdir", t.WorkDir, "env", pairText(t.Env),
		"packages", strings.Join(t.Packages, " "),
	)
}

type templateBuildOptions struct {
	jsonOption
	Packages []string
	Force    bool
}

func (o *templateBuildOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringSliceVar(&o.Packages, "package", nil, "Debian packages of a template of your own, with commas or repeated")
	f.BoolVar(&o.Force, "force", false, "build although a ready build exists")
}

func (a *app) templateBuildCommand() *cobra.Command {
	var opts templateBuildOptions
	cmd := &cobra.Command{
		Use: "build NAME", Short: "Build a template",
		Long: "Build a template: one that is defined, or one of your own from Debian packages. An earlier build\n" +
			"stays in use until the new one is ready.",
		Example: "  cove template build code-interpreter\n" +
			"  cove template build perl --package perl,libjson-perl",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runTemplateBuild(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTemplateBuild(ctx context.Context, opts templateBuildOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	b := a.newBar()
	defer b.clear()
	step := ""
	req := sandbox.BuildTemplateRequest{Name: args[0], Packages: opts.Packages, Force: opts.Force}
	built, err := c.BuildTemplate(ctx, req, func(ev sandbox.BuildEvent) error {
		if ev.Step != "" && ev.Step != step {
			step = ev.Step
			if b.view == nil {
				a.say("%s", clean(step))
			}
		}
		b.show(ev.Fraction, step)
		return nil
	})
	if err != nil {
		return err
	}
	b.clear()
	return a.printTemplate(built, opts.jsonOption)
}
