package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

// lookEvery is how often the progress of a move is asked for.
const lookEvery = time.Second

func (a *app) nodeDrainCommand() *cobra.Command {
	var req sandbox.DrainRequest
	return a.make(command{
		Use: "drain NODE", Short: "Keep new sandboxes from a node, and move its sandboxes to others",
		Long: "Keep new sandboxes from a node. Sandboxes on the node continue there, and their forks still start there.\n\n" +
			"With --move they move to other nodes, with memory, processes and open files: each is paused, stored in the\n" +
			"object store, and continues at its next call on another node, or at once with --resume. Calls wait meanwhile.\n" +
			"The command waits until nothing more moves; the server continues if the command is interrupted. Sandboxes\n" +
			"with volumes or directories of the host stay.",
		Example: "  cove node drain big\n" +
			"  cove node drain big --move",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&req.Move, "move", false, "Move the node's sandboxes to other nodes")
			f.BoolVar(&req.Resume, "resume", false, "With --move, continue those that were running at once")
		},
		Do: show(nodeDetails, func(ctx context.Context, c *call) (*sandbox.Node, error) {
			n, err := c.client.DrainNode(ctx, c.args[0], req)
			if err != nil || !req.Move {
				return n, err
			}
			return c.awaitMove(ctx, n)
		}),
	})
}

// awaitMove tells of the progress of a move until nothing more moves.
func (c *call) awaitMove(ctx context.Context, n *sandbox.Node) (*sandbox.Node, error) {
	told, stays := sandbox.NodeMove{Left: -1}, map[sandbox.NodeStay]bool{}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		m := n.Move
		if m == nil {
			return nil, sandbox.Errorf(sandbox.CodeConflict, "the sandboxes of node %s no longer move: somebody has let it take sandboxes again", n.Name)
		}
		if m.Moved != told.Moved || m.Left != told.Left || m.Waiting != told.Waiting {
			told = *m
			c.say("%d still to leave node %s; %d sandboxes paused for it", m.Left, n.Name, m.Moved)
			if m.Waiting != "" {
				c.say("nothing moves now: %s", m.Waiting)
			}
		}
		for _, s := range m.Stay {
			if !stays[s] {
				stays[s] = true
				c.say("sandbox %s stays: %s", s.Sandbox, s.Reason)
			}
		}
		if m.Left == 0 {
			return n, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		next, err := c.nodeNamed(ctx, n.Name)
		if err != nil {
			return nil, err
		}
		n = next
	}
}

func (c *call) nodeNamed(ctx context.Context, name string) (*sandbox.Node, error) {
	all, err := c.client.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		if all.Items[i].Name == name {
			return &all.Items[i], nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "node %s is gone", name)
}
