package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

const egressHelp = "Show or change what a sandbox may reach. Changes take effect at once; existing connections are\n" +
	"judged again.\n\n" +
	"A connection is judged in this order, and the first match decides: allow_out, deny_out, the\n" +
	"rules from the first to the last, the preset. The presets are open (the public Internet),\n" +
	"packages (the usual package registries and code hosts) and none. Addresses of the host's own\n" +
	"world, private ones and loopback among them, are denied unless a rule names them.\n\n" +
	"A target is a domain (example.com), all domains below one (*.example.com), an address, a range\n" +
	"(10.1.0.0/16), another sandbox of yours (sandbox:NAME) or \"*\"."

func (a *app) egressCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "egress SANDBOX", Short: "Show or change what a sandbox may reach", Long: egressHelp,
		Example: "  cove egress work\n" +
			"  cove egress set work none\n" +
			"  cove egress set work --allow-out '*.pypi.org,github.com' --deny-out 0.0.0.0/0\n" +
			"  cove egress allow work api.example.com --port 443",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runEgressShow(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	cmd.AddCommand(a.egressShowCommand(), a.egressRuleCommand(sandbox.NetworkAllow), a.egressRuleCommand(sandbox.NetworkDeny), a.egressRmCommand(), a.egressSetCommand())
	return cmd
}

func (a *app) egressShowCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "show SANDBOX", Short: "Show what a sandbox may reach, in the order in which it is judged",
		Example: "  cove egress show work\n  cove egress show work --json > policy.json",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runEgressShow(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runEgressShow(ctx context.Context, opts jsonOption, args []string) error {
	return a.changeNetwork(ctx, opts, args[0], nil)
}

// changeNetwork changes a sandbox's policy, if there is a change, and prints
// it.
func (a *app) changeNetwork(ctx context.Context, opts jsonOption, name string, change func(*sandbox.NetworkPolicy) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	policy, err := c.GetNetwork(ctx, name)
	if err != nil {
		return err
	}
	if change != nil {
		if err := change(policy); err != nil {
			return err
		}
		if policy, err = c.SetNetwork(ctx, name, *policy); err != nil {
			return err
		}
	}
	return a.printPolicy(policy, opts)
}

func (a *app) printPolicy(p *sandbox.NetworkPolicy, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(p)
	}
	var rows [][]string
	row := func(from string, action sandbox.NetworkAction, to, protocol string, ports []string) {
		rows = append(rows, []string{strconv.Itoa(len(rows) + 1), from, string(action), to, protocol, strings.Join(ports, ",")})
	}
	for _, to := range p.AllowOut {
		row("allow_out", sandbox.NetworkAllow, to, "", nil)
	}
	for _, to := range p.DenyOut {
		row("deny_out", sandbox.NetworkDeny, to, "", nil)
	}
	for _, r := range p.Rules {
		row("rule", r.Action, r.To, r.Protocol, r.Ports)
	}
	switch presetOf(p) {
	case sandbox.NetworkOpen:
		row("preset open", sandbox.NetworkAllow, "the public Internet", "", nil)
	case sandbox.NetworkPackages:
		row("preset packages", sandbox.NetworkAllow, "package registries and code hosts", "", nil)
		row("preset packages", sandbox.NetworkDeny, "*", "", nil)
	default:
		row("preset "+string(presetOf(p)), sandbox.NetworkDeny, "*", "", nil)
	}
	if err := a.printTable([]string{"ORDER", "FROM", "ACTION", "TO", "PROTOCOL", "PORTS"}, rows); err != nil {
		return err
	}
	bandwidth := ""
	if p.BytesPerSecond > 0 {
		bandwidth = bytesText(p.BytesPerSecond) + " a second each way"
	}
	return a.fields(
		"placeholders", string(p.Placeholders),
		"connections", amount(p.MaxConnections, "%d at the same time"),
		"rate", amount(p.ConnectionsPerSecond, "%d new ones a second"),
		"bandwidth", bandwidth,
	)
}

func amount(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

type egressRuleOptions struct {
	jsonOption
	Protocol string
	Ports    []string
	Last     bool
}

func (o *egressRuleOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVar(&o.Protocol, "protocol", "", "tcp, udp or icmp only")
	f.StringSliceVar(&o.Ports, "port", nil, "these ports only, such as 443 or 8000-8999; with commas or repeated")
	f.BoolVar(&o.Last, "last", false, "put the rules behind the others, not before them")
}

func (a *app) egressRuleCommand(action sandbox.NetworkAction) *cobra.Command {
	var opts egressRuleOptions
	verb := map[sandbox.NetworkAction]string{sandbox.NetworkAllow: "Let a sandbox reach something", sandbox.NetworkDeny: "Keep a sandbox from reaching something"}[action]
	cmd := &cobra.Command{
		Use: string(action) + " SANDBOX TARGET...", Short: verb,
		Long: verb + ": add rules before those that are there. See\ncove egress --help for targets and the order.",
		Example: fmt.Sprintf("  cove egress %[1]s work api.example.com '*.example.org' --port 443\n", action) +
			fmt.Sprintf("  cove egress %s work 203.0.113.0/24 --protocol udp", action),
		Args: argsBetween(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runEgressRule(cmd.Context(), opts, action, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runEgressRule(ctx context.Context, opts egressRuleOptions, action sandbox.NetworkAction, args []string) error {
	return a.changeNetwork(ctx, opts.jsonOption, args[0], func(p *sandbox.NetworkPolicy) error {
		var rules []sandbox.NetworkRule
		for _, to := range args[1:] {
			rules = append(rules, sandbox.NetworkRule{Action: action, To: to, Protocol: opts.Protocol, Ports: opts.Ports})
		}
		if opts.Last {
			p.Rules = append(p.Rules, rules...)
		} else {
			p.Rules = append(rules, p.Rules...)
		}
		if len(p.AllowOut)+len(p.DenyOut) > 0 {
			a.say("this policy has allow_out or deny_out, which are looked at before the rules")
		}
		return nil
	})
}

func (a *app) egressRmCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "rm SANDBOX TARGET...", Short: "Remove what a policy says of targets",
		Long:    "Remove the rules for targets, and the targets from allow_out and deny_out.",
		Example: "  cove egress rm work api.example.com",
		Args:    argsBetween(2, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runEgressRm(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runEgressRm(ctx context.Context, opts jsonOption, args []string) error {
	return a.changeNetwork(ctx, opts, args[0], func(p *sandbox.NetworkPolicy) error {
		for _, target := range args[1:] {
			before := len(p.Rules) + len(p.AllowOut) + len(p.DenyOut)
			p.Rules = slices.DeleteFunc(p.Rules, func(r sandbox.NetworkRule) bool { return r.To == target })
			p.AllowOut = slices.DeleteFunc(p.AllowOut, func(to string) bool { return to == target })
			p.DenyOut = slices.DeleteFunc(p.DenyOut, func(to string) bool { return to == target })
			if before == len(p.Rules)+len(p.AllowOut)+len(p.DenyOut) {
				return sandbox.Errorf(sandbox.CodeNotFound, "the policy says nothing of %s; see: cove egress %s", target, args[0])
			}
		}
		return nil
	})
}

type egressSetOptions struct {
	jsonOption
	reachOptions
	File           string
	Placeholders   string
	MaxConnections int
	PerSecond      int
	Bandwidth      int64
}

func (o *egressSetOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringSliceVar(&o.AllowOut, "allow-out", nil, "domain, *.domain, address or range that it may reach; with commas or repeated")
	f.StringSliceVar(&o.DenyOut, "deny-out", nil, "address or range that it may not, unless --allow-out has it; 0.0.0.0/0 is all")
	f.StringVarP(&o.File, "file", "f", "", "the whole policy in JSON or YAML, as cove egress --json prints it; - is standard input")
	f.StringVar(&o.Placeholders, "placeholders", "", "what becomes of a secret's placeholder that goes to a wrong host: forward or block")
	f.IntVar(&o.MaxConnections, "max-connections", 0, "connections at the same time")
	f.IntVar(&o.PerSecond, "connections-per-second", 0, "new connections and DNS questions a second")
	f.Int64Var(&o.Bandwidth, "bytes-per-second", 0, "bytes a second each way; 0 is no bound")
}

func (a *app) egressSetCommand() *cobra.Command {
	var opts egressSetOptions
	cmd := &cobra.Command{
		Use: "set SANDBOX [PRESET]", Short: "Replace what a sandbox may reach",
		Long: "Replace the whole policy of a sandbox by a preset (" + presetNames() + "), lists, or a file.\n" +
			"allow_out alone locks nothing: together with --deny-out 0.0.0.0/0 it is all that can be reached.",
		Example: "  cove egress set work packages\n" +
			"  cove egress set work --allow-out 'api.example.com,*.pypi.org' --deny-out 0.0.0.0/0\n" +
			"  cove egress work --json | jq '.rules += [{action: \"deny\", to: \"*\", protocol: \"udp\"}]' | cove egress set work -f -",
		Args: argsBetween(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				opts.Preset = args[1]
			}
			if opts.File != "" && opts.given() {
				return usageError(cmd, errors.New("egress set: a file is the whole policy; give either --file or the rest"))
			}
			if opts.File == "" && !opts.given() {
				return usageError(cmd, errors.New("egress set: give a preset ("+presetNames()+"), --allow-out, --deny-out or --file"))
			}
			return a.runEgressSet(cmd.Context(), opts, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runEgressSet(ctx context.Context, opts egressSetOptions, args []string) error {
	policy := opts.policy(&sandbox.NetworkPolicy{})
	if opts.File != "" {
		var err error
		if policy, err = readPolicy(a.Stdin, opts.File); err != nil {
			return err
		}
	}
	for _, o := range []struct {
		given bool
		set   func()
	}{
		{opts.Placeholders != "", func() { policy.Placeholders = sandbox.PlaceholderAction(opts.Placeholders) }},
		{opts.MaxConnections != 0, func() { policy.MaxConnections = opts.MaxConnections }},
		{opts.PerSecond != 0, func() { policy.ConnectionsPerSecond = opts.PerSecond }},
		{opts.Bandwidth != 0, func() { policy.BytesPerSecond = opts.Bandwidth }},
	} {
		if o.given {
			o.set()
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	policy, err = c.SetNetwork(ctx, args[0], *policy)
	if err != nil {
		return err
	}
	return a.printPolicy(policy, opts.jsonOption)
}

// updateNetwork changes a part of a policy.
func updateNetwork(ctx context.Context, c *client.Client, name string, opts reachOptions) error {
	policy, err := c.GetNetwork(ctx, name)
	if err != nil {
		return err
	}
	_, err = c.SetNetwork(ctx, name, *opts.policy(policy))
	return err
}
