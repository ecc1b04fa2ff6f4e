package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) templateCommand() *cobra.Command {
	return group("template", "Manage templates", a.templateLsCommand(), a.templateGetCommand(), a.templateBuildCommand(), a.templateCreateCommand(),
		a.templateBuildsCommand(), a.templateLogsCommand(), a.templateCancelCommand(), a.templateAliasCommand(), a.templateRmCommand(), a.templateSchemaCommand())
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
	templates, err := sandbox.All(ctx, c.ListTemplates)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Template]{templates})
	}
	headings := []string{"NAME", "SOURCE", "STATE", "VERSION", "SIZE", "CHECKPOINT", "ALIASES", "DESCRIPTION"}
	rows := make([][]string, 0, len(templates))
	for _, t := range templates {
		rows = append(rows, []string{
			t.Name, t.Source, string(t.State), versionText(&t), sizeText(t.SizeBytes), sizeText(t.WarmBytes), strings.Join(t.Aliases, " "), t.Description,
		})
	}
	return a.printTable(headings, rows)
}

// versionText is the newest version, and how many older ones are kept.
func versionText(t *sandbox.Template) string {
	switch older := len(t.Versions) - 1; {
	case t.Version == 0:
		return ""
	case older > 0:
		return fmt.Sprintf("%d (+%d)", t.Version, older)
	}
	return strconv.Itoa(t.Version)
}

// sizeText tells a size that may not be known.
func sizeText(n int64) string {
	if n <= 0 {
		return ""
	}
	return bytesText(n)
}

func (a *app) templateGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get NAME", Aliases: []string{"inspect"}, Short: "Show a template, by its name, NAME@VERSION or an alias",
		Example: "  cove template get code-interpreter\n  cove template get app@2",
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

// scriptText is a command, or what a longer script begins with.
func scriptText(command string) string {
	first, rest, more := strings.Cut(strings.TrimSpace(command), "\n")
	if !more {
		return command
	}
	return fmt.Sprintf("%s (and %d lines; --json shows them)", first, strings.Count(rest, "\n")+1)
}

func (a *app) printTemplate(t *sandbox.Template, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(t)
	}
	version := ""
	if t.Version > 0 {
		version = strconv.Itoa(t.Version)
	}
	var versions []string
	for _, n := range t.Versions {
		versions = append(versions, strconv.Itoa(n))
	}
	start, ready, screen := "", "", ""
	if t.Start != nil {
		start, ready = scriptText(t.Start.Command), t.Start.Ready
	}
	if t.Desktop != nil {
		screen = fmt.Sprintf("%dx%d", t.Desktop.Width, t.Desktop.Height)
	}
	var warm []string
	for _, language := range slices.Sorted(maps.Keys(t.Warm)) {
		warm = append(warm, language+": "+scriptText(t.Warm[language]))
	}
	var ports []string
	for _, p := range t.Ports {
		ports = append(ports, strconv.Itoa(p))
	}
	return a.fields(
		"name", t.Name, "description", t.Description, "source", t.Source, "version", version, "versions", strings.Join(versions, " "), "aliases", strings.Join(t.Aliases, " "),
		"state", string(t.State), "reason", t.Reason, "digest", t.Digest, "size", sizeText(t.SizeBytes), "checkpoint", sizeText(t.WarmBytes),
		"built", stamp(t.BuiltAt), "user", t.User, "workdir", t.WorkDir, "env", pairText(t.Env),
		"resources", limitsText(t.Resources), "start", start, "ready", ready, "warm", strings.Join(warm, "; "), "screen", screen, "ports", strings.Join(ports, " "),
		"network", policyText(t.Network), "build network", policyText(t.BuildNetwork), "packages", strings.Join(t.Packages, " "),
	)
}

// limitsText tells the limits that are set.
func limitsText(r sandbox.Resources) string {
	var out []string
	for _, l := range []struct {
		n    int64
		what string
	}{{int64(r.VCPUs), "processors"}, {r.MemoryMiB, "MiB of memory"}, {r.DiskMiB, "MiB of disk"}, {r.MaxPIDs, "processes"}} {
		if l.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", l.n, l.what))
		}
	}
	return strings.Join(out, ", ")
}
