package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// reachOptions are the flags for common policies.
type reachOptions struct {
	Preset            string
	AllowOut, DenyOut []string
}

// AddFlags adds the options' flags.
func (o *reachOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Preset, "network", "", "Network preset: "+presetNames()+" (see cove egress --help)")
	f.StringSliceVar(&o.AllowOut, "allow-out", nil, "Allow this domain, *.domain, address or range (comma-separated or repeatable)")
	f.StringSliceVar(&o.DenyOut, "deny-out", nil, "Deny this address or range, unless --allow-out has it; 0.0.0.0/0 denies all (comma-separated or repeatable)")
}

func presetNames() string {
	return fmt.Sprintf("%s, %s or %s", sandbox.NetworkOpen, sandbox.NetworkPackages, sandbox.NetworkNone)
}

func (o *reachOptions) given() bool { return o.Preset != "" || o.AllowOut != nil || o.DenyOut != nil }

// policy returns p with the options applied; without options it returns p itself.
func (o *reachOptions) policy(p *sandbox.NetworkPolicy) *sandbox.NetworkPolicy {
	if !o.given() {
		return p
	}
	var changed sandbox.NetworkPolicy
	if p != nil {
		changed = *p
	}
	if o.Preset != "" {
		changed.Preset = sandbox.NetworkPreset(o.Preset)
	}
	if o.AllowOut != nil {
		changed.AllowOut = o.AllowOut
	}
	if o.DenyOut != nil {
		changed.DenyOut = o.DenyOut
	}
	return &changed
}

// networkOptions are the network policy and the secrets of a new sandbox.
type networkOptions struct {
	reachOptions
	File    string
	Secrets []secretUse
}

// AddFlags adds the options' flags.
func (o *networkOptions) AddFlags(f *pflag.FlagSet) {
	o.reachOptions.AddFlags(f)
	f.StringVar(&o.File, "network-file", "", "Read the whole network policy, with rules and limits, from a JSON or YAML file, as cove egress --json prints it; - is standard input")
	f.Var(listFlag(&o.Secrets, "ENV=NAME", parseSecretUse), "secret", "Let the sandbox use a secret without seeing it, as ENV=NAME, or NAME if it has a provider (repeatable)")
}

// apply puts the options into a request.
func (o *networkOptions) apply(ctx context.Context, c *client.Client, stdin io.Reader, req *sandbox.CreateRequest) error {
	req.Network = o.policy(nil)
	if o.File != "" {
		if o.given() {
			return sandbox.Errorf(sandbox.CodeInvalid, "--network-file has the whole policy; leave out --network, --allow-out and --deny-out")
		}
		var err error
		if req.Network, err = readPolicy(stdin, o.File); err != nil {
			return err
		}
	}
	if len(o.Secrets) == 0 {
		return nil
	}
	req.Secrets = make(map[string]string, len(o.Secrets))
	for _, s := range o.Secrets {
		env, err := s.variable(ctx, c)
		if err != nil {
			return err
		}
		if other, taken := req.Secrets[env]; taken {
			return sandbox.Errorf(sandbox.CodeInvalid, "the secrets %s and %s both use the variable %s; choose another for one of them with --secret ENV=NAME", other, s.name, env)
		}
		req.Secrets[env] = s.name
	}
	return nil
}

// secretUse is a secret and the environment variable for its placeholder.
type secretUse struct{ env, name string }

func parseSecretUse(s string) (secretUse, error) {
	env, name, ok := strings.Cut(s, "=")
	if !ok {
		env, name = "", s
	}
	if name == "" || ok && env == "" {
		return secretUse{}, fmt.Errorf("%q is not of the form ENV=NAME", s)
	}
	return secretUse{env, name}, nil
}

// variable returns the environment variable: the one that was given, or the
// one that clients of the secret's provider read.
func (s secretUse) variable(ctx context.Context, c *client.Client) (string, error) {
	if s.env != "" {
		return s.env, nil
	}
	secret, err := c.GetSecret(ctx, s.name)
	if err != nil {
		return "", err
	}
	if secret.Provider != "" {
		providers, err := c.ListProviders(ctx)
		if err != nil {
			return "", err
		}
		for _, p := range providers.Items {
			if p.Name == secret.Provider && p.Env != "" {
				return p.Env, nil
			}
		}
	}
	return "", sandbox.Errorf(sandbox.CodeInvalid, "secret %s has no default environment variable; choose one with ENV=%s", s.name, s.name)
}

func parsePublished(s string) (sandbox.PublishedPort, error) {
	var p sandbox.PublishedPort
	wrong := fmt.Errorf("%q is not of the form [ADDRESS:]HOST:GUEST, such as 8080:80; HOST 0 means any free port", s)
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return p, wrong
	}
	host, guest := s[:i], s[i+1:]
	if j := strings.LastIndexByte(host, ':'); j >= 0 {
		p.Address, host = strings.Trim(host[:j], "[]"), host[j+1:]
		if net.ParseIP(p.Address) == nil {
			return p, wrong
		}
	}
	var err error
	if p.Host, err = parsePort(host, 0); err != nil {
		return p, wrong
	}
	if p.Guest, err = parsePort(guest, 1); err != nil {
		return p, wrong
	}
	return p, nil
}

func parsePort(s string, least int) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || int(n) < least || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%q is not a port number from %d to 65535", s, least)
	}
	return int(n), nil
}

func publishedText(ports []sandbox.PublishedPort) string {
	var out []string
	for _, p := range ports {
		address := net.JoinHostPort(cmp.Or(p.Address, "127.0.0.1"), strconv.Itoa(p.Host))
		out = append(out, fmt.Sprintf("%s to %d", address, p.Guest))
	}
	return strings.Join(out, ", ")
}

// policyText summarizes a policy.
func policyText(p *sandbox.NetworkPolicy) string {
	if p == nil {
		return ""
	}
	text := string(presetOf(p))
	for _, part := range []struct {
		n    int
		what string
	}{{len(p.AllowOut), "allow_out"}, {len(p.DenyOut), "deny_out"}, {len(p.Rules), "rules"}, {len(p.Headers), "header rules"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return text
}

func presetOf(p *sandbox.NetworkPolicy) sandbox.NetworkPreset {
	return cmp.Or(p.Preset, sandbox.NetworkOpen)
}
