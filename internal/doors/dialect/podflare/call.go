package podflare

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// runner makes a tool of its definition.
type runner struct {
	// target is the argument that names the sandbox, which hosted clients must
	// give; empty is none.
	target string
	tool   func(def *mcp.Tool, hosted bool) dialect.Tool
}

// call is one call of a tool.
type call struct {
	*dialect.Call
	// box is nil where there is no session, and on the hosted surface.
	box *box
}

// errGone is what the product answers to an id that means nothing (any more).
var errGone error = sandbox.Errorf(sandbox.CodeNotFound, "sandbox not found")

// errLost says that the session's own sandbox ended by itself.
var errLost error = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of this session has ended and its state is gone; the next call begins with a new and empty one")

// aliasesOfID are other names of the argument sandbox_id.
var aliasesOfID = []string{"sandboxId", "sandbox", "id"}

// on makes the runner of a tool that works on a sandbox. Aliases are other names
// under which clients send an argument.
func on[In any](target string, aliases map[string][]string, idOf func(*In) string, run func(ctx context.Context, c *call, id string, in In) (any, error)) runner {
	return runner{target: target, tool: func(def *mcp.Tool, hosted bool) dialect.Tool {
		return renaming(aliases, dialect.New("", def, func(ctx context.Context, dc *dialect.Call, in In) (*mcp.CallToolResult, error) {
			c := &call{Call: dc}
			if !hosted {
				var err error
				if c.box, err = boxOf(dc); err != nil {
					return nil, err
				}
			}
			id, err := c.sandbox(ctx, idOf(&in))
			if err != nil {
				return nil, err
			}
			v, err := run(ctx, c, id, in)
			if err != nil {
				return nil, c.explain(ctx, id, err)
			}
			return result(v), nil
		}))
	}}
}

// plain makes the runner of a tool that works on no session's sandbox.
func plain[In any](target string, aliases map[string][]string, run func(ctx context.Context, c *call, in In) (any, error)) runner {
	return runner{target: target, tool: func(def *mcp.Tool, _ bool) dialect.Tool {
		return renaming(aliases, dialect.New("", def, func(ctx context.Context, dc *dialect.Call, in In) (*mcp.CallToolResult, error) {
			v, err := run(ctx, &call{Call: dc}, in)
			if err != nil {
				return nil, err
			}
			return result(v), nil
		}))
	}}
}

// renaming has a tool take arguments under other names too. One that is there
// under both is left, and refused as unknown.
func renaming(aliases map[string][]string, t dialect.Tool) dialect.Tool {
	next := t.Run
	t.Run = func(ctx context.Context, c *dialect.Call) (*mcp.CallToolResult, error) {
		renamed := *c
		renamed.Args = dialect.Rewritten(c.Args, func(args map[string]json.RawMessage) map[string]json.RawMessage {
			for name, others := range aliases {
				for _, other := range others {
					v, given := args[other]
					if _, taken := args[name]; given && !taken {
						args[name] = v
						delete(args, other)
					}
				}
			}
			return args
		})
		return next(ctx, &renamed)
	}
	return t
}

// sandbox returns the sandbox to work on: the named one, or the session's.
func (c *call) sandbox(ctx context.Context, named string) (string, error) {
	switch {
	case named != "":
		return named, nil
	case c.box == nil:
		return "", sandbox.Errorf(sandbox.CodeInvalid, "this connection has no session, so no sandbox of its own; connect with a protocol revision before 2026-07-28, or name a sandbox_id")
	}
	return c.box.sandbox(ctx)
}

// explain tells an error of a call on a sandbox. The product has one answer
// where a sandbox is unknown, ended or merged away.
func (c *call) explain(ctx context.Context, id string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeNotRunning:
	default:
		return err
	}
	if errors.Is(err, errGone) || errors.Is(err, errLost) {
		return err
	}
	s, getErr := c.Service.Get(ctx, id)
	switch {
	case getErr == nil && !s.State.Final(), getErr != nil && sandbox.CodeOf(getErr) != sandbox.CodeNotFound:
		return err // of something in it
	case c.box != nil && c.box.lost(id):
		return errLost
	}
	return errGone
}
