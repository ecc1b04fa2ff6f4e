package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type updateOptions struct {
	req                     sandbox.UpdateRequest
	Name                    string
	ClearMetadata, ClearEnv bool
	VCPUs, History          int
	Memory, PIDs            int64
	OnTimeout               string
	reachOptions
}

func (o *updateOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Name, "name", "", "New name; empty removes the name")
	f.VarP(pairsFlag(&o.req.Metadata), "metadata", "m", "Metadata, replacing all existing metadata (repeatable)")
	f.BoolVar(&o.ClearMetadata, "clear-metadata", false, "Remove all metadata")
	f.VarP(pairsFlag(&o.req.Env), "env", "e", "Environment variable, replacing all of the sandbox's own (repeatable)")
	f.BoolVar(&o.ClearEnv, "clear-env", false, "Remove all of the sandbox's own environment variables")
	f.IntVar(&o.VCPUs, "vcpus", 0, "Number of processors; programs get them but still see the number set at creation")
	f.Var(sizeFlag(&o.Memory), "memory", "Memory limit, such as 512m or 2g")
	f.Int64Var(&o.PIDs, "pids", 0, "Limit on processes and threads")
	f.Var(optionalSecondsFlag(&o.req.LifetimeSeconds), "lifetime", "End the sandbox this long from now; 0 means no limit")
	f.Var(optionalSecondsFlag(&o.req.IdleTimeoutSeconds), "idle-timeout", "End the sandbox after this time without use; 0 means no limit")
	f.StringVar(&o.OnTimeout, "on-timeout", "", "What to do when one of these times ends: kill or pause")
	f.Var(optionalSecondsFlag(&o.req.PausedLifetimeSeconds), "paused-lifetime", "End the sandbox after it has been paused for this time without a break, counted from now if it is paused; 0 means never")
	f.Var(optionalSecondsFlag(&o.req.CheckpointIntervalSeconds), "checkpoint-interval", checkpointHelp)
	f.IntVar(&o.History, "history", 0, historyHelp+"; 0 removes them")
	o.reachOptions.AddFlags(f)
}

func (a *app) updateCommand() *cobra.Command {
	var opts updateOptions
	return a.make(command{
		Use: "update SANDBOX [flags]", Short: "Change the settings of a sandbox",
		Long:    "Change the settings of a sandbox that has not ended. All changes take effect together or not at all, except\nthe network policy, which changes last and separately (see cove egress --help).",
		Example: "  cove update work --lifetime 2h\n  cove update work --memory 4g -m task=done",
		Flags:   opts.AddFlags,
		Do:      show(sandboxDetails, opts.update),
	})
}

// request returns the changes that the flags describe, without the network. Fields
// without a flag do not change.
func (o *updateOptions) request(c *call) (sandbox.UpdateRequest, error) {
	req, f := o.req, c.cmd.Flags()
	if o.ClearMetadata && req.Metadata != nil || o.ClearEnv && req.Env != nil {
		return req, c.misuse("update: --clear-metadata and --metadata, or --clear-env and --env, are both given; use one of each pair")
	}
	if o.ClearMetadata {
		req.Metadata = map[string]string{}
	}
	if o.ClearEnv {
		req.Env = map[string]string{}
	}
	req.Name = ifGiven(f, "name", o.Name)
	req.VCPUs = ifGiven(f, "vcpus", o.VCPUs)
	req.MemoryMiB = ifGiven(f, "memory", o.Memory)
	req.MaxPIDs = ifGiven(f, "pids", o.PIDs)
	req.OnTimeout = ifGiven(f, "on-timeout", sandbox.TimeoutAction(o.OnTimeout))
	req.History = ifGiven(f, "history", o.History)
	return req, nil
}

func (o *updateOptions) update(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
	req, err := o.request(c)
	if err != nil {
		return nil, err
	}
	sb, err := c.client.Update(ctx, c.args[0], req)
	if err != nil {
		return nil, err
	}
	if o.given() {
		// By id, since the update may have changed the name.
		if err := updateNetwork(ctx, c.client, sb.ID, o.reachOptions); err != nil {
			return nil, err
		}
		if sb, err = c.client.Get(ctx, sb.ID); err != nil {
			return nil, err
		}
	}
	c.warnUnenforced(sb)
	return sb, nil
}
