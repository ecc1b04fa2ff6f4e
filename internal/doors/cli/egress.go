package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

const egressHelp = "Show or change what a sandbox may connect to. Changes take effect at once, and existing connections\n" +
	"are checked again.\n\n" +
	"The first match decides, in this order: allow_out, deny_out, the rules from first to last, the\n" +
	"preset. The presets are open (the public Internet), packages (common package registries and code\n" +
	"hosts) and none. Internal addresses of the host's network, including private addresses and loopback,\n" +
	"are denied unless a rule names them.\n\n" +
	"A target is a domain (example.com), all domains below one (*.example.com), an address, a range\n" +
	"(10.1.0.0/16), another of your sandboxes (sandbox:NAME), or \"*\" for everything. An ask rule can also\n" +
	"name a secret (secret:NAME, or secret:* for all), to be asked before the secret is used."

func (a *app) egressCommand() *cobra.Command {
	current := show(printPolicy, byName(sandbox.Service.GetNetwork))
	cmd := a.make(command{
		Use: "egress SANDBOX", Short: "Show or change a sandbox's network policy", Long: egressHelp,
		Example: "  cove egress work\n" +
			"  cove egress set work none\n" +
			"  cove egress set work --allow-out '*.pypi.org,github.com' --deny-out 0.0.0.0/0\n" +
			"  cove egress allow work api.example.com --port 443",
		Do: current,
	})
	cmd.AddCommand(
		a.make(command{
			Use: "show SANDBOX", Short: "Show a sandbox's network policy in the order of evaluation",
			Example: "  cove egress show work\n  cove egress show work --json > policy.json",
			Do:      current,
		}),
		a.egressRuleCommand(sandbox.NetworkAllow, "Allow a sandbox to connect to targets"),
		a.egressRuleCommand(sandbox.NetworkDeny, "Deny a sandbox connections to targets"),
		a.egressRuleCommand(sandbox.NetworkAsk, "Ask before a sandbox connects to targets"),
		a.make(command{
			Use: "rm SANDBOX TARGET...", Short: "Remove targets from a sandbox's network policy",
			Long:    "Remove the rules and headers for the targets, and the targets from allow_out and deny_out.",
			Example: "  cove egress rm work api.example.com",
			Do:      changedPolicy(forgetTargets),
		}),
		a.egressSetCommand())
	return cmd
}

// changedPolicy changes a sandbox's policy and shows it.
func changedPolicy(change func(*call, *sandbox.NetworkPolicy) error) action {
	return show(printPolicy, func(ctx context.Context, c *call) (*sandbox.NetworkPolicy, error) {
		policy, err := c.client.GetNetwork(ctx, c.args[0])
		if err != nil {
			return nil, err
		}
		if err := change(c, policy); err != nil {
			return nil, err
		}
		return c.client.SetNetwork(ctx, c.args[0], *policy)
	})
}

func printPolicy(c *call, p *sandbox.NetworkPolicy) error {
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
	if err := c.printTable([]string{"ORDER", "SOURCE", "ACTION", "TO", "PROTOCOL", "PORTS"}, rows); err != nil {
		return err
	}
	bandwidth := ""
	if p.BytesPerSecond > 0 {
		bandwidth = bytesText(p.BytesPerSecond) + "/s in each direction"
	}
	var headers []string
	for _, r := range p.Headers {
		headers = append(headers, r.To+" gets "+strings.Join(slices.Sorted(maps.Keys(r.Set)), ", "))
	}
	return c.fields(
		"headers", headers,
		"placeholders", p.Placeholders,
		"connections", amount(p.MaxConnections, "at most %d open"),
		"rate", amount(p.ConnectionsPerSecond, "at most %d new per second"),
		"bandwidth", bandwidth,
		"questions", amount(p.AskTimeoutSeconds, "wait %d seconds for an answer"),
	)
}

func amount(n int, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

func (a *app) egressRuleCommand(action sandbox.NetworkAction, verb string) *cobra.Command {
	rule := sandbox.NetworkRule{Action: action}
	last := false
	return a.make(command{
		Use: string(action) + " SANDBOX TARGET...", Short: verb,
		Long: verb + ". New rules go before the existing ones. See\ncove egress --help for targets and the order of evaluation.",
		Example: fmt.Sprintf("  cove egress %[1]s work api.example.com '*.example.org' --port 443\n", action) +
			fmt.Sprintf("  cove egress %s work 203.0.113.0/24 --protocol udp", action),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&rule.Protocol, "protocol", "", "Match only tcp, udp or icmp")
			f.StringSliceVar(&rule.Ports, "port", nil, "Match only these ports, such as 443 or 8000-8999 (comma-separated or repeatable)")
			f.BoolVar(&last, "last", false, "Add the rules after the existing ones, not before them")
		},
		Do: changedPolicy(func(c *call, p *sandbox.NetworkPolicy) error {
			var rules []sandbox.NetworkRule
			for _, rule.To = range c.args[1:] {
				rules = append(rules, rule)
			}
			if last {
				p.Rules = append(p.Rules, rules...)
			} else {
				p.Rules = append(rules, p.Rules...)
			}
			if len(p.AllowOut)+len(p.DenyOut) > 0 {
				c.say("this policy has allow_out or deny_out, which are evaluated before the rules")
			}
			return nil
		}),
	})
}

// forgetTargets removes what a policy says about the named targets.
func forgetTargets(c *call, p *sandbox.NetworkPolicy) error {
	for _, target := range c.args[1:] {
		said := func() int { return len(p.Rules) + len(p.AllowOut) + len(p.DenyOut) + len(p.Headers) }
		before := said()
		p.Rules = slices.DeleteFunc(p.Rules, func(r sandbox.NetworkRule) bool { return r.To == target })
		p.AllowOut = slices.DeleteFunc(p.AllowOut, func(to string) bool { return to == target })
		p.DenyOut = slices.DeleteFunc(p.DenyOut, func(to string) bool { return to == target })
		p.Headers = slices.DeleteFunc(p.Headers, func(r sandbox.HeaderRule) bool { return r.To == target })
		if before == said() {
			return sandbox.Errorf(sandbox.CodeNotFound, "the policy has no entry for %s; show it with: cove egress %s", target, c.args[0])
		}
	}
	return nil
}

type egressSetOptions struct {
	reachOptions
	File string
	// rest has fields to set in the policy, whatever its source; zero fields change
	// nothing.
	rest sandbox.NetworkPolicy
}

func (o *egressSetOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.AllowOut, "allow-out", nil, "Allow this domain, *.domain, address or range (comma-separated or repeatable)")
	f.StringSliceVar(&o.DenyOut, "deny-out", nil, "Deny this address or range, unless --allow-out has it; 0.0.0.0/0 denies all (comma-separated or repeatable)")
	f.StringVarP(&o.File, "file", "f", "", "Read the whole policy from a JSON or YAML file, as cove egress --json prints it; - is standard input")
	f.StringVar((*string)(&o.rest.Placeholders), "placeholders", "", "What to do with a secret's placeholder sent to a wrong host: forward or block")
	f.IntVar(&o.rest.MaxConnections, "max-connections", 0, "Limit on open connections")
	f.IntVar(&o.rest.ConnectionsPerSecond, "connections-per-second", 0, "Limit on new connections and DNS queries per second")
	f.Int64Var(&o.rest.BytesPerSecond, "bytes-per-second", 0, "Limit on bytes per second in each direction; 0 means no limit")
}

func (a *app) egressSetCommand() *cobra.Command {
	var opts egressSetOptions
	return a.make(command{
		Use: "set SANDBOX [PRESET]", Short: "Replace a sandbox's network policy",
		Long: "Replace the whole network policy of a sandbox with a preset (" + presetNames() + "), lists, or a file.\n" +
			"--allow-out alone restricts nothing: add --deny-out 0.0.0.0/0 to deny everything else.",
		Example: "  cove egress set work packages\n" +
			"  cove egress set work --allow-out 'api.example.com,*.pypi.org' --deny-out 0.0.0.0/0\n" +
			"  cove egress work --json | jq '.rules += [{action: \"deny\", to: \"*\", protocol: \"udp\"}]' | cove egress set work -f -",
		Flags: opts.AddFlags,
		Do: show(printPolicy, func(ctx context.Context, c *call) (*sandbox.NetworkPolicy, error) {
			opts.Preset = c.arg(1)
			if opts.File != "" && opts.given() {
				return nil, c.misuse("egress set: --file has the whole policy; leave out the preset, --allow-out and --deny-out")
			}
			if opts.File == "" && !opts.given() {
				return nil, c.misuse("egress set: missing policy; give a preset (%s), --allow-out, --deny-out or --file", presetNames())
			}
			policy, err := opts.whole(c.Stdin)
			if err != nil {
				return nil, err
			}
			return c.client.SetNetwork(ctx, c.args[0], *policy)
		}),
	})
}

// whole returns the policy that the options describe.
func (o *egressSetOptions) whole(stdin io.Reader) (policy *sandbox.NetworkPolicy, err error) {
	policy = o.policy(&sandbox.NetworkPolicy{})
	if o.File != "" {
		if policy, err = readPolicy(stdin, o.File); err != nil {
			return nil, err
		}
	}
	policy.Placeholders = cmp.Or(o.rest.Placeholders, policy.Placeholders)
	policy.MaxConnections = cmp.Or(o.rest.MaxConnections, policy.MaxConnections)
	policy.ConnectionsPerSecond = cmp.Or(o.rest.ConnectionsPerSecond, policy.ConnectionsPerSecond)
	policy.BytesPerSecond = cmp.Or(o.rest.BytesPerSecond, policy.BytesPerSecond)
	return policy, nil
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
