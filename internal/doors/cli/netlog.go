package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

type netlogOptions struct {
	jsonOption
	Follow              bool
	Host, Verdict, Kind string
	Since, Until        string
	Limit               int
}

func (o *netlogOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.JSON, "json", false, "print JSON; with -f an event a line")
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on with what comes, until the sandbox ends")
	f.StringVar(&o.Host, "host", "", "only this domain, or all below one: *.example.com")
	f.StringVar(&o.Verdict, "verdict", "", "only allowed, blocked or failed")
	f.StringVar(&o.Kind, "kind", "", "only connection, dns or request")
	f.StringVar(&o.Since, "since", "", "only what is newer: 10m, or a time such as 2026-01-02T15:04:05Z")
	f.StringVar(&o.Until, "until", "", "only what is older: 10m, or a time such as 2026-01-02T15:04:05Z")
	f.IntVarP(&o.Limit, "limit", "n", 50, "the newest so many events")
}

func (o *netlogOptions) request() (sandbox.NetworkLogRequest, error) {
	req := sandbox.NetworkLogRequest{Kind: sandbox.NetworkKind(o.Kind), Verdict: sandbox.NetworkVerdict(o.Verdict), Host: o.Host}
	if o.Limit < 0 {
		return req, fmt.Errorf("netlog: -n %d is negative", o.Limit)
	}
	if o.Follow && o.Until != "" {
		return req, errors.New("netlog: -f goes on with what comes; leave out --until")
	}
	var err error
	if req.Since, err = logTime("--since", o.Since); err != nil {
		return req, err
	}
	req.Until, err = logTime("--until", o.Until)
	return req, err
}

// logTime reads a time, or how long ago that was; nothing is nil.
func logTime(flag, s string) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d, derr := time.ParseDuration(s)
		if derr != nil || d < 0 {
			return nil, fmt.Errorf("netlog: %s %q is neither a duration such as 10m nor a time such as 2026-01-02T15:04:05Z", flag, s)
		}
		at = time.Now().Add(-d)
	}
	return &at, nil
}

func (a *app) netlogCommand() *cobra.Command {
	var opts netlogOptions
	cmd := &cobra.Command{
		Use: "netlog SANDBOX", Short: "Show what a sandbox has tried to reach",
		Long: "Show what a sandbox has tried to reach, and what became of it: connections, DNS questions and\n" +
			"requests in which a secret was used, the newest last. The log of an ended sandbox is kept for a day.",
		Example: "  cove netlog work\n  cove netlog -f work --verdict blocked\n  cove netlog work --host '*.example.com' --since 10m --json",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := opts.request()
			if err != nil {
				return usageError(cmd, err)
			}
			return a.runNetlog(cmd.Context(), opts, req, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runNetlog(ctx context.Context, opts netlogOptions, req sandbox.NetworkLogRequest, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if opts.Follow {
		return a.followNetlog(ctx, c, opts, req, args[0])
	}
	events, err := newestEvents(ctx, c, args[0], req, opts.Limit)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.NetworkEvent]{events})
	}
	rows := make([][]string, 0, len(events))
	for i := range events {
		rows = append(rows, eventRow(&events[i]))
	}
	return a.printTable(eventHeadings, rows)
}

// newestEvents returns the newest events, the oldest of them first. What is
// said of a connection at its beginning is left out if its end is there too.
func newestEvents(ctx context.Context, c *client.Client, name string, req sandbox.NetworkLogRequest, limit int) ([]sandbox.NetworkEvent, error) {
	events := []sandbox.NetworkEvent{}
	ended := make(map[int64]bool)
	for len(events) < limit {
		req.Limit = min(limit-len(events), sandbox.MaxPageSize)
		part, err := c.NetworkLog(ctx, name, req)
		if err != nil {
			return nil, err
		}
		for _, ev := range part.Items {
			if ev.Connection != 0 && !ev.Open {
				ended[ev.Connection] = true
			}
			if !ev.Open || !ended[ev.Connection] {
				events = append(events, ev)
			}
		}
		if req.Cursor = part.NextCursor; req.Cursor == "" {
			break
		}
	}
	slices.Reverse(events)
	return events, nil
}

// followNetlog shows the newest events and then those that come.
func (a *app) followNetlog(ctx context.Context, c *client.Client, opts netlogOptions, req sandbox.NetworkLogRequest, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	show := a.liveEvents(opts.JSON)
	// Following begins before the past is read, so that nothing is missed
	// between the two.
	coming := make(chan sandbox.NetworkEvent, 1024)
	failed := make(chan error, 1)
	go func() {
		defer close(coming)
		failed <- c.FollowNetworkLog(ctx, name, req, func(ev sandbox.NetworkEvent) error {
			select {
			case coming <- ev:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	past, err := newestEvents(ctx, c, name, req, opts.Limit)
	if err != nil {
		return err
	}
	last := int64(-1)
	for i := range past {
		last = max(last, past[i].ID)
		if err := show(&past[i]); err != nil {
			return err
		}
	}
	for ev := range coming {
		if ev.ID <= last {
			continue
		}
		if err := show(&ev); err != nil {
			return err
		}
	}
	return <-failed
}

// liveEvents returns what prints events one by one.
func (a *app) liveEvents(asJSON bool) func(*sandbox.NetworkEvent) error {
	if asJSON {
		return func(ev *sandbox.NetworkEvent) error {
			line, err := json.Marshal(struct {
				SchemaVersion int `json:"schema_version"`
				*sandbox.NetworkEvent
			}{schemaVersion, ev})
			if err != nil {
				return fmt.Errorf("encode an event: %w", err)
			}
			return a.print(string(line) + "\n")
		}
	}
	widths := []int{25, 8, 5, 40, 5, 9, 9, 7}
	line := func(cells []string) error {
		var b strings.Builder
		for i, cell := range cells {
			if cell = cleanLine(cell); cell == "" {
				cell = "-"
			}
			if i < len(widths) {
				cell = fmt.Sprintf("%-*s  ", widths[i], cell)
			}
			b.WriteString(cell)
		}
		return a.print(strings.TrimRight(b.String(), " ") + "\n")
	}
	headed := false
	return func(ev *sandbox.NetworkEvent) error {
		if !headed {
			headed = true
			if err := line(eventHeadings); err != nil {
				return err
			}
		}
		return line(eventRow(ev))
	}
}

var eventHeadings = []string{"TIME", "VERDICT", "PROTO", "TO", "PORT", "OUT", "IN", "TOOK", "WHY"}

func eventRow(ev *sandbox.NetworkEvent) []string {
	port, took := "", ""
	if ev.Port != 0 {
		port = strconv.Itoa(ev.Port)
	}
	if ev.DurationMS != 0 {
		took = (time.Duration(ev.DurationMS) * time.Millisecond).String()
	}
	verdict := string(ev.Verdict)
	if ev.Open {
		verdict = "open"
	}
	protocol := ev.Protocol
	if ev.Kind == sandbox.NetworkDNS {
		protocol = "dns"
	}
	return []string{stamp(&ev.Time), verdict, protocol, eventTarget(ev), port, traffic(ev.BytesOut), traffic(ev.BytesIn), took, eventReason(ev)}
}

func traffic(n int64) string {
	if n == 0 {
		return ""
	}
	return bytesText(n)
}

// eventTarget tells where to, or what was asked.
func eventTarget(ev *sandbox.NetworkEvent) string {
	switch {
	case ev.Kind == sandbox.NetworkDNS:
		return strings.TrimSpace(ev.Question + " " + ev.Host)
	case ev.Kind == sandbox.NetworkRequest:
		return strings.TrimSpace(ev.Method + " " + ev.Host + ev.Path)
	case ev.Host == "":
		return ev.Address
	case ev.Address == "" || net.ParseIP(ev.Host) != nil:
		return ev.Host
	}
	return ev.Host + " (" + ev.Address + ")"
}

// eventReason tells why it ended as it did.
func eventReason(ev *sandbox.NetworkEvent) string {
	var parts []string
	if ev.Kind == sandbox.NetworkDNS && len(ev.Answers) > 0 {
		parts = append(parts, strings.Join(ev.Answers, " "))
	}
	if ev.Secret != "" {
		parts = append(parts, "secret "+ev.Secret)
	}
	if ev.Status != 0 {
		parts = append(parts, "status "+strconv.Itoa(ev.Status))
	}
	if ev.Reason != "" {
		parts = append(parts, ev.Reason)
	}
	if ev.Rule != "" {
		parts = append(parts, "["+ev.Rule+"]")
	} else if ev.Match != "" && ev.Match != sandbox.MatchDefault {
		parts = append(parts, "["+string(ev.Match)+"]")
	}
	return strings.Join(parts, ", ")
}
