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
// If a question ends the request, a tool that only reads asks about open questions first:
// then no request waits meanwhile, however long the user takes.
func asking(t dialect.Tool) dialect.Tool {
	run := t.Run
	looks := t.ReadOnly()
	forks := t.Def.Name == "sandbox_try"
	t.Asks = true
	t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
		name := sandboxOf(c.Args)
		if c.Elicit == nil || name == "" {
			return run(ctx, c)
		}
		q := &questions{call: c, left: maxAsked, seen: make(map[string]bool)}
		if looks && c.ElicitEnds {
			_ = q.askOpen(ctx, name) // the tool itself says what is wrong
		}
		ctx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { q.askWhile(ctx, name, forks) })
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

// questions are the questions that the client's user is asked during one call, each once
// and one after the other.
type questions struct {
	call   *dialect.Call
	left   int
	seen   map[string]bool
	parent string // whose forks ask, or ""
}

// askOpen asks about the questions that are open.
func (q *questions) askOpen(ctx context.Context, name string) error {
	list, err := q.call.Service.ListApprovals(ctx, sandbox.ListApprovalsRequest{Sandbox: name, Page: sandbox.Page{Limit: maxAsked}})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := q.ask(ctx, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// askWhile asks about questions of a sandbox, or of its forks, until ctx ends.
func (q *questions) askWhile(ctx context.Context, name string, forks bool) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(askAfter):
	}
	if forks {
		sb, err := q.call.Service.Get(ctx, name)
		if err != nil {
			return // the tool itself says what is wrong
		}
		name, q.parent = "", sb.ID
	}
	// If this fails, the client's user sees it in the error of the connection.
	_ = q.call.Service.FollowEvents(ctx, sandbox.FollowEventsRequest{Sandbox: name, Kinds: []sandbox.EventKind{sandbox.EventApprovalAsked}}, func(e sandbox.Event) error {
		if e.Approval != nil {
			return q.ask(ctx, e.Approval)
		}
		return q.askOpen(ctx, name)
	})
}

// ask asks about a question, unless that was done.
func (q *questions) ask(ctx context.Context, a *sandbox.Approval) error {
	if q.seen[a.ID] || q.left == 0 {
		return nil
	}
	q.seen[a.ID] = true
	if q.parent != "" {
		if sb, err := q.call.Service.Get(ctx, a.SandboxID); err != nil || sb.ForkedFrom != q.parent {
			return nil // it may have ended
		}
	}
	q.left--
	return askUser(ctx, q.call, a)
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
