package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

const historyHelp = "Keep this many automatic snapshots, one before each command (see cove snapshot ls -a)"

const checkpointHelp = "Keep the state of the sandbox at this interval while it is in use, from 1m to 24h. If its node or supervisor dies, the sandbox continues from the last state that was kept. 0 means never"

// sandboxOptions describe a sandbox to be made.
type sandboxOptions struct {
	req sandbox.CreateRequest
	networkOptions
}

// AddFlags adds the options' flags.
func (o *sandboxOptions) AddFlags(f *pflag.FlagSet) {
	req := &o.req
	f.StringVar(&req.Name, "name", "", "Name, unique among your sandboxes")
	f.StringVarP(&req.Template, "template", "T", "", "Template to start from (see cove template ls)")
	f.StringVar(&req.Snapshot, "snapshot", "", "Snapshot to start from, instead of a template (see cove snapshot ls)")
	f.VarP(pairsFlag(&req.Metadata), "metadata", "m", "Metadata to filter by (repeatable)")
	f.VarP(pairsFlag(&req.Env), "env", "e", "Environment variable for commands (repeatable)")
	f.IntVar(&req.Resources.VCPUs, "vcpus", 0, "Number of processors")
	f.Var(sizeFlag(&req.Resources.MemoryMiB), "memory", "Memory limit, such as 512m or 2g")
	f.Var(sizeFlag(&req.Resources.DiskMiB), "disk", "Disk limit, such as 4g")
	f.Int64Var(&req.Resources.MaxPIDs, "pids", 0, "Limit on processes and threads")
	f.StringVarP(&req.User, "user", "u", "", "User to run commands as")
	f.StringVarP(&req.WorkDir, "workdir", "w", "", "Working directory for commands")
	f.Var(optionalSecondsFlag(&req.LifetimeSeconds), "lifetime", "End the sandbox after this time; 0 means no limit")
	f.Var(optionalSecondsFlag(&req.IdleTimeoutSeconds), "idle-timeout", "End the sandbox after this time without use; 0 means no limit")
	f.StringVar((*string)(&req.OnTimeout), "on-timeout", "", "What to do when one of these times ends: kill or pause")
	f.Var(secondsFlag(&req.PausedLifetimeSeconds), "paused-lifetime", "End the sandbox after it has been paused for this time without a break; 0 means never")
	f.Var(optionalSecondsFlag(&req.CheckpointIntervalSeconds), "checkpoint-interval", checkpointHelp)
	f.BoolFunc("dedicated", "Run the sandbox and its forks on a dedicated node, where no other sandboxes run (default: the server's setting; --dedicated=false turns it off)", func(text string) error {
		dedicated, err := strconv.ParseBool(text)
		req.Dedicated = &dedicated
		return err
	})
	f.IntVar(&req.History, "history", 0, historyHelp)
	f.Var(listFlag(&req.Mounts, "mount", parseMount), "mount", "Mount a volume, a directory of the server, or memory:\ntype=volume|bind|tmpfs,source=NAME,target=/data[,readonly][,tmpfs-size=64m] (repeatable)")
	f.Var(listFlag(&req.Mounts, "volume", parseVolume), "volume", "Mount a volume, as NAME:/data[:ro] (repeatable)")
	f.Var(listFlag(&req.Ports, "ports", parsePublished), "publish", "Forward a port of this machine to the sandbox, as [ADDRESS:]HOST:GUEST (repeatable)")
	o.networkOptions.AddFlags(f)
}

// make makes the sandbox that the options describe.
func (o *sandboxOptions) make(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
	if err := o.apply(ctx, c.client, c.Stdin, &o.req); err != nil {
		return nil, err
	}
	sb, err := c.create(ctx, c.client, o.req)
	if limits := o.req.Resources != (sandbox.Resources{}) || len(o.req.Mounts) > 0; err == nil && limits {
		// The warning is only for users who set limits; cove get and cove doctor show
		// unenforced limits too.
		c.warnUnenforced(sb)
	}
	return sb, err
}

func (a *app) createCommand() *cobra.Command {
	var opts sandboxOptions
	return a.make(command{
		Use: "create [flags]", Short: "Create a sandbox and print its id",
		Long: "Create a sandbox and print its id once it is running.",
		Example: "  cove create --name work --memory 2g --lifetime 8h\n" +
			"  cove create -T code-interpreter -m task=review -e LANG=C.UTF-8\n" +
			"  cove create --snapshot before-upgrade --idle-timeout 10m --on-timeout pause\n" +
			"  cove create --network packages --secret anthropic --publish 8080:80\n" +
			"  cove create --network-file policy.yaml\n" +
			"  cove create --volume data:/data --mount type=tmpfs,target=/scratch,tmpfs-size=256m",
		Flags: opts.AddFlags,
		Do:    show(only(sandboxID), opts.make),
	})
}

// warnUnenforced prints which limits the machine does not enforce.
func (a *app) warnUnenforced(sb *sandbox.Sandbox) {
	for _, what := range sb.Unenforced {
		a.say("this machine does not enforce: %s (see cove doctor)", clean(what))
	}
}
