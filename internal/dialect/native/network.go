package native

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxTarget bounds a domain, an address or the name of a sandbox in a rule.
const maxTarget = 280

// policyProps are the fields of a policy as arguments.
func policyProps() []prop {
	return []prop{
		opt("preset", oneOf("What holds where nothing below matches: open (the public Internet, if left out), packages (package registries and code hosts) or none.",
			string(sandbox.NetworkOpen), string(sandbox.NetworkPackages), string(sandbox.NetworkNone))),
		opt("allow_out", array("Domains, *.domains, addresses and ranges that are allowed, before all else. Alone it blocks nothing.", bounded("", 1, maxTarget), 0, sandbox.MaxNetworkRules)),
		opt("deny_out", array("Addresses and ranges that are denied next. With 0.0.0.0/0, allow_out is all that can be reached.", bounded("", 1, maxTarget), 0, sandbox.MaxNetworkRules)),
		opt("rules", array("Looked at after these, in their order.", object("",
			req("action", oneOf("", string(sandbox.NetworkAllow), string(sandbox.NetworkDeny))),
			req("to", bounded("Domain, *.domain, address, range, sandbox:NAME (another of yours) or *.", 1, maxTarget)),
			opt("protocol", oneOf("All if left out.", "tcp", "udp", "icmp")),
			opt("ports", array("Such as 443 or 8000-8999; all if left out.", bounded("", 1, 11), 0, 64)),
		), 0, sandbox.MaxNetworkRules)),
		opt("placeholders", oneOf("What becomes of a secret's placeholder that goes to a wrong host: it is sent as it is (forward, if left out), or the request refused.",
			string(sandbox.PlaceholderForward), string(sandbox.PlaceholderBlock))),
		opt("max_connections", integer("", 0, sandbox.MaxMaxConnections)),
		opt("connections_per_second", integer("", 0, sandbox.MaxConnectionsPerSecond)),
		opt("bytes_per_second", integer("Each way; 0 is no bound.", 0, 1<<50)),
	}
}

// networkSchema is a policy as an argument of another tool: closed, and told
// in full by network_set.
func networkSchema() *jsonschema.Schema {
	s := object("What it may reach; the server's default (usually the public Internet) if left out. Fields as in network_set, such as {\"preset\": \"none\"}.", policyProps()...)
	for _, p := range s.Properties {
		strip(p)
	}
	return s
}

// strip takes the descriptions from a schema.
func strip(s *jsonschema.Schema) {
	s.Description = ""
	if s.Items != nil {
		strip(s.Items)
	}
	for _, p := range s.Properties {
		strip(p)
	}
}

func portsSchema() *jsonschema.Schema {
	return array("Ports of the server's machine that lead to ports of the sandbox. To show something in a browser use preview_create.", object("",
		req("host", integer("0 is one that is free.", 0, 65535)),
		req("guest", integer("", 1, 65535)),
		opt("address", bounded("Where the server listens; 127.0.0.1 if left out.", 0, 64)),
	), 0, sandbox.MaxPublishedPorts)
}

func secretsSchema() *jsonschema.Schema {
	return pairs("Secrets that it uses without seeing them: environment variable (which gets a placeholder) to name of the secret.", sandbox.MaxSecretsPerSandbox, 128)
}

// worldProps are how a sandbox in a result is connected with the world.
func worldProps() []prop {
	return []prop{
		opt("network", &jsonschema.Schema{Type: "object", Description: "What it may reach, as network_get tells it; the public Internet if absent."}),
		opt("secrets", pairs("Names of secrets by the variables with their placeholders.", 0, 0)),
		opt("ports", array("Ports of the server's machine that lead to it.", &jsonschema.Schema{Type: "object"}, 0, 0)),
		opt("mounts", array("Volumes and directories shown in it.", &jsonschema.Schema{Type: "object"}, 0, 0)),
	}
}

// worldText says how a sandbox is connected with the world, where that is not
// the usual.
func worldText(sb *sandbox.Sandbox) string {
	var b strings.Builder
	if p := sb.Network; p != nil && (p.Preset != "" && p.Preset != sandbox.NetworkOpen || len(p.AllowOut)+len(p.DenyOut)+len(p.Rules) > 0) {
		preset := p.Preset
		if preset == "" {
			preset = sandbox.NetworkOpen
		}
		fmt.Fprintf(&b, ", network %s", preset)
		if n := len(p.AllowOut) + len(p.DenyOut) + len(p.Rules); n > 0 {
			fmt.Fprintf(&b, " with %s", plural(int64(n), "rule"))
		}
	}
	for _, env := range slices.Sorted(maps.Keys(sb.Secrets)) {
		fmt.Fprintf(&b, ", secret %s in %s", sb.Secrets[env], env)
	}
	for _, p := range sb.Ports {
		address := p.Address
		if address == "" {
			address = "127.0.0.1"
		}
		fmt.Fprintf(&b, ", %s of the host leads to its port %d", net.JoinHostPort(address, strconv.Itoa(p.Host)), p.Guest)
	}
	return b.String()
}

func policyOutput() *jsonschema.Schema {
	props := policyProps()
	for _, p := range props {
		strip(p.schema)
	}
	return output(props...)
}

func networkGet() dialect.Tool {
	return dialect.New(toolsetNetwork, &mcp.Tool{
		Name:         "network_get",
		Title:        "Show the network policy",
		Description:  "Return what a sandbox may reach: its policy. It is judged in this order, and the first match decides: allow_out, deny_out, rules, preset.",
		Annotations:  annotations("Show the network policy", true, false, true, false),
		InputSchema:  input(sandboxArg()),
		OutputSchema: policyOutput(),
	}, func(ctx context.Context, c *dialect.Call, in sandboxRef) (*mcp.CallToolResult, error) {
		p, err := c.Service.GetNetwork(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Policy of "+in.Sandbox+":\n"+policyText(p), p), nil
	})
}

type networkSetArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.NetworkPolicy
}

func networkSet() dialect.Tool {
	return dialect.New(toolsetNetwork, &mcp.Tool{
		Name:  "network_set",
		Title: "Change the network policy",
		Description: "Replace what a sandbox may reach, at once; existing connections are judged again. The first match decides: allow_out, deny_out, rules, preset. " +
			"Private, loopback and metadata addresses are denied unless a rule names them by address or range.",
		Annotations:  annotations("Change the network policy", false, true, true, false),
		InputSchema:  input(concat([]prop{sandboxArg()}, policyProps())...),
		OutputSchema: policyOutput(),
	}, func(ctx context.Context, c *dialect.Call, in networkSetArgs) (*mcp.CallToolResult, error) {
		p, err := c.Service.SetNetwork(ctx, in.Sandbox, in.NetworkPolicy)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Policy of "+in.Sandbox+" is now:\n"+policyText(p), p), nil
	})
}

// policyText is a policy in lines, in the order in which it is judged.
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
	Sandbox string                 `json:"sandbox"`
	Kind    sandbox.NetworkKind    `json:"kind"`
	Verdict sandbox.NetworkVerdict `json:"verdict"`
	Host    string                 `json:"host"`
	Since   string                 `json:"since"`
	Until   string                 `json:"until"`
	Limit   int                    `json:"limit"`
	Cursor  string                 `json:"cursor"`
}

type networkPage struct {
	Events     []sandbox.NetworkEvent `json:"events"`
	NextCursor string                 `json:"next_cursor,omitempty"`
}

func networkLog() dialect.Tool {
	return dialect.New(toolsetNetwork, &mcp.Tool{
		Name:  "network_log",
		Title: "Read the network log",
		Description: "List what a sandbox has tried to reach, newest first: connections, DNS questions and requests with a secret, each with its verdict and the rule that decided. " +
			"Use it with verdict blocked when something in a sandbox cannot connect.",
		Annotations: annotations("Read the network log", true, false, true, false),
		InputSchema: input(concat([]prop{
			sandboxArg(),
			opt("kind", oneOf("", string(sandbox.NetworkConnection), string(sandbox.NetworkDNS), string(sandbox.NetworkRequest))),
			opt("verdict", oneOf("", string(sandbox.NetworkAllowed), string(sandbox.NetworkBlocked), string(sandbox.NetworkFailed))),
			opt("host", bounded("A domain, or *.domain.", 0, maxTarget)),
			opt("since", bounded("Only from this time on, such as 2026-01-02T15:04:05Z.", 0, 40)),
			opt("until", bounded("Only up to this time.", 0, 40)),
		}, pageArgs(200))...),
		OutputSchema: output(
			req("events", array("", eventSchema(), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get older events; absent on the last page.")),
		),
	}, runNetworkLog)
}

func eventSchema() *jsonschema.Schema {
	return object("",
		req("id", count("")), req("sandbox_id", text("")), req("time", moment("")), req("kind", text("")),
		opt("connection", count("")), opt("open", boolean("The connection's beginning; its end comes as another event.")),
		req("protocol", text("")), opt("host", text("The name that the sandbox used.")), opt("address", text("")), opt("port", count("")),
		req("verdict", text("")), req("match", text("What kind of rule decided.")), opt("rule", text("")), opt("reason", text("Why it was blocked or has failed.")),
		opt("bytes_out", count("")), opt("bytes_in", count("")), opt("duration_ms", count("")),
		opt("question", text("")), opt("answers", array("", text(""), 0, 0)),
		opt("method", text("")), opt("path", text("")), opt("status", count("")), opt("secret", text("")),
	)
}

func runNetworkLog(ctx context.Context, c *dialect.Call, in networkLogArgs) (*mcp.CallToolResult, error) {
	r := sandbox.NetworkLogRequest{Kind: in.Kind, Verdict: in.Verdict, Host: in.Host}
	var err error
	if r.Since, err = momentArg("since", in.Since); err != nil {
		return nil, err
	}
	if r.Until, err = momentArg("until", in.Until); err != nil {
		return nil, err
	}
	var out networkPage
	err = fitPage(in.Limit, func(limit int) (any, error) {
		r.Page = sandbox.Page{Limit: limit, Cursor: in.Cursor}
		list, err := c.Service.NetworkLog(ctx, in.Sandbox, r)
		if err != nil {
			return nil, err
		}
		out = networkPage{Events: list.Items, NextCursor: list.NextCursor}
		if out.Events == nil {
			out.Events = []sandbox.NetworkEvent{}
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	return dialect.Text(out.text(), out), nil
}

func momentArg(name, value string) (*time.Time, error) {
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

// eventLine is an event in one line.
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
