package mcpserver

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	methodListTools = "tools/list"
	methodCallTool  = "tools/call"
	methodListen    = "subscriptions/listen"
)

// linkRevision is the revision of the protocol that brought resource links.
const linkRevision = "2025-06-18"

// builder makes the server of one dialect and selection.
type builder struct {
	cfg      Config
	dialect  dialect.Dialect
	sessions *sessions
	tasks    *tasks
	watches  *watches
	parking  *parking
	// send sends a message to a client.
	send mcp.MethodHandler
	// join derives the context of a request's work: it carries the caller and
	// ends when nobody waits for the result.
	join func(ctx context.Context, req mcp.Request) (context.Context, context.CancelFunc)
	// maxResult bounds a tool's result as JSON, in bytes; 0 is no bound.
	maxResult int
}

func (b *builder) build(sel dialect.Selection) (*mcp.Server, error) {
	offer, err := newOffer(b.dialect, sel)
	if err != nil {
		return nil, err
	}
	about := b.dialect.Server(b.cfg.Version)
	if i, ok := b.dialect.(dialect.Instructor); ok {
		about.Instructions = i.Instructions(offer.first)
	}
	opts := &mcp.ServerOptions{
		Instructions: about.Instructions,
		Logger:       slog.New(quiet{b.cfg.Log.Handler()}),
		Capabilities: b.capabilities(offer),
	}
	if b.cfg.Content != nil {
		b.cfg.Content.Options(opts)
	} else {
		opts.CompletionHandler = b.completion()
	}
	b.subscriptions(opts)
	if b.hasTasks() {
		opts.Capabilities.AddExtension(tasksExtension, nil)
	}
	s := mcp.NewServer(about.Implementation, opts)
	if b.cfg.Content != nil {
		b.cfg.Content.Register(s)
	} else {
		b.register(s, offer)
		s.AddSendingMiddleware(offer.onlyChanged(b.sessions))
	}
	s.AddSendingMiddleware(b.acknowledged)
	if !b.hasTasks() {
		s.AddReceivingMiddleware(b.middleware(offer), b.watching, b.listResources)
		return s, nil
	}
	s.AddReceivingMiddleware(b.middleware(offer), b.watching, b.withTasks, b.listResources)
	return s, b.taskMethods(s)
}

// hasTasks reports whether calls that take long are answered with tasks.
func (b *builder) hasTasks() bool {
	t, ok := b.dialect.(dialect.Tasker)
	return ok && t.HasTasks()
}

// capabilities returns the server's capabilities. Changes are announced only for the
// list of tools, if sessions can turn on further toolsets, and for the list of
// resources, if these can be subscribed to.
func (b *builder) capabilities(o *offer) *mcp.ServerCapabilities {
	c := &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: o.dynamic}}
	if _, ok := b.dialect.(dialect.Resourcer); ok {
		_, watched := b.watcher()
		c.Resources = &mcp.ResourceCapabilities{ListChanged: watched}
	}
	if _, ok := b.dialect.(dialect.Prompter); ok && b.cfg.Content == nil {
		c.Prompts = &mcp.PromptCapabilities{}
	}
	if s, ok := b.dialect.(dialect.Streamer); ok && s.StreamsOutput() {
		c.Logging = &mcp.LoggingCapabilities{}
	}
	return c
}

func (b *builder) register(s *mcp.Server, o *offer) {
	for _, t := range o.all {
		s.AddTool(t.Def, b.handler(s, o, t))
	}
	if r, ok := b.dialect.(dialect.Resourcer); ok {
		for _, t := range r.Resources() {
			s.AddResourceTemplate(t.Def, b.resourceHandler(t))
		}
	}
	if p, ok := b.dialect.(dialect.Prompter); ok {
		for _, t := range p.Prompts() {
			s.AddPrompt(t.Def, func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				res, err := t.Get(ctx, req.Params.Arguments)
				return res, b.rpcError(ctx, err)
			})
		}
	}
}

// guarded handles a request and converts a panic to an error.
func (b *builder) guarded(ctx context.Context, handle mcp.MethodHandler, method string, req mcp.Request) (res mcp.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.cfg.Log.ErrorContext(ctx, "request panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
			res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error; see the server's log for details"}
		}
	}()
	return handle(ctx, method, req)
}

// middleware wraps every request: it sets the caller, cancels the work when the client
// is gone, recovers panics, and filters and sorts the list of tools for the session.
func (b *builder) middleware(o *offer) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		handle := func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if err := b.unknown(o, req); err != nil {
				return nil, err
			}
			ctx, cancel := b.join(ctx, req)
			defer cancel()
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && method == methodListTools && err == nil && b.cfg.Content == nil {
				ss, _ := req.GetSession().(*mcp.ServerSession)
				o.arrange(b.sessions.known(ss), list)
			}
			return res, err
		}
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			return b.guarded(ctx, handle, method, req)
		}
	}
}

// unknown is the error for a tool or prompt that is not offered: the dialect's own
// error, or one that says how to turn on the tool.
func (b *builder) unknown(o *offer, req mcp.Request) error {
	if b.cfg.Content != nil {
		return nil
	}
	refuser, refuses := b.dialect.(dialect.Refuser)
	switch p := req.GetParams().(type) {
	case *mcp.CallToolParamsRaw:
		ss, _ := req.GetSession().(*mcp.ServerSession)
		err := o.refusal(b.sessions.known(ss), p.Name)
		if err == nil || !refuses {
			return err
		}
		return refuser.Unknown("tool", p.Name)
	case *mcp.GetPromptParams:
		prompter, ok := b.dialect.(dialect.Prompter)
		if refuses && (!ok || !slices.ContainsFunc(prompter.Prompts(), func(known dialect.Prompt) bool { return known.Def.Name == p.Name })) {
			return refuser.Unknown("prompt", p.Name)
		}
	}
	return nil
}

func (b *builder) handler(s *mcp.Server, o *offer, t dialect.Tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		p := startProgress(ctx, req)
		defer p.stop()
		switch {
		case t.Asks && req.Params.RequestState != "":
			return b.resume(ctx, req, p)
		case t.Asks && canAsk(req) && req.ProtocolVersion() >= statelessRevision:
			return b.park(ctx, req, p, func(ctx context.Context, k *parked) (*mcp.CallToolResult, error) {
				if k == nil {
					return b.invoke(ctx, s, o, t, b.callOf(ctx, req, p))
				}
				c := b.callOf(ctx, req, &k.told)
				c.Elicit, c.ElicitEnds, c.WaitingSince = k.elicit, true, k.waitingSince
				return b.invoke(ctx, s, o, t, c)
			})
		}
		return b.invoke(ctx, s, o, t, b.callOf(ctx, req, p))
	}
}

// callOf returns the call that a request makes. P reports its progress.
func (b *builder) callOf(ctx context.Context, req *mcp.CallToolRequest, p teller) *dialect.Call {
	return &dialect.Call{
		Service:     b.cfg.Service,
		Args:        req.Params.Arguments,
		Session:     sync.OnceValue(func() *dialect.Session { return b.sessions.of(ctx, req.Session) }),
		Status:      p.status,
		Fraction:    p.fraction,
		Tell:        p.tell,
		Output:      p.output,
		Ask:         asker(req, b.cfg.Log),
		Elicit:      elicitor(req),
		Env:         b.cfg.Env,
		Protocol:    req.ProtocolVersion(),
		DetachAfter: b.detachAfter(ctx),
		Header:      header(req),
		Log:         b.cfg.Log,

		MaxResult: b.maxResult,
	}
}

// invoke makes a call.
func (b *builder) invoke(ctx context.Context, s *mcp.Server, o *offer, t dialect.Tool, c *dialect.Call) (*mcp.CallToolResult, error) {
	if o.dynamic {
		c.Toolsets = &toolsetSwitch{offer: o, session: c.Session, announce: func() {
			s.AddTool(t.Def, b.handler(s, o, t)) // the same tool: the library announces a change of the list
		}}
	}
	res, err := dialect.Invoke(ctx, b.dialect, t, c)
	if err != nil {
		return nil, err
	}
	return adapt(res, c.Protocol), nil
}

// detachAfter is how long a call waits for a command: as long as commands may take if
// the call was answered with a task.
func (b *builder) detachAfter(ctx context.Context) time.Duration {
	if taskOf(ctx) != nil && b.cfg.DetachAfter == 0 {
		return sandbox.MaxExecTimeout
	}
	return b.cfg.DetachAfter
}

func header(req mcp.Request) http.Header {
	if extra := req.GetExtra(); extra != nil {
		return extra.Header
	}
	return nil
}

// adapt removes content that the client's revision of the protocol does not have.
func adapt(res *mcp.CallToolResult, protocol string) *mcp.CallToolResult {
	if protocol == "" || protocol >= linkRevision {
		return res
	}
	res.Content = slices.DeleteFunc(slices.Clone(res.Content), func(c mcp.Content) bool {
		_, link := c.(*mcp.ResourceLink)
		return link
	})
	return res
}

// quiet demotes records of the protocol library to debug: mistakes of clients do not
// concern the operator.
type quiet struct{ next slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.next.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.next.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.next.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.next.WithGroup(name)} }
