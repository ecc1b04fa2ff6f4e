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
		Use: "events [SANDBOX]", Short: "Show what happens to sandboxes, snapshots, jobs and builds",
		Long: fmt.Sprintf("Show what has happened, the newest last: changes of sandboxes and of their state, snapshots, jobs,\n"+
			"builds of templates, and every %s what running sandboxes use. The server remembers the last\n"+
			"%d events since its start. What a sandbox tries to reach is shown with -f and the sandbox's name;\n"+
			"what it tried before: cove netlog", sandbox.StatsInterval, sandbox.EventsKept),
		Example: "  cove events\n  cove events -f --kind sandbox,job\n  cove events -f work --json",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "go on with what comes")
			f.StringSliceVar(&kinds, "kind", nil, "only these kinds: "+kindNames())
			f.StringVar(&after, "after", "", "only what came after the event with this id, as --json shows it")
		},
		JSONHelp: "print an event as JSON a line",
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

// liveEvent returns what prints events one by one.
func (c *call) liveEvent() func(sandbox.Event) error {
	if c.json {
		return func(e sandbox.Event) error {
			return c.printLine(struct {
				SchemaVersion int `json:"schema_version"`
				*sandbox.Event
			}{schemaVersion, &e})
		}
	}
	row := c.liveTable([]string{"TIME", "KIND", "SANDBOX", "WHAT"}, len(time.RFC3339), 18, 30)
	return func(e sandbox.Event) error {
		if e.Kind == sandbox.EventBegun {
			if e.Missed {
				c.say("some events are not remembered any more; list what there is anew")
			}
			return nil
		}
		return row([]string{stamp(&e.At), string(e.Kind), e.SandboxID, eventText(&e)})
	}
}

// eventText says what happened, in a line.
func eventText(e *sandbox.Event) string {
	switch {
	case e.Sandbox != nil:
		return sandboxText(e.Sandbox)
	case e.Snapshot != nil:
		return strings.TrimSpace(e.SnapshotID + " " + e.Snapshot.Name + " " + e.Snapshot.Label)
	case e.Job != nil && e.Job.State == sandbox.JobExited:
		return fmt.Sprintf("%s ended with %d: %s", e.Job.ID, e.Job.ExitCode, strings.Join(e.Job.Command, " "))
	case e.Job != nil:
		return fmt.Sprintf("%s runs: %s", e.Job.ID, strings.Join(e.Job.Command, " "))
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
