package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/template/templatefile"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) templateCommand() *cobra.Command {
	return group("template", "Manage templates",
		a.make(command{
			Use: "ls", Short: "List templates, built or not",
			Example: "  cove template ls",
			Do:      list(templateTable, all(sandbox.Service.ListTemplates)),
		}),
		a.make(command{
			Use: "get NAME", Short: "Show a template, by name, NAME@VERSION or alias",
			Example: "  cove template get code-interpreter\n  cove template get app@2",
			Do:      show(templateDetails, byName(sandbox.Service.GetTemplate)),
		}),
		a.templateBuildCommand(), a.templateCreateCommand(), a.templateBuildsCommand(), a.templateLogsCommand(),
		a.make(command{
			Use: "cancel BUILD", Short: "Cancel a build and remove what it made",
			Example: "  cove template cancel bld-4x2…",
			Do:      show(only(func(b *sandbox.Build) string { return string(b.State) }), byName(sandbox.Service.CancelBuild)),
		}),
		a.templateAliasCommand(),
		a.make(command{
			Use: "rm NAME...", Short: "Delete templates",
			Long:    "Delete templates with all their versions, or single versions as NAME@VERSION. Their sandboxes and snapshots\nare kept. A built-in template is only unbuilt, and can be built again.",
			Example: "  cove template rm app\n  cove template rm app@1 app@2",
			Do:      remove(sandbox.Service.DeleteTemplate),
		}),
		a.make(command{
			Use: "schema", Short: "Print the JSON Schema of template files, for editors",
			Example: "  cove template schema > template.schema.json",
			Do:      action{here: true, run: func(_ context.Context, c *call) error { return c.print(string(templatefile.Schema())) }},
		}))
}

var templateTable = table([]string{"NAME", "SOURCE", "STATE", "VERSION", "SIZE", "CHECKPOINT", "ALIASES", "DESCRIPTION"}, func(t *sandbox.Template) []any {
	return []any{t.Name, t.Source, t.State, versionText(t), sizeText(t.SizeBytes), sizeText(t.WarmBytes), t.Aliases, t.Description}
})

// versionText returns the newest version, and how many older ones are kept.
func versionText(t *sandbox.Template) string {
	switch older := len(t.Versions) - 1; {
	case t.Version == 0:
		return ""
	case older > 0:
		return fmt.Sprintf("%d (+%d)", t.Version, older)
	}
	return strconv.Itoa(t.Version)
}

// sizeText formats a size; 0 is unknown.
func sizeText(n int64) string {
	if n <= 0 {
		return ""
	}
	return bytesText(n)
}

// scriptText returns a command, or the beginning of a longer script.
func scriptText(command string) string {
	first, rest, more := strings.Cut(strings.TrimSpace(command), "\n")
	if !more {
		return command
	}
	return fmt.Sprintf("%s (and %d more lines; see --json)", first, strings.Count(rest, "\n")+1)
}

var templateDetails = details(func(t *sandbox.Template) []any {
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
	return []any{
		"name", t.Name, "description", t.Description, "source", t.Source, "version", number(t.Version), "versions", numbersText(t.Versions), "aliases", t.Aliases,
		"state", t.State, "reason", t.Reason, "digest", t.Digest, "size", sizeText(t.SizeBytes), "checkpoint", sizeText(t.WarmBytes),
		"built", stamp(t.BuiltAt), "user", t.User, "workdir", t.WorkDir, "env", pairText(t.Env),
		"resources", limitsText(t.Resources), "start", start, "ready", ready, "warm", strings.Join(warm, "; "), "screen", screen, "ports", numbersText(t.Ports),
		"network", policyText(t.Network), "build network", policyText(t.BuildNetwork), "packages", t.Packages,
	}
})

// limitsText formats the limits that are set.
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

func (a *app) templateAliasCommand() *cobra.Command {
	remove := false
	return a.make(command{
		Use: "alias ALIAS [NAME]", Short: "Give a template another name",
		Long: "Give a template, or one version of it (NAME@VERSION), another name. An alias that belongs to another\n" +
			"template moves to this one.",
		Example: "  cove template alias stable app@3\n  cove template alias --rm stable",
		Flags:   func(f *pflag.FlagSet) { f.BoolVar(&remove, "rm", false, "Remove the alias") },
		Do: action{run: func(ctx context.Context, c *call) error {
			if remove != (len(c.args) == 1) {
				return c.misuse("alias: name an alias and its template, or use --rm with an alias")
			}
			return c.client.AliasTemplate(ctx, c.args[0], c.arg(1))
		}},
	})
}
