package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func sandboxPause() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:  "sandbox_pause",
		Title: "Pause a sandbox",
		Description: "Write a sandbox's memory, processes and files to disk and free what it uses. It resumes by itself, where it was, with the next call that needs it. " +
			"Use it for one that you will not need for a while.",
		Annotations:  annotations("Pause a sandbox", false, false, true, false),
		InputSchema:  input(sandboxArg()),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in sandboxRef) (*mcp.CallToolResult, error) {
		c.Status("pausing the sandbox")
		sb, err := c.Service.Pause(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Paused sandbox "+describe(sb), view(sb)), nil
	})
}

type resumeArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.ResumeRequest
}

func sandboxResume() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:        "sandbox_resume",
		Title:       "Resume a sandbox",
		Description: "Continue a paused sandbox where it was. Seldom needed: other tools resume it by themselves. Resuming a running sandbox changes nothing.",
		Annotations: annotations("Resume a sandbox", false, true, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("files_only", with(boolean("Start it afresh with its files, without its memory and processes, which are lost: the way back when resuming fails on this machine."), false)),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in resumeArgs) (*mcp.CallToolResult, error) {
		c.Status("resuming the sandbox")
		sb, err := c.Service.Resume(ctx, in.Sandbox, in.ResumeRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Resumed sandbox "+describe(sb), view(sb)), nil
	})
}

type forkArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.ForkRequest
}

// child is a child of a fork in a result. What else it is, is as its parent.
type child struct {
	Index int    `json:"index"`
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
}

type forkResult struct {
	Children []child `json:"children"`
}

func sandboxFork() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:  "sandbox_fork",
		Title: "Fork a sandbox",
		Description: "Copy a sandbox into children that continue from this instant with its memory, processes and files; it goes on itself. " +
			"Use it before a risky step or to explore several ways; then sandbox_merge the best and sandbox_kill the others. " +
			"Commands in a child see COVE_FORK_INDEX (0 is the first), COVE_FORK_COUNT and COVE_FORK_PARENT.",
		Annotations: annotations("Fork a sandbox", false, false, false, false),
		InputSchema: input(
			sandboxArg(),
			opt("count", with(integer("How many children.", 1, sandbox.MaxForks), 1)),
			opt("name", bounded("Name of the child; of several, each gets it with - and its index.", 0, sandbox.MaxNameLength)),
			opt("env", envSchema("Added to the environment of each child's commands.")),
			opt("metadata", metadataSchema("Added to the parent's.")),
			opt("lifetime_seconds", integer("Seconds until each child ends; 0 is never; as the parent was made if left out.", 0, maxLifetimeSeconds)),
			opt("idle_timeout_seconds", integer("Seconds without a call or running command until a child ends; 0 is never.", 0, maxLifetimeSeconds)),
		),
		OutputSchema: output(
			req("children", array("In order of index.", object("",
				req("index", count("")), req("id", text("Give it as sandbox to the other tools.")), opt("name", text(""))), 0, 0)),
		),
	}, func(ctx context.Context, c *dialect.Call, in forkArgs) (*mcp.CallToolResult, error) {
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
			if sb.Name != "" {
				fmt.Fprintf(&b, " (%s)", sb.Name)
			}
		}
		made := "1 child"
		if n := len(out.Children); n != 1 {
			made = fmt.Sprintf("%d children", n)
		}
		return dialect.Text(fmt.Sprintf("Forked %s into %s:%s\n", in.Sandbox, made, b.String()), out), nil
	})
}
