package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) eventsCommand() *cobra.Command {
	var kinds []string
	var after string
	follow := false
	return a.make(command{
		Use: "events [SANDBOX]", Short: "Show events of sandboxes, snapshots, jobs and builds",
		Long: fmt.Sprintf("Show events, oldest first: changes of sandboxes, snapshots, jobs and template builds, and every %s the\n"+
			"resource usage of running sandboxes. The server remembers the last %d events since it started.\n\n"+
			"What a sandbox tries to connect to is shown with -f and the sandbox's name. For earlier attempts, use:\n"+
			"cove netlog", sandbox.StatsInterval, sandbox.EventsKept),
		Example: "  cove events\n  cove events -f --kind sandbox,job\n  cove events -f work --json",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "Keep showing new events")
			f.StringSliceVar(&kinds, "kind", nil, "Show only these kinds: "+kindNames())
			f.StringVar(&after, "after", "", "Show only events after the one with this id (--json shows ids)")
		},
		JSONHelp: "Print each event as a line of JSON",
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			req := sandbox.FollowEventsRequest{After: after, Once: !follow}
			if req.After == "" {
				req.After = sandbox.EventsOldest
			}
			if len(c.args) > 0 {
				req.Sandbox = c.args[0]
			}
			for _, k := range kinds {
				req.Kinds = append(req.Kinds, sandbox.EventKind(k))
			}
			return c.client.FollowEvents(ctx, req, c.liveEvent())
		}},
	})
}

func kindNames() string {
	var names []string
	for _, k := range sandbox.EventKinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// liveEvent returns a function that prints events one by one.
func (c *call) liveEvent() func(sandbox.Event) error {
	if c.json {
		return func(e sandbox.Event) error {
			return c.printLine(struct {
				SchemaVersion int `json:"schema_version"`
				*sandbox.Event
			}{schemaVersion, &e})
		}
	}
	row := c.liveTable([]string{"TIME", "KIND", "SANDBOX", "DETAILS"}, len(time.RFC3339), 18, 30)
	return func(e sandbox.Event) error {
		if e.Kind == sandbox.EventBegun {
			if e.Missed {
				c.say("the server no longer remembers some of these events; list the sandboxes to see their current state")
			}
			return nil
		}
		return row([]string{stamp(&e.At), string(e.Kind), e.SandboxID, eventText(&e)})
	}
}

// eventText describes an event in one line.
func eventText(e *sandbox.Event) string {
	switch {
	case e.Sandbox != nil:
		return sandboxText(e.Sandbox)
	case e.Snapshot != nil:
		return strings.TrimSpace(e.SnapshotID + " " + e.Snapshot.Name + " " + e.Snapshot.Label)
	case e.Job != nil && e.Job.State == sandbox.JobExited:
		return fmt.Sprintf("%s ended with exit code %d: %s", e.Job.ID, e.Job.ExitCode, strings.Join(e.Job.Command, " "))
	case e.Job != nil:
		return fmt.Sprintf("%s started: %s", e.Job.ID, strings.Join(e.Job.Command, " "))
	case e.Build != nil:
		return strings.TrimSpace(fmt.Sprintf("%s of %s: %s %s", e.Build.ID, e.Build.Template, e.Build.State, e.Build.Reason))
	case e.Stats != nil:
		return fmt.Sprintf("cpu %.1f %%, memory %s, disk %s, %d processes", e.Stats.CPUPercent, sizeText(e.Stats.MemoryBytes), sizeText(e.Stats.DiskBytes), e.Stats.Processes)
	case e.Network != nil:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Network.Verdict, eventTarget(e.Network), eventReason(e.Network)))
	case e.Computer != nil:
		return strings.TrimSpace(string(e.Computer.Action) + " " + e.Computer.Detail)
	case e.Approval != nil:
		return fmt.Sprintf("%s %s %s", e.Approval.ID, e.Approval.State, e.Approval.Text())
	}
	return e.SnapshotID
}

func sandboxText(s *sandbox.Sandbox) string {
	text := string(s.State)
	if s.Name != "" {
		text += " " + s.Name
	}
	if s.ForkedFrom != "" {
		text += ", forked from " + s.ForkedFrom
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}
