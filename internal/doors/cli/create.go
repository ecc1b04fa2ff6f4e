package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// sandboxOptions describe a sandbox to be made.
type sandboxOptions struct {
	Name, Template        string
	User, WorkDir         string
	Metadata, Env         pairs
	VCPUs                 int
	Memory, Disk          mebibytes
	PIDs                  int64
	Lifetime, IdleTimeout seconds
	PausedLifetime        seconds
	OnTimeout             string
	Snapshot              string
	History               int
	networkOptions
	mountOptions
}

const historyHelp = "keep so many automatic snapshots, one before each command; see: cove snapshot ls -a"

// AddFlags adds the options' flags.
func (o *sandboxOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Name, "name", "", "name, unique among your sandboxes")
	f.StringVarP(&o.Template, "template", "T", "", "template; see: cove template ls")
	f.StringVar(&o.Snapshot, "snapshot", "", "snapshot to begin with in place of a template; see: cove snapshot ls")
	f.VarP(&o.Metadata, "metadata", "m", "metadata to find it by, key=value; may be repeated")
	f.VarP(&o.Env, "env", "e", "environment of its commands, key=value; may be repeated")
	f.IntVar(&o.VCPUs, "vcpus", 0, "processors")
	f.Var(&o.Memory, "memory", "memory, such as 512m or 2g")
	f.Var(&o.Disk, "disk", "what it may write, such as 4g")
	f.Int64Var(&o.PIDs, "pids", 0, "processes and threads")
	f.StringVarP(&o.User, "user", "u", "", "user that commands run as")
	f.StringVarP(&o.WorkDir, "workdir", "w", "", "working directory of commands")
	f.Var(&o.Lifetime, "lifetime", "end it after this time; 0 is no bound")
	f.Var(&o.IdleTimeout, "idle-timeout", "end it after this time without use; 0 is no bound")
	f.StringVar(&o.OnTimeout, "on-timeout", "", "what the ends above mean: kill or pause")
	f.Var(&o.PausedLifetime, "paused-lifetime", "end it when it has been paused for this time without a break; 0 is never")
	f.IntVar(&o.History, "history", 0, historyHelp)
	o.networkOptions.AddFlags(f)
	o.mountOptions.AddFlags(f)
}

// request returns what is asked for; c tells of secrets, and standard input may
// have the network's policy.
func (o *sandboxOptions) request(ctx context.Context, c *client.Client, stdin io.Reader) (sandbox.CreateRequest, error) {
	req := sandbox.CreateRequest{
		Name: o.Name, Template: o.Template, Metadata: o.Metadata, Env: o.Env,
		Resources: sandbox.Resources{VCPUs: o.VCPUs, MemoryMiB: int64(o.Memory), DiskMiB: int64(o.Disk), MaxPIDs: o.PIDs},
		User:      o.User, WorkDir: o.WorkDir,
		LifetimeSeconds: o.Lifetime.value, IdleTimeoutSeconds: o.IdleTimeout.value,
		OnTimeout: sandbox.TimeoutAction(o.OnTimeout), Snapshot: o.Snapshot, History: o.History, Mounts: o.Mounts,
	}
	if p := o.PausedLifetime.value; p != nil {
		req.PausedLifetimeSeconds = *p
	}
	return req, o.apply(ctx, c, stdin, &req)
}

// limits reports whether limits were asked for: only who did is told which of
// them are not enforced, others by cove get and cove doctor.
func (o *sandboxOptions) limits() bool {
	return o.VCPUs != 0 || o.Memory != 0 || o.Disk != 0 || o.PIDs != 0 || len(o.Mounts) > 0
}

type createOptions struct {
	sandboxOptions
	jsonOption
}

func (o *createOptions) AddFlags(f *pflag.FlagSet) {
	o.sandboxOptions.AddFlags(f)
	o.jsonOption.AddFlags(f)
}

func (a *app) createCommand() *cobra.Command {
	var opts createOptions
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox and print its id",
		Long:  "Create a sandbox and print its id when it runs.",
		Example: "  cove create --name work --memory 2g --lifetime 8h\n" +
			"  cove create -T code-interpreter -m task=review -e LANG=C.UTF-8\n" +
			"  cove create --snapshot before-upgrade --idle-timeout 10m --on-timeout pause\n" +
			"  cove create --network packages --secret anthropic --publish 8080:80\n" +
			"  cove create --network-file policy.yaml\n" +
			"  cove create --volume data:/data --mount type=tmpfs,target=/scratch,tmpfs-size=256m",
		Args: argsBetween(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runCreate(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runCreate(ctx context.Context, opts createOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req, err := opts.request(ctx, c, a.Stdin)
	if err != nil {
		return err
	}
	sb, err := a.create(ctx, c, req)
	if err != nil {
		return err
	}
	if opts.limits() {
		a.warnUnenforced(sb)
	}
	if opts.JSON {
		return a.printJSON(sb)
	}
	return a.print(sb.ID + "\n")
}

// warnUnenforced tells which limits the machine does not enforce.
func (a *app) warnUnenforced(sb *sandbox.Sandbox) {
	for _, what := range sb.Unenforced {
		a.say("not enforced on this machine: %s (see: cove doctor)", clean(what))
	}
}
