package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type updateOptions struct {
	jsonOption
	Name                    string
	Metadata, Env           pairs
	ClearMetadata, ClearEnv bool
	VCPUs                   int
	Memory                  mebibytes
	PIDs                    int64
	Lifetime, IdleTimeout   seconds
	PausedLifetime          seconds
	OnTimeout               string
	History                 int
	reachOptions
	changed func(flag string) bool
}

func (o *updateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVar(&o.Name, "name", "", "new name; empty takes the name away")
	f.VarP(&o.Metadata, "metadata", "m", "metadata in place of all there is, key=value; may be repeated")
	f.BoolVar(&o.ClearMetadata, "clear-metadata", false, "no metadata")
	f.VarP(&o.Env, "env", "e", "environment in place of all there is, key=value; may be repeated")
	f.BoolVar(&o.ClearEnv, "clear-env", false, "no environment of its own")
	f.IntVar(&o.VCPUs, "vcpus", 0, "processors; programs get them, but see the number of the creation")
	f.Var(&o.Memory, "memory", "memory, such as 512m or 2g")
	f.Int64Var(&o.PIDs, "pids", 0, "processes and threads")
	f.Var(&o.Lifetime, "lifetime", "end it this long from now; 0 is no bound")
	f.Var(&o.IdleTimeout, "idle-timeout", "end it after this time without use; 0 is no bound")
	f.StringVar(&o.OnTimeout, "on-timeout", "", "what the ends above mean: kill or pause")
	f.Var(&o.PausedLifetime, "paused-lifetime", "end it when it has been paused for this time without a break, from now if it is paused; 0 is never")
	f.IntVar(&o.History, "history", 0, historyHelp+"; 0 removes them")
	o.reachOptions.AddFlags(f)
	o.changed = f.Changed
}

func (o *updateOptions) request() (sandbox.UpdateRequest, error) {
	var req sandbox.UpdateRequest
	if o.ClearMetadata && o.Metadata != nil || o.ClearEnv && o.Env != nil {
		return req, errors.New("update: a map is both cleared and given; give one")
	}
	req.Metadata, req.Env = o.Metadata, o.Env
	if o.ClearMetadata {
		req.Metadata = map[string]string{}
	}
	if o.ClearEnv {
		req.Env = map[string]string{}
	}
	if o.changed("name") {
		req.Name = &o.Name
	}
	if o.changed("vcpus") {
		req.VCPUs = &o.VCPUs
	}
	if o.changed("memory") {
		mib := int64(o.Memory)
		req.MemoryMiB = &mib
	}
	if o.changed("pids") {
		req.MaxPIDs = &o.PIDs
	}
	req.LifetimeSeconds, req.IdleTimeoutSeconds, req.PausedLifetimeSeconds = o.Lifetime.value, o.IdleTimeout.value, o.PausedLifetime.value
	if o.changed("on-timeout") {
		action := sandbox.TimeoutAction(o.OnTimeout)
		req.OnTimeout = &action
	}
	if o.changed("history") {
		req.History = &o.History
	}
	return req, nil
}

func (a *app) updateCommand() *cobra.Command {
	var opts updateOptions
	cmd := &cobra.Command{
		Use:     "update SANDBOX [flags]",
		Short:   "Change a living sandbox",
		Long:    "Change a living sandbox: all that is given, or nothing. The network comes last, by itself;\nsee: cove egress --help.",
		Example: "  cove update work --lifetime 2h\n  cove update work --memory 4g -m task=done",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := opts.request()
			if err != nil {
				return usageError(cmd, err)
			}
			return a.runUpdate(cmd.Context(), opts, req, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runUpdate(ctx context.Context, opts updateOptions, req sandbox.UpdateRequest, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	sb, err := c.Update(ctx, args[0], req)
	if err != nil {
		return err
	}
	if opts.given() {
		// By its id: the name may be another by now.
		if err := updateNetwork(ctx, c, sb.ID, opts.reachOptions); err != nil {
			return err
		}
		if sb, err = c.Get(ctx, sb.ID); err != nil {
			return err
		}
	}
	a.warnUnenforced(sb)
	return a.printSandbox(sb, opts.jsonOption)
}
