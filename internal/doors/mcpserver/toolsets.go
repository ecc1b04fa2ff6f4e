package mcpserver

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const methodToolsChanged = "notifications/tools/list_changed"

// offer knows which tools a server has, and which of them a session is offered: those
// of the server's selection, until the session turns on more.
type offer struct {
	dialect   dialect.Dialect
	selection dialect.Selection // normalized
	first     []dialect.Tool    // those of the selection
	all       []dialect.Tool    // those that a session can turn on, too
	order     map[string]int    // of all
	dynamic   bool              // a session can turn on more
}

func newOffer(d dialect.Dialect, sel dialect.Selection) (*offer, error) {
	sel, err := dialect.Normalize(d, sel)
	if err != nil {
		return nil, err
	}
	o := &offer{dialect: d, selection: sel, order: make(map[string]int)}
	if o.first, err = dialect.Select(d, sel); err != nil {
		return nil, err
	}
	o.all = o.first
	if o.dynamic = dialect.IsDynamic(d, o.first); o.dynamic {
		every := sel
		every.Toolsets = append([]string{dialect.AllToolsets}, sel.Toolsets...)
		if o.all, err = dialect.Select(d, every); err != nil {
			return nil, err
		}
	}
	for i, t := range o.all {
		o.order[t.Def.Name] = i
	}
	return o, nil
}

// choiceKey is the key of a [choice] in its [dialect.Session].
type choiceKey struct{}

// choice is the selection of a session.
type choice struct {
	mu        sync.Mutex
	selection dialect.Selection // guarded by mu
	changed   bool              // a change is to be announced; guarded by mu
}

// choiceOf returns the choice of a session.
func (o *offer) choiceOf(session *dialect.Session) (*choice, error) {
	v, err := session.Value(choiceKey{}, func() (any, func(context.Context), error) {
		return &choice{selection: o.selection}, nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("the session has ended: %w", err)
	}
	return v.(*choice), nil
}

// of returns the selection of a session, which is nil if it has no state.
func (o *offer) of(session *dialect.Session) dialect.Selection {
	if !o.dynamic || session == nil {
		return o.selection
	}
	c, err := o.choiceOf(session)
	if err != nil {
		return o.selection
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.selection
}

// tools returns what a session is offered, in the dialect's order.
func (o *offer) tools(session *dialect.Session) []dialect.Tool {
	sel := o.of(session)
	if !o.dynamic || slices.Equal(sel.Toolsets, o.selection.Toolsets) {
		return o.first
	}
	tools, err := dialect.Select(o.dialect, sel)
	if err != nil { // it was checked when it was chosen
		return o.first
	}
	return tools
}

// arrange reduces a list to the tools that the session is offered, in the dialect's
// order.
func (o *offer) arrange(session *dialect.Session, list *mcp.ListToolsResult) {
	offered := make(map[string]bool)
	for _, t := range o.tools(session) {
		offered[t.Def.Name] = true
	}
	list.Tools = slices.DeleteFunc(list.Tools, func(t *mcp.Tool) bool { return !offered[t.Name] })
	slices.SortStableFunc(list.Tools, func(x, y *mcp.Tool) int { return o.order[x.Name] - o.order[y.Name] })
}

// refusal is the error for a tool that the session is not offered, or nil.
func (o *offer) refusal(session *dialect.Session, name string) error {
	if slices.ContainsFunc(o.tools(session), func(t dialect.Tool) bool { return t.Def.Name == name }) {
		return nil
	}
	message := fmt.Sprintf("unknown tool %q", name)
	if err := dialect.Off(o.dialect, o.of(session), name, o.dynamic); err != nil {
		message = sandbox.MessageOf(err)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}

// onlyChanged drops announcements of a changed list, which the library sends to all
// sessions of a server, for sessions whose list has not changed.
func (o *offer) onlyChanged(kept *sessions) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method != methodToolsChanged {
				return next(ctx, method, req)
			}
			ss, _ := req.GetSession().(*mcp.ServerSession)
			session := kept.known(ss)
			if session == nil {
				return nil, nil
			}
			c, err := o.choiceOf(session)
			if err != nil {
				return nil, err
			}
			c.mu.Lock()
			changed := c.changed
			c.changed = false
			c.mu.Unlock()
			if !changed {
				return nil, nil
			}
			return next(ctx, method, req)
		}
	}
}

// toolsetSwitch is [dialect.ToolsetSwitch] of one session.
type toolsetSwitch struct {
	offer    *offer
	session  func() *dialect.Session
	announce func() // announces a changed list through [offer.onlyChanged]
}

func (s *toolsetSwitch) On() []string { return s.offer.of(s.session()).Toolsets }

func (s *toolsetSwitch) Tools(toolset string) []string {
	var names []string
	for _, t := range s.offer.all {
		if t.In(toolset) {
			names = append(names, t.Def.Name)
		}
	}
	return names
}

func (s *toolsetSwitch) Enable(toolsets []string) ([]string, error) {
	c, err := s.offer.choiceOf(s.session())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := dialect.Select(s.offer.dialect, c.selection)
	if err != nil {
		return nil, err
	}
	sel := c.selection
	sel.Toolsets = slices.Concat(sel.Toolsets, toolsets)
	if sel, err = dialect.Normalize(s.offer.dialect, sel); err != nil {
		return nil, err
	}
	after, err := dialect.Select(s.offer.dialect, sel)
	if err != nil {
		return nil, err
	}
	c.selection = sel
	var names []string
	for _, t := range after {
		if !slices.ContainsFunc(before, func(b dialect.Tool) bool { return b.Def.Name == t.Def.Name }) {
			names = append(names, t.Def.Name)
		}
	}
	if len(names) > 0 {
		c.changed = true
		s.announce()
	}
	return names, nil
}
