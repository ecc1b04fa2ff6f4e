package native

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// connectionText describes a sandbox's network, secrets and ports, where they are not
// the defaults.
func connectionText(sb *sandbox.Sandbox) string {
	var b strings.Builder
	if p := sb.Network; p != nil && (p.Preset != "" && p.Preset != sandbox.NetworkOpen || len(p.AllowOut)+len(p.DenyOut)+len(p.Rules) > 0) {
		fmt.Fprintf(&b, ", network %s", cmp.Or(p.Preset, sandbox.NetworkOpen))
		if n := len(p.AllowOut) + len(p.DenyOut) + len(p.Rules); n > 0 {
			fmt.Fprintf(&b, " with %s", plural(int64(n), "rule"))
		}
	}
	for _, env := range slices.Sorted(maps.Keys(sb.Secrets)) {
		fmt.Fprintf(&b, ", secret %s in %s", sb.Secrets[env], env)
	}
	for _, p := range sb.Ports {
		address := net.JoinHostPort(cmp.Or(p.Address, "127.0.0.1"), strconv.Itoa(p.Host))
		fmt.Fprintf(&b, ", %s of the host leads to its port %d", address, p.Guest)
	}
	return b.String()
}

func getNetwork(ctx context.Context, c *dialect.Call, in sandboxRef) (*reply[*sandbox.NetworkPolicy], error) {
	p, err := c.Service.GetNetwork(ctx, in.Sandbox)
	return answerPolicy("Policy of "+in.Sandbox+":\n", p, err)
}

type networkSetArgs struct {
	sandboxRef
	sandbox.NetworkPolicy
}

func setNetwork(ctx context.Context, c *dialect.Call, in networkSetArgs) (*reply[*sandbox.NetworkPolicy], error) {
	p, err := c.Service.SetNetwork(ctx, in.Sandbox, in.NetworkPolicy)
	return answerPolicy("Policy of "+in.Sandbox+" is now:\n", p, err)
}

func answerPolicy(heading string, p *sandbox.NetworkPolicy, err error) (*reply[*sandbox.NetworkPolicy], error) {
	if err != nil {
		return nil, err
	}
	return answer(heading+policyText(p), p)
}

// policyText renders a policy as lines, in the order of evaluation.
func policyText(p *sandbox.NetworkPolicy) string {
	var lines []string
	for _, to := range p.AllowOut {
		lines = append(lines, "allow "+oneLine(to)+" (allow_out)")
	}
	for _, to := range p.DenyOut {
		lines = append(lines, "deny "+oneLine(to)+" (deny_out)")
	}
	for _, r := range p.Rules {
		line := string(r.Action) + " " + oneLine(r.To)
		if r.Protocol != "" {
			line += " " + r.Protocol
		}
		if len(r.Ports) > 0 {
			line += " ports " + oneLine(strings.Join(r.Ports, ","))
		}
		lines = append(lines, line)
	}
	switch p.Preset {
	case sandbox.NetworkNone:
		lines = append(lines, "deny everything else (preset none)")
	case sandbox.NetworkPackages:
		lines = append(lines, "allow package registries and code hosts, deny everything else (preset packages)")
	default:
		lines = append(lines, "allow the public Internet (preset open)")
	}
	for _, r := range p.Headers {
		lines = append(lines, "https requests to "+oneLine(r.To)+" get headers: "+oneLine(strings.Join(slices.Sorted(maps.Keys(r.Set)), ", ")))
	}
	if p.Placeholders == sandbox.PlaceholderBlock {
		lines = append(lines, "requests with a placeholder to a wrong host are refused")
	}
	text := strings.Join(lines, "\n")
	if len(text) > maxResultBytes/2 {
		text = text[:strings.LastIndexByte(text[:maxResultBytes/2], '\n')] + "\n…"
	}
	return text
}

type networkLogArgs struct {
	sandboxRef
	sandbox.NetworkLogRequest
	// Since and Until are parsed here, where an error can show the format.
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
}

type networkPage struct {
	Events []sandbox.NetworkEvent `json:"events"`
	nextPage
}

func readNetworkLog(ctx context.Context, c *dialect.Call, in networkLogArgs) (*reply[networkPage], error) {
	r := in.NetworkLogRequest
	var err error
	if r.Since, err = timeArg("since", in.Since); err != nil {
		return nil, err
	}
	if r.Until, err = timeArg("until", in.Until); err != nil {
		return nil, err
	}
	var out networkPage
	return fitPage(in.Limit, &out, func(limit int) error {
		r.Limit = limit
		list, err := c.Service.NetworkLog(ctx, in.Sandbox, r)
		out.Events, out.nextPage = views(list, same)
		return err
	})
}

func timeArg(name, value string) (*time.Time, error) {
	if value == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil, invalid("network_log: %s is no time; write it as 2026-01-02T15:04:05Z", name)
	}
	return &at, nil
}

func (p networkPage) text() string {
	if len(p.Events) == 0 {
		return "Nothing in the log."
	}
	var b strings.Builder
	for i := range p.Events {
		b.WriteString(eventLine(&p.Events[i]) + "\n")
	}
	if p.NextCursor != "" {
		fmt.Fprintf(&b, "Older: call again with cursor %s\n", p.NextCursor)
	}
	return b.String()
}

func eventLine(ev *sandbox.NetworkEvent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s ", stamp(ev.Time), ev.Verdict)
	switch ev.Kind {
	case sandbox.NetworkDNS:
		fmt.Fprintf(&b, "dns %s %s", oneLine(ev.Question), oneLine(ev.Host))
		if len(ev.Answers) > 0 {
			b.WriteString(" = " + oneLine(strings.Join(ev.Answers, " ")))
		}
	case sandbox.NetworkRequest:
		fmt.Fprintf(&b, "%s %s%s", oneLine(ev.Method), oneLine(ev.Host), oneLine(ev.Path))
		if ev.Status != 0 {
			fmt.Fprintf(&b, " status %d", ev.Status)
		}
		if ev.Secret != "" {
			b.WriteString(" secret " + oneLine(ev.Secret))
		}
	default:
		fmt.Fprintf(&b, "%s %s", oneLine(ev.Protocol), oneLine(strings.TrimSpace(ev.Host+" "+ev.Address)))
		if ev.Port != 0 {
			fmt.Fprintf(&b, " port %d", ev.Port)
		}
		if ev.Open {
			b.WriteString(", open")
		} else if ev.BytesOut+ev.BytesIn > 0 {
			fmt.Fprintf(&b, ", %d bytes out, %d in", ev.BytesOut, ev.BytesIn)
		}
	}
	if ev.Reason != "" {
		b.WriteString(": " + oneLine(ev.Reason))
	}
	if ev.Rule != "" {
		fmt.Fprintf(&b, " [%s]", oneLine(ev.Rule))
	}
	return b.String()
}
