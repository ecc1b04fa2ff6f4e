package podflare

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// runner makes a tool from its definition.
type runner struct {
	// target is the argument that names the sandbox, which hosted clients must send; "" if
	// there is none.
	target string
	tool   func(def *mcp.Tool, hosted bool) dialect.Tool
}

// call is one call of a tool.
type call struct {
	*dialect.Call
	// session is nil on the hosted surface and where there is no session.
	session *session
}

// errGone is the product's answer to an id that is unknown or no longer valid.
var errGone error = sandbox.Errorf(sandbox.CodeNotFound, "sandbox not found")

// errLost is the error if the session's own sandbox has ended by itself.
var errLost error = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox of this session has ended and its state is gone; the next call begins with a new and empty one")

// aliases are other names under which clients send arguments.
type aliases map[string][]string

// aliasesOfID are other names of the argument that names the sandbox.
var aliasesOfID = []string{"sandboxId", "sandbox", "id"}

// targeted are arguments that name a sandbox, "" for the session's own.
type targeted interface{ sandbox() string }

// inSandbox is embedded in arguments that name a sandbox.
type inSandbox struct {
	Sandbox string `json:"sandbox_id"`
}

func (a inSandbox) sandbox() string { return a.Sandbox }

// on makes the runner of a tool that works on the sandbox named by target.
func on[In targeted](target string, extra aliases, run func(ctx context.Context, c *call, id string, in In) (any, error)) runner {
	names := aliases{target: aliasesOfID}
	for name, others := range extra {
		names[name] = slices.Concat(others, names[name])
	}
	return tool(target, names, func(ctx context.Context, c *call, in In) (any, error) {
		id, err := c.sandbox(ctx, in.sandbox())
		if err != nil {
			return nil, err
		}
		v, err := run(ctx, c, id, in)
		if err != nil {
			return nil, c.explain(ctx, id, err)
		}
		return v, nil
	})
}

// tool makes a runner. If an argument is given under both its own name and an alias, the
// alias is refused as unknown.
func tool[In any](target string, names aliases, run func(ctx context.Context, c *call, in In) (any, error)) runner {
	rename := func(args map[string]json.RawMessage) map[string]json.RawMessage {
		for name, others := range names {
			for _, other := range others {
				v, given := args[other]
				if _, taken := args[name]; given && !taken {
					args[name] = v
					delete(args, other)
				}
			}
		}
		return args
	}
	return runner{target: target, tool: func(def *mcp.Tool, hosted bool) dialect.Tool {
		return dialect.New("", def, func(ctx context.Context, dc *dialect.Call, in In) (*mcp.CallToolResult, error) {
			c := &call{Call: dc}
			if !hosted {
				var err error
				if c.session, err = sessionOf(dc); err != nil {
					return nil, err
				}
			}
			v, err := run(ctx, c, in)
			if err != nil {
				return nil, err
			}
			return result(v), nil
		}).Rewriting(rename)
	}}
}

// sandbox returns the sandbox to work on: the named one, or the session's.
func (c *call) sandbox(ctx context.Context, named string) (string, error) {
	switch {
	case named != "":
		return named, nil
	case c.session == nil:
		return "", dialect.Invalid("this connection has no session, so no sandbox of its own; connect with a protocol revision before 2026-07-28, or name a sandbox_id")
	}
	return c.session.sandbox(ctx)
}

// explain translates the error of a call on a sandbox. The product gives the same answer
// for a sandbox that is unknown, has ended, or was merged into another.
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
		return err // about something in the sandbox
	case c.session != nil && c.session.lost(id):
		return errLost
	}
	return errGone
}
