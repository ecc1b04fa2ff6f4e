package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const defaultContext = "default"

// codePlan is a checked request to run code.
type codePlan struct {
	key     contextKey
	code    string
	fresh   bool
	user    account
	asked   string // the user that the request names; empty: none
	env     map[string]string
	setEnv  map[string]string
	home    string // directory of a new interpreter
	dir     string // of this run; empty: that of the interpreter
	timeout time.Duration
	stdin   []byte
	given   bool // there is standard input
	keep    int64
}

// RunCode implements [agentv1connect.AgentHandler].
func (a *Agent) RunCode(ctx context.Context, req *connect.Request[agentv1.RunCodeRequest], s *connect.ServerStream[agentv1.CodeEvent]) error {
	p, err := a.planCode(req.Msg)
	if err != nil {
		return err
	}
	box := kernel.NewOutbox(p.keep)
	failed := make(chan error, 1)
	go func() {
		if err := a.runCode(ctx, p, box); err != nil {
			failed <- err
		}
	}()
	for {
		events, last := box.Take()
		for _, e := range events {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		select {
		case <-box.Wake():
		case err := <-failed:
			return err
		case <-ctx.Done():
			return cancelled(ctx) // which ends the run too
		}
	}
}

func (a *Agent) runCode(ctx context.Context, p *codePlan, box *kernel.Outbox) error {
	var result *agentv1.CodeResult
	var err error
	switch {
	case p.key.language == sandbox.Go, p.fresh && p.key.language == sandbox.Bash:
		result, err = a.runOnce(ctx, p, box)
	case p.fresh:
		c := newCodeContext(p.key, &p.user)
		defer c.end("the code has ended") // after the caller has the result
		result, err = a.runIn(ctx, c, p, box)
	default:
		result, err = a.runInContext(ctx, p, box)
	}
	if err != nil {
		return err
	}
	// Only now: a caller that has the result sees the state after the run.
	box.Close(result)
	return nil
}

// runInContext runs code in the context that it names.
func (a *Agent) runInContext(ctx context.Context, p *codePlan, box *kernel.Outbox) (*agentv1.CodeResult, error) {
	c, err := a.code.get(p.key, &p.user)
	if err != nil {
		return nil, err
	}
	if p.asked != "" && !c.belongs(&p.user) {
		return nil, fail(connect.CodeFailedPrecondition,
			"the context %s belongs to user %q; leave the user out, or use a context of another name", c.key, c.owner().name)
	}
	return a.runIn(ctx, c, p, box)
}

// planCode checks a request and completes it with the sandbox's defaults.
func (a *Agent) planCode(req *agentv1.RunCodeRequest) (*codePlan, error) {
	key, err := keyOf(req.GetContext())
	if err != nil {
		return nil, err
	}
	err = cmp.Or(
		checkCode(req.GetCode()),
		checkEnv(req.GetEnv()),
		checkKeep(req.GetKeepBytes()),
		checkMillis("timeout_ms", req.GetTimeoutMs()),
	)
	if err != nil {
		return nil, err
	}
	if strings.IndexByte(req.GetCode(), 0) >= 0 {
		return nil, invalid("the code holds a NUL byte; write it as an escape")
	}
	if len(req.GetStdin()) > sandbox.MaxStdinBytes {
		return nil, invalid("standard input is longer than %d bytes; put it into a file", sandbox.MaxStdinBytes)
	}
	s := a.current()
	acc, err := a.users.lookupAllowed(cmp.Or(req.GetUser(), s.user))
	if err != nil {
		return nil, err
	}
	dir := req.GetWorkdir()
	if dir != "" {
		if dir, err = resolvePath(s.workdir, dir); err != nil {
			return nil, err
		}
	}
	return &codePlan{
		key:     key,
		code:    req.GetCode(),
		fresh:   req.GetFresh(),
		user:    acc,
		asked:   req.GetUser(),
		env:     jobEnv(&acc, s, &agentv1.ExecRequest{}),
		setEnv:  req.GetEnv(),
		home:    s.workdir,
		dir:     dir,
		timeout: time.Duration(req.GetTimeoutMs()) * time.Millisecond,
		stdin:   req.GetStdin(),
		given:   req.GetHasStdin(),
		keep:    cmp.Or(req.GetKeepBytes(), sandbox.DefaultKeepBytes),
	}, nil
}

// keyOf checks the name of a context.
func keyOf(ref *agentv1.ContextRef) (contextKey, error) {
	key := contextKey{sandbox.Language(ref.GetLanguage()), cmp.Or(ref.GetName(), defaultContext)}
	if err := checkLanguage(ref.GetLanguage()); err != nil {
		return key, err
	}
	if len(key.name) > sandbox.MaxNameLength {
		return key, invalid("the context's name is longer than %d bytes", sandbox.MaxNameLength)
	}
	if !sandbox.ValidJobID(key.name) { // the same characters
		return key, invalid("the context's name %q is not valid; use letters, digits, '-', '_' and '.'", key.name)
	}
	return key, nil
}

// ListContexts implements [agentv1connect.AgentHandler]. The oldest contexts are first.
func (a *Agent) ListContexts(context.Context, *connect.Request[agentv1.ListContextsRequest]) (*connect.Response[agentv1.ListContextsResponse], error) {
	m := &agentv1.ListContextsResponse{}
	for _, c := range a.code.list() {
		m.Contexts = append(m.Contexts, c.describe())
	}
	slices.SortFunc(m.Contexts, func(x, y *agentv1.CodeContext) int {
		return cmp.Or(
			cmp.Compare(x.GetCreatedUnixNano(), y.GetCreatedUnixNano()),
			cmp.Compare(x.GetRef().GetLanguage(), y.GetRef().GetLanguage()),
			cmp.Compare(x.GetRef().GetName(), y.GetRef().GetName()),
		)
	})
	return connect.NewResponse(m), nil
}

// ControlContext implements [agentv1connect.AgentHandler].
func (a *Agent) ControlContext(ctx context.Context, req *connect.Request[agentv1.ControlContextRequest]) (*connect.Response[agentv1.ControlContextResponse], error) {
	key, err := keyOf(req.Msg.GetRef())
	if err != nil {
		return nil, err
	}
	if key.language == sandbox.Go {
		return nil, invalid("Go keeps no contexts; there is nothing to control")
	}
	c, err := a.code.find(key)
	if err != nil && req.Msg.GetAction() == agentv1.ControlContextRequest_ACTION_DELETE {
		return connect.NewResponse(&agentv1.ControlContextResponse{}), nil // it is gone
	} else if err != nil {
		return nil, err
	}
	m := &agentv1.ControlContextResponse{}
	switch req.Msg.GetAction() {
	case agentv1.ControlContextRequest_ACTION_INTERRUPT:
		c.interrupt(a.interruptGrace)
		m.Context = c.describe()
	case agentv1.ControlContextRequest_ACTION_RESTART:
		if err := a.restart(ctx, c); err != nil {
			return nil, err
		}
		m.Context = c.describe()
	case agentv1.ControlContextRequest_ACTION_DELETE:
		a.code.remove(c)
		c.end("the context was deleted")
	default:
		return nil, invalid("name an action: interrupt, restart or delete")
	}
	return connect.NewResponse(m), nil
}
