package native

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// askAfter is how long a call runs before it looks for questions: most calls are over
	// by then.
	askAfter = 250 * time.Millisecond
	// maxAsked is how many questions the client's user is asked in the course of one call.
	maxAsked = 16
)

// asking lets the client's user answer what the sandbox's policy asks while the tool runs.
// Where a question ends the call and the client repeats it, only a tool asks that may be
// repeated.
func asking(t dialect.Tool) dialect.Tool {
	run := t.Run
	repeats := t.Def.Annotations.IdempotentHint
	forks := t.Def.Name == "sandbox_try"
	t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
		name := sandboxOf(c.Args)
		switch {
		case c.Elicit == nil || name == "":
			return run(ctx, c)
		case c.ElicitEnds:
			if repeats {
				if err := askOpen(ctx, c, name); err != nil {
					return nil, err
				}
			}
			return run(ctx, c)
		}
		ctx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { askWhile(ctx, c, name, forks) })
		defer wg.Wait()
		defer stop()
		return run(ctx, c)
	}
	return t
}

// sandboxOf returns the sandbox that arguments name, or "".
func sandboxOf(args json.RawMessage) string {
	var in struct {
		Sandbox string `json:"sandbox"`
	}
	_ = json.Unmarshal(args, &in) // the tool itself says what is wrong
	return in.Sandbox
}

// askOpen asks about the questions that are open.
func askOpen(ctx context.Context, c *dialect.Call, name string) error {
	list, err := c.Service.ListApprovals(ctx, sandbox.ListApprovalsRequest{Sandbox: name, Page: sandbox.Page{Limit: maxAsked}})
	if err != nil {
		return nil // the tool itself says what is wrong
	}
	for i := range list.Items {
		if err := askUser(ctx, c, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// askWhile asks about questions of a sandbox, or of its forks, one after the other, until
// ctx ends.
func askWhile(ctx context.Context, c *dialect.Call, name string, forks bool) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(askAfter):
	}
	parent := ""
	if forks {
		sb, err := c.Service.Get(ctx, name)
		if err != nil {
			return // the tool itself says what is wrong
		}
		name, parent = "", sb.ID
	}
	left := maxAsked
	seen := map[string]bool{}
	ask := func(a *sandbox.Approval) error {
		if seen[a.ID] || left == 0 {
			return nil
		}
		seen[a.ID] = true
		if forks {
			if sb, err := c.Service.Get(ctx, a.SandboxID); err != nil || sb.ForkedFrom != parent {
				return nil // it may have ended
			}
		}
		left--
		return askUser(ctx, c, a)
	}
	// The client's user learns of a failure here by what the connection says.
	_ = c.Service.FollowEvents(ctx, sandbox.FollowEventsRequest{Sandbox: name, Kinds: []sandbox.EventKind{sandbox.EventApprovalAsked}}, func(e sandbox.Event) error {
		if e.Approval != nil {
			return ask(e.Approval)
		}
		list, err := c.Service.ListApprovals(ctx, sandbox.ListApprovalsRequest{Sandbox: name, Page: sandbox.Page{Limit: maxAsked}})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := ask(&list.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// askUser asks the client's user a question and passes a yes or a no on, once. Whatever
// else comes answers nothing: the question stays open for others.
func askUser(ctx context.Context, c *dialect.Call, a *sandbox.Approval) error {
	to := a.Target()
	question := fmt.Sprintf("Code in sandbox %s wants to connect to %s (%s). Allow this connection?", a.SandboxID, to, a.Protocol)
	if a.Secret != "" {
		question = fmt.Sprintf("Code in sandbox %s wants to use the secret %s in a request to %s. Allow this request?", a.SandboxID, a.Secret, to)
	}
	answer, err := c.Elicit(ctx, a.ID, question)
	if err != nil || answer == dialect.NoAnswer {
		return err
	}
	_, err = c.Service.AnswerApproval(ctx, a.ID, sandbox.AnswerApprovalRequest{Allow: answer == dialect.Yes})
	if err != nil && ctx.Err() == nil {
		c.Log.InfoContext(ctx, "answer a question of a network policy", "approval", a.ID, "error", err) // somebody else was first
	}
	return nil
}
