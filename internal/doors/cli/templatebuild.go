package cli

import (
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
	jsonOption
	File     string
	Packages []string
	From     sandbox.TemplateSource
	// RegistryUser logs in at the registry of the image, with the password that
	// is in RegistryPasswordFile.
	RegistryUser, RegistryPasswordFile string
	buildOptions
}

// buildOptions are of all commands that build.
type buildOptions struct {
	Force  bool
	Detach bool
	Quiet  bool
	// Verbose shows what is written while the base is made, on a terminal too.
	Verbose bool
}

func (o *buildOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Force, "force", false, "build although a ready build exists, and make no use of earlier ones")
	f.BoolVarP(&o.Detach, "detach", "d", false, "let it go on in the background, and print the build's id")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "tell the steps only, not what they write")
	f.BoolVar(&o.Verbose, "verbose", false, "show what the installation of the base writes on a terminal too, where only a failure does")
}

func (o *templateBuildOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVarP(&o.File, "file", "f", "", "template file, in YAML or JSON; - is standard input")
	f.StringSliceVar(&o.Packages, "package", nil, "Debian packages of a template of your own, with commas or repeated")
	f.StringVar(&o.From.Image, "image", "", "begin with an image of a registry: node:22, ghcr.io/org/name@sha256:…")
	f.StringVar(&o.From.Archive, "archive", "", "begin with an image in a file here, which is sent: as docker save or an OCI tool wrote it, or the directory of an OCI layout")
	f.StringVar(&o.From.Directory, "directory", "", "begin with a directory of the server that holds a root file system")
	f.StringVar(&o.RegistryUser, "registry-user", "", "log in at the image's registry as this user, for this build")
	f.StringVar(&o.RegistryPasswordFile, "registry-password-file", "", "file with that user's password or token; - is standard input")
	o.buildOptions.AddFlags(f)
}

// request asks for a build. The path of a directory is made absolute, as the
// server wants it; an archive is sent first, by runTemplateBuild.
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
	cmd := &cobra.Command{
		Use: "build NAME", Short: "Build a template",
		Long: "Build a template: one that is defined, one that was built before, or one of your own from a template\n" +
			"file, an image, a file system or Debian packages. An earlier build stays in use until the new one is\n" +
			"ready, and by NAME@VERSION after that. A build that is interrupted is cancelled, unless it is detached.\n\n" +
			"An image comes from its registry with the server's own logins (those of its user's Docker\n" +
			"configuration) and mirrors, or with a login for this build, which is kept nowhere. An archive is sent to the server. A directory is the server's, in a\n" +
			"path that its operator has allowed (templates.allow_paths).",
		Example: "  cove template build code-interpreter\n" +
			"  cove template build app -f template.yaml\n" +
			"  cove template build node22 --image node:22\n" +
			"  cove template build ours --image ghcr.io/us/app:1 --registry-user me --registry-password-file - < token\n" +
			"  cove template build perl --package perl,libjson-perl",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runTemplateBuild(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("file", "image", "archive", "directory")
	cmd.MarkFlagsMutuallyExclusive("file", "package")
	cmd.MarkFlagsRequiredTogether("registry-user", "registry-password-file")
	return cmd
}

func (a *app) runTemplateBuild(ctx context.Context, opts templateBuildOptions, args []string) error {
	req, err := opts.request(args[0])
	if err != nil {
		return err
	}
	if opts.File != "" {
		if req.Spec, err = a.readTemplateFile(opts.File); err != nil {
			return err
		}
	}
	if opts.RegistryUser != "" {
		if req.Login, err = a.readLogin(opts); err != nil {
			return err
		}
	}
	if opts.From.Archive != "" {
		up, err := a.sendArchive(ctx, opts.From.Archive)
		if err != nil {
			return err
		}
		req.Spec.From.Archive = up.Archive
	}
	return a.build(ctx, req, opts.jsonOption, opts.buildOptions)
}

// readLogin reads the password of a login from a file: what is an argument,
// every user of the machine sees.
func (a *app) readLogin(opts templateBuildOptions) (*sandbox.RegistryLogin, error) {
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

// readTemplateFile reads a template file. The files that it names are below the
// directory in which it is: it may come from somebody else.
func (a *app) readTemplateFile(path string) (*sandbox.TemplateSpec, error) {
	in, dir := io.Reader(a.Stdin), "."
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
func (a *app) build(ctx context.Context, req sandbox.BuildTemplateRequest, out jsonOption, opts buildOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if opts.Detach {
		started, err := c.StartBuild(ctx, req)
		if err != nil {
			return err
		}
		if out.JSON {
			return a.printJSON(started)
		}
		return a.print(started.ID + "\n")
	}
	show := a.showBuild(opts)
	built, err := c.BuildTemplate(ctx, req, show.event)
	if more := show.end(err); more {
		a.sayBuild(ctx, c, req.Name, err)
	}
	if err != nil {
		return err
	}
	return a.printTemplate(built, out)
}

// sayBuild tells where all is that a build has written which failed.
func (a *app) sayBuild(ctx context.Context, c *client.Client, name string, failure error) {
	last, err := c.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: name, Page: sandbox.Page{Limit: 1}})
	if err != nil || len(last.Items) == 0 || last.Items[0].State != sandbox.BuildFailed || last.Items[0].Reason != sandbox.MessageOf(failure) {
		return // it did not begin, or is no longer the last one
	}
	a.say("cove template logs %s shows all that the build has written", last.Items[0].ID)
}

type templateCreateOptions struct {
	jsonOption
	Snapshot, Template string
	Description        string
	buildOptions
}

func (o *templateCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVar(&o.Snapshot, "from-snapshot", "", "take the files of this snapshot of yours")
	f.StringVar(&o.Template, "from-template", "", "take this template, or one version of it")
	f.StringVar(&o.Description, "description", "", "what it is for")
	o.buildOptions.AddFlags(f)
}

func (a *app) templateCreateCommand() *cobra.Command {
	var opts templateCreateOptions
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a template of a snapshot's files, or of another template",
		Example: "  cove template create app --from-snapshot ready\n" +
			"  cove template create app-stable --from-template app@3",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runTemplateCreate(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	cmd.MarkFlagsOneRequired("from-snapshot", "from-template")
	cmd.MarkFlagsMutuallyExclusive("from-snapshot", "from-template")
	return cmd
}

func (a *app) runTemplateCreate(ctx context.Context, opts templateCreateOptions, args []string) error {
	from := sandbox.TemplateSource{Snapshot: opts.Snapshot, Template: opts.Template}
	spec := &sandbox.TemplateSpec{Description: opts.Description, From: from}
	return a.build(ctx, sandbox.BuildTemplateRequest{Name: args[0], Spec: spec, Force: opts.Force}, opts.jsonOption, opts.buildOptions)
}

type templateBuildsOptions struct {
	jsonOption
	Quiet bool
}

func (o *templateBuildsOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "ids only")
}

func (a *app) templateBuildsCommand() *cobra.Command {
	var opts templateBuildsOptions
	cmd := &cobra.Command{
		Use: "builds [NAME]", Short: "List builds, of one template if it is named, newest first",
		Example: "  cove template builds\n  cove template builds app",
		Args:    argsBetween(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runTemplateBuilds(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTemplateBuilds(ctx context.Context, opts templateBuildsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.ListBuildsRequest{}
	if len(args) == 1 {
		req.Template = args[0]
	}
	items, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Build], error) {
		req.Page = p
		return c.ListBuilds(ctx, req)
	})
	switch {
	case err != nil:
		return err
	case opts.JSON, opts.Quiet:
		return printIDs(a, opts.jsonOption, items, func(b *sandbox.Build) string { return b.ID })
	}
	rows := make([][]string, 0, len(items))
	for _, b := range items {
		state := string(b.State)
		if b.State == sandbox.BuildRunning {
			state = fmt.Sprintf("%s %d%%", state, int(b.Fraction*100))
		}
		version := ""
		if b.Version > 0 {
			version = fmt.Sprint(b.Version)
		}
		why := b.Step
		if b.Reason != "" {
			why = b.Reason
		}
		rows = append(rows, []string{b.ID, b.Template, state, version, age(b.CreatedAt), why})
	}
	return a.printTable([]string{"ID", "TEMPLATE", "STATE", "VERSION", "AGE", "STEP OR REASON"}, rows)
}

type templateLogsOptions struct {
	jsonOption
	Follow bool
}

func (o *templateLogsOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on until the build has ended, and fail if it has")
}

func (a *app) templateLogsCommand() *cobra.Command {
	var opts templateLogsOptions
	cmd := &cobra.Command{
		Use: "logs BUILD", Short: "Show what a build has written, from its beginning",
		Example: "  cove template logs bld-4x2… -f",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runTemplateLogs(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runTemplateLogs(ctx context.Context, opts templateLogsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	now, err := c.GetBuild(ctx, args[0])
	if err != nil {
		return err
	}
	step := ""
	seen := func(ev sandbox.BuildEvent) error {
		if opts.JSON {
			return a.printJSON(ev)
		}
		if ev.Step != "" && ev.Step != step {
			step = ev.Step
			if err := a.print("==> " + clean(step) + "\n"); err != nil {
				return err
			}
		}
		return a.print(clean(ev.Log))
	}
	if opts.Follow || now.State != sandbox.BuildRunning {
		return a.followBuild(ctx, c, now, opts, seen)
	}
	// What there is now comes at once; a pause is its end.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := time.AfterFunc(logPause, cancel)
	defer pause.Stop()
	_, err = c.FollowBuild(ctx, now.ID, func(ev sandbox.BuildEvent) error {
		pause.Reset(logPause)
		return seen(ev)
	})
	if sandbox.CodeOf(err) == sandbox.CodeCancelled {
		return nil
	}
	return err
}

// logPause is how long a build that runs writes nothing before its log so far is
// taken as read.
const logPause = time.Second

func (a *app) followBuild(ctx context.Context, c *client.Client, now *sandbox.Build, opts templateLogsOptions, seen func(sandbox.BuildEvent) error) error {
	ended, err := c.FollowBuild(ctx, now.ID, seen)
	if err != nil {
		return err
	}
	if opts.Follow && ended.State != sandbox.BuildReady {
		return fmt.Errorf("the build is %s: %s", ended.State, ended.Reason)
	}
	return nil
}

func (a *app) templateCancelCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "cancel BUILD", Short: "End a build and leave nothing of it",
		Example: "  cove template cancel bld-4x2…",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer closeQuietly(c)
			b, err := c.CancelBuild(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if opts.JSON {
				return a.printJSON(b)
			}
			return a.print(string(b.State) + "\n")
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) templateAliasCommand() *cobra.Command {
	remove := false
	cmd := &cobra.Command{
		Use: "alias ALIAS [NAME]", Short: "Give a template, or one version of it, a further name",
		Long: "Give a template, or one version of it as NAME@VERSION, a further name. An alias that another\n" +
			"template has moves.",
		Example: "  cove template alias stable app@3\n  cove template alias --rm stable",
		Args:    argsBetween(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remove != (len(args) == 1) {
				return usageError(cmd, fmt.Errorf("alias: give an alias and the template that it stands for, or --rm and the alias"))
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer closeQuietly(c)
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			return c.AliasTemplate(cmd.Context(), args[0], name)
		},
	}
	cmd.Flags().BoolVar(&remove, "rm", false, "take the alias away")
	return cmd
}

func (a *app) templateRmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"delete"}, Short: "Remove templates with all their versions, or versions as NAME@VERSION",
		Long:    "Remove templates. Their sandboxes and snapshots live on. A built-in template is only unbuilt.",
		Example: "  cove template rm app\n  cove template rm app@1 app@2",
		Args:    argsBetween(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer closeQuietly(c)
			for _, name := range args {
				if err := c.DeleteTemplate(cmd.Context(), name); err != nil {
					return err
				}
				if err := a.print(name + "\n"); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (a *app) templateSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of template files, for editors",
		Example: "  cove template schema > template.schema.json",
		Args:    argsBetween(0, 0),
		RunE:    func(*cobra.Command, []string) error { return a.print(string(templatefile.Schema())) },
	}
}
