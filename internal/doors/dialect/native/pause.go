package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func pauseSandbox(ctx context.Context, c *dialect.Call, in sandboxRef) (*reply[sandboxView], error) {
	c.Status("pausing the sandbox")
	sb, err := c.Service.Pause(ctx, in.Sandbox)
	return described("Paused", sb, err)
}

type resumeArgs struct {
	sandboxRef
	sandbox.ResumeRequest
}

func resumeSandbox(ctx context.Context, c *dialect.Call, in resumeArgs) (*reply[sandboxView], error) {
	c.Status("resuming the sandbox")
	sb, err := c.Service.Resume(ctx, in.Sandbox, in.ResumeRequest)
	return described("Resumed", sb, err)
}

type forkArgs struct {
	sandboxRef
	sandbox.ForkRequest
}

// child is a child of a fork in a result. Its other properties are its parent's.
type child struct {
	Index int    `json:"index"`
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
}

type forkResult struct {
	Children []child `json:"children"`
}

func forkSandbox(ctx context.Context, c *dialect.Call, in forkArgs) (*reply[forkResult], error) {
	c.Status("forking the sandbox")
	list, err := c.Service.Fork(ctx, in.Sandbox, in.ForkRequest)
	if err != nil {
		return nil, err
	}
	out := forkResult{Children: make([]child, 0, len(list.Items))}
	var b strings.Builder
	for i := range list.Items {
		sb := &list.Items[i]
		out.Children = append(out.Children, child{Index: i, ID: sb.ID, Name: sb.Name})
		fmt.Fprintf(&b, "\n%d: %s", i, sb.ID)
		field(&b, " (%s)", sb.Name)
	}
	made := "1 child"
	if n := len(out.Children); n != 1 {
		made = fmt.Sprintf("%d children", n)
	}
	return answer(fmt.Sprintf("Forked %s into %s:%s\n", in.Sandbox, made, b.String()), out)
}
