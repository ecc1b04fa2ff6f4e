package cli

import (
	"context"
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

func (a *app) netlogCommand() *cobra.Command {
	var req sandbox.NetworkLogRequest
	var since, until string
	limit, follow := 0, false
	return a.make(command{
		Use: "netlog SANDBOX", Short: "Show a sandbox's network log",
		Long: "Show what a sandbox tried to connect to and the outcome, oldest first: connections, DNS queries, and\n" +
			"requests that used a secret. The log of a sandbox that has ended is kept for a day.",
		Example: "  cove netlog work\n  cove netlog -f work --verdict blocked\n  cove netlog work --host '*.example.com' --since 10m --json",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "Keep showing new entries until the sandbox ends")
			f.StringVar(&req.Host, "host", "", "Show only this domain, or all below one: *.example.com")
			f.StringVar((*string)(&req.Verdict), "verdict", "", "Show only allowed, blocked or failed entries")
			f.StringVar((*string)(&req.Kind), "kind", "", "Show only this kind: connection, dns or request")
			f.StringVar(&since, "since", "", "Show only newer entries: 10m, or a time such as 2026-01-02T15:04:05Z")
			f.StringVar(&until, "until", "", "Show only older entries: 10m, or a time such as 2026-01-02T15:04:05Z")
			f.IntVarP(&limit, "limit", "n", 50, "Show this many of the newest entries")
		},
		JSONHelp: "Print JSON; with -f, one entry per line",
		Do: action{json: true, run: func(ctx context.Context, c *call) (err error) {
			if limit < 0 {
				return c.misuse("netlog: -n must not be negative: %d", limit)
			}
			if follow && until != "" {
				return c.misuse("netlog: --until does not work with -f; leave one of them out")
			}
			if req.Since, err = logTime("--since", since); err != nil {
				return c.misuse("%w", err)
			}
			if req.Until, err = logTime("--until", until); err != nil {
				return c.misuse("%w", err)
			}
			if follow {
				return c.followNetlog(ctx, req, limit)
			}
			return list(table(eventHeadings, eventRow), func(ctx context.Context, c *call) ([]sandbox.NetworkEvent, error) {
				return newestEvents(ctx, c.client, c.args[0], req, limit)
			}).run(ctx, c)
		}},
	})
}

// logTime parses a time, or a duration before now; the result is nil if s is empty.
func logTime(flag, s string) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d, derr := time.ParseDuration(s)
		if derr != nil || d < 0 {
			return nil, fmt.Errorf("netlog: %s %q is not valid; use a duration such as 10m or a time such as 2026-01-02T15:04:05Z", flag, s)
		}
		at = time.Now().Add(-d)
	}
	return &at, nil
}

// newestEvents returns the newest events, oldest first. It leaves out the first event
// of a connection if the last one is there too.
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

// followNetlog shows the newest events and then new ones.
func (c *call) followNetlog(ctx context.Context, req sandbox.NetworkLogRequest, limit int) error {
	name := c.args[0]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	show := c.liveEvents()
	// Following begins before the past is read, so that nothing is missed
	// between the two.
	coming := make(chan sandbox.NetworkEvent, 1024)
	failed := make(chan error, 1)
	go func() {
		defer close(coming)
		failed <- c.client.FollowNetworkLog(ctx, name, req, func(ev sandbox.NetworkEvent) error {
			select {
			case coming <- ev:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	past, err := newestEvents(ctx, c.client, name, req, limit)
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

// liveEvents returns a function that prints events one by one.
func (c *call) liveEvents() func(*sandbox.NetworkEvent) error {
	if c.json {
		return func(ev *sandbox.NetworkEvent) error {
			return c.printLine(struct {
				SchemaVersion int `json:"schema_version"`
				*sandbox.NetworkEvent
			}{schemaVersion, ev})
		}
	}
	row := c.liveTable(eventHeadings, 25, 8, 5, 40, 5, 9, 9, 7)
	return func(ev *sandbox.NetworkEvent) error { return row(texts(eventRow(ev))) }
}

var eventHeadings = []string{"TIME", "VERDICT", "PROTO", "TO", "PORT", "OUT", "IN", "TOOK", "WHY"}

func eventRow(ev *sandbox.NetworkEvent) []any {
	took := ""
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
	return []any{stamp(&ev.Time), verdict, protocol, eventTarget(ev), number(ev.Port), sizeText(ev.BytesOut), sizeText(ev.BytesIn), took, eventReason(ev)}
}

// eventTarget returns the destination of an event, or the question of a DNS event.
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

// eventReason returns why an attempt ended as it did.
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
