package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/template/templatefile"
	"github.com/cove-sh/cove/sandbox"
)

type templateBuildOptions struct {
	File     string
	Packages []string
	From     sandbox.TemplateSource
	// RegistryUser logs in at the registry of the image, with the password that
	// is in RegistryPasswordFile.
	RegistryUser, RegistryPasswordFile string
	buildOptions
}

// buildOptions are the options of all commands that build.
type buildOptions struct {
	Force  bool
	Detach bool
	Quiet  bool
	// Verbose shows the output of making the base, also on a terminal.
	Verbose bool
}

func (o *buildOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Force, "force", false, "Build even if a ready build exists, without reusing earlier builds")
	f.BoolVarP(&o.Detach, "detach", "d", false, "Build in the background and print the build's id")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "Show only the steps, not their output")
	f.BoolVar(&o.Verbose, "verbose", false, "On a terminal, also show the output of installing the base, which is otherwise shown only on failure")
}

func (o *templateBuildOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.File, "file", "f", "", "Template file in YAML or JSON; - is standard input")
	f.StringSliceVar(&o.Packages, "package", nil, "Debian packages to install (comma-separated or repeatable)")
	f.StringVar(&o.From.Image, "image", "", "Start from an image of a registry: node:22, ghcr.io/org/name@sha256:…")
	f.StringVar(&o.From.Archive, "archive", "", "Start from an image in a local file, which is uploaded: written by docker save or an OCI tool, or the directory of an OCI layout")
	f.StringVar(&o.From.Directory, "directory", "", "Start from a directory of the server that holds a root file system")
	f.StringVar(&o.RegistryUser, "registry-user", "", "Log in to the image's registry as this user, for this build")
	f.StringVar(&o.RegistryPasswordFile, "registry-password-file", "", "File with that user's password or token; - is standard input")
	o.buildOptions.AddFlags(f)
}

// request returns the request for a build. It makes the path of a directory absolute,
// as the server requires; runTemplateBuild sends an archive first.
func (o *templateBuildOptions) request(name string) (req sandbox.BuildTemplateRequest, err error) {
	req = sandbox.BuildTemplateRequest{Name: name, Packages: o.Packages, Force: o.Force}
	from := o.From
	if from.Directory != "" {
		if from.Directory, err = filepath.Abs(from.Directory); err != nil {
			return req, err
		}
	}
	if from != (sandbox.TemplateSource{}) {
		req.Spec, req.Packages = &sandbox.TemplateSpec{From: from, Apt: o.Packages}, nil
	}
	return req, nil
}

func (a *app) templateBuildCommand() *cobra.Command {
	var opts templateBuildOptions
	cmd := a.make(command{
		Use: "build NAME", Short: "Build a template",
		Long: "Build a template: a defined one, one that was built before, or your own from a template file, an image,\n" +
			"a root file system or Debian packages. The earlier build stays in use until the new one is ready, and\n" +
			"stays available as NAME@VERSION. Interrupting cove cancels the build, unless it is detached.\n\n" +
			"An image is pulled with the server's own registry logins (from the Docker configuration of its user) and\n" +
			"mirrors, or with a login for this build, which is not stored. An archive is uploaded to the server. A\n" +
			"directory is on the server, at a path that its operator has allowed (templates.allow_paths).",
		Example: "  cove template build code-interpreter\n" +
			"  cove template build app -f template.yaml\n" +
			"  cove template build node22 --image node:22\n" +
			"  cove template build ours --image ghcr.io/us/app:1 --registry-user me --registry-password-file - < token\n" +
			"  cove template build perl --package perl,libjson-perl",
		Flags: opts.AddFlags,
		Do:    action{json: true, run: func(ctx context.Context, c *call) error { return c.buildTemplate(ctx, &opts) }},
	})
	cmd.MarkFlagsMutuallyExclusive("file", "image", "archive", "directory")
	cmd.MarkFlagsMutuallyExclusive("file", "package")
	cmd.MarkFlagsRequiredTogether("registry-user", "registry-password-file")
	return cmd
}

func (c *call) buildTemplate(ctx context.Context, opts *templateBuildOptions) error {
	req, err := opts.request(c.args[0])
	if err != nil {
		return err
	}
	if opts.File != "" {
		if req.Spec, err = c.readTemplateFile(opts.File); err != nil {
			return err
		}
	}
	if opts.RegistryUser != "" {
		if req.Login, err = c.readLogin(opts); err != nil {
			return err
		}
	}
	if opts.From.Archive != "" {
		up, err := c.sendArchive(ctx, opts.From.Archive)
		if err != nil {
			return err
		}
		req.Spec.From.Archive = up.Archive
	}
	return c.build(ctx, req, opts.buildOptions)
}

// readLogin reads the password of a login from a file, since every user of the machine
// can see arguments.
func (a *app) readLogin(opts *templateBuildOptions) (*sandbox.RegistryLogin, error) {
	if opts.RegistryPasswordFile == "-" {
		if opts.File == "-" {
			return nil, errors.New("template build: the template file and the password cannot both come from standard input")
		}
		password, err := a.readSecret("the password of " + opts.RegistryUser)
		return &sandbox.RegistryLogin{Username: opts.RegistryUser, Password: password}, err
	}
	f, err := os.Open(opts.RegistryPasswordFile)
	if err != nil {
		return nil, hereError("read", opts.RegistryPasswordFile, err)
	}
	defer f.Close()
	password, err := secretFrom(f)
	return &sandbox.RegistryLogin{Username: opts.RegistryUser, Password: password}, err
}

// readTemplateFile reads a template file. It may come from somebody else, so the files
// that it names must be below its own directory.
func (a *app) readTemplateFile(path string) (*sandbox.TemplateSpec, error) {
	in, dir := a.Stdin, "."
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, dir = f, filepath.Dir(path)
	}
	data, err := io.ReadAll(io.LimitReader(in, templatefile.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the template file: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	spec, err := templatefile.Parse(data, func(source string) (io.ReadCloser, error) {
		f, err := root.Open(filepath.FromSlash(source))
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, &fs.PathError{Op: "read", Path: source, Err: fs.ErrInvalid}
		}
		return f, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// build builds a template and prints it, or begins to and prints the build.
func (c *call) build(ctx context.Context, req sandbox.BuildTemplateRequest, opts buildOptions) error {
	if opts.Detach {
		started, err := c.client.StartBuild(ctx, req)
		return shown(c, only(buildID), started, err)
	}
	view := c.showBuild(opts)
	built, err := c.client.BuildTemplate(ctx, req, view.event)
	if more := view.end(err); more {
		c.sayBuild(ctx, c.client, req.Name, err)
	}
	return shown(c, templateDetails, built, err)
}

func buildID(b *sandbox.Build) string { return b.ID }

// sayBuild prints how to read the whole log of a failed build.
func (a *app) sayBuild(ctx context.Context, c *client.Client, name string, failure error) {
	last, err := c.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: name, Page: sandbox.Page{Limit: 1}})
	if err != nil || len(last.Items) == 0 || last.Items[0].State != sandbox.BuildFailed || last.Items[0].Reason != sandbox.MessageOf(failure) {
		return // the build did not begin, or is no longer the last one
	}
	a.say("see the whole build log with: cove template logs %s", last.Items[0].ID)
}

func (a *app) templateCreateCommand() *cobra.Command {
	var spec sandbox.TemplateSpec
	var opts buildOptions
	cmd := a.make(command{
		Use: "create NAME", Short: "Create a template from a snapshot or another template",
		Example: "  cove template create app --from-snapshot ready\n" +
			"  cove template create app-stable --from-template app@3",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&spec.From.Snapshot, "from-snapshot", "", "Use the files of this snapshot")
			f.StringVar(&spec.From.Template, "from-template", "", "Use this template, or one version of it")
			f.StringVar(&spec.Description, "description", "", "Description of the template")
			opts.AddFlags(f)
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			return c.build(ctx, sandbox.BuildTemplateRequest{Name: c.args[0], Spec: &spec, Force: opts.Force}, opts)
		}},
	})
	cmd.MarkFlagsOneRequired("from-snapshot", "from-template")
	cmd.MarkFlagsMutuallyExclusive("from-snapshot", "from-template")
	return cmd
}

func (a *app) templateBuildsCommand() *cobra.Command {
	var req sandbox.ListBuildsRequest
	quiet := false
	return a.make(command{
		Use: "builds [NAME]", Short: "List builds, newest first",
		Example: "  cove template builds\n  cove template builds app",
		Flags:   func(f *pflag.FlagSet) { f.BoolVarP(&quiet, "quiet", "q", false, "Print ids only") },
		Do: list(quietly(&quiet, buildID, buildTable), func(ctx context.Context, c *call) ([]sandbox.Build, error) {
			req.Template = c.arg(0)
			return sandbox.All(ctx, paged(&req, &req.Page, c.client.ListBuilds))
		}),
	})
}

var buildTable = table([]string{"ID", "TEMPLATE", "STATE", "VERSION", "AGE", "STEP OR REASON"}, func(b *sandbox.Build) []any {
	state := string(b.State)
	if b.State == sandbox.BuildRunning {
		state = fmt.Sprintf("%s %d%%", state, int(b.Fraction*100))
	}
	return []any{b.ID, b.Template, state, number(b.Version), age(b.CreatedAt), cmp.Or(b.Reason, b.Step)}
})

func (a *app) templateLogsCommand() *cobra.Command {
	follow := false
	return a.make(command{
		Use: "logs BUILD", Short: "Show the log of a build",
		Example: "  cove template logs bld-4x2… -f",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "Keep showing the log until the build ends; exit with code 1 if it fails")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error { return c.templateLogs(ctx, follow) }},
	})
}

// logPause is the pause in the log of a running build after which the log so far counts
// as read.
const logPause = time.Second

func (c *call) templateLogs(ctx context.Context, follow bool) error {
	now, err := c.client.GetBuild(ctx, c.args[0])
	if err != nil {
		return err
	}
	seen := c.buildLog()
	if follow || now.State != sandbox.BuildRunning {
		ended, err := c.client.FollowBuild(ctx, now.ID, seen)
		if err == nil && follow && ended.State != sandbox.BuildReady {
			err = fmt.Errorf("the build is %s: %s", ended.State, ended.Reason)
		}
		return err
	}
	// Everything written so far comes at once, and then there is a pause.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := time.AfterFunc(logPause, cancel)
	defer pause.Stop()
	_, err = c.client.FollowBuild(ctx, now.ID, func(ev sandbox.BuildEvent) error {
		pause.Reset(logPause)
		return seen(ev)
	})
	if sandbox.CodeOf(err) == sandbox.CodeCancelled {
		return nil
	}
	return err
}

// buildLog returns a function that prints the events of a build.
func (c *call) buildLog() func(sandbox.BuildEvent) error {
	step := ""
	return func(ev sandbox.BuildEvent) error {
		if c.json {
			return c.printJSON(ev)
		}
		if ev.Step != "" && ev.Step != step {
			step = ev.Step
			if err := c.print("==> " + clean(step) + "\n"); err != nil {
				return err
			}
		}
		return c.print(clean(ev.Log))
	}
}
