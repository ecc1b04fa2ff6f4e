package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	methodResourceUpdated  = "notifications/resources/updated"
	methodResourcesChanged = "notifications/resources/list_changed"
	methodListening        = "notifications/subscriptions/acknowledged"
)

// subscribedURI is the URI under which the library sees every subscription. With the real
// URIs, it would send notifications to everyone who has named the same URI, which in
// another team is another sandbox, and would keep URIs for ever.
const subscribedURI = "cove://subscribed"

// watcher returns the dialect as one whose resources can be subscribed to.
func (b *builder) watcher() (dialect.Watcher, bool) {
	d, ok := b.dialect.(dialect.Watcher)
	return d, ok && b.cfg.Content == nil
}

type watchKey struct{}

// watchOf returns the watch of the listening request to which ctx belongs.
func watchOf(ctx context.Context) *watch {
	w, _ := ctx.Value(watchKey{}).(*watch)
	return w
}

// subscriptions makes the library offer subscriptions. Its handlers are also called for
// the URIs of a listening request.
func (b *builder) subscriptions(opts *mcp.ServerOptions) {
	d, ok := b.watcher()
	if !ok {
		return
	}
	opts.SubscribeHandler = func(ctx context.Context, req *mcp.SubscribeRequest) error {
		if w := watchOf(ctx); w != nil {
			return b.subscribeError(ctx, req.Params.URI, w.subscribe(ctx, d, req.Params.URI))
		}
		return nil
	}
	opts.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
}

func (b *builder) subscribeError(ctx context.Context, uri string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return mcp.ResourceNotFoundError(uri)
	}
	return b.rpcError(ctx, err)
}

// watching is a middleware for both kinds of subscriptions: those of a session, which
// also learns of changes of the list once it has requested it, and those of a listening
// request.
func (b *builder) watching(next mcp.MethodHandler) mcp.MethodHandler {
	d, ok := b.watcher()
	if !ok {
		return next
	}
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		b.watches.request()
		ss, _ := req.GetSession().(*mcp.ServerSession)
		switch p := req.GetParams().(type) {
		case *mcp.SubscriptionsListenParams:
			return b.listen(ctx, ss, func(ctx context.Context) (mcp.Result, error) { return next(ctx, method, req) })
		case *mcp.SubscribeParams:
			w := b.watchOfSession(ctx, ss)
			if w == nil {
				return nil, b.rpcError(ctx, sandbox.Errorf(sandbox.CodeInvalid, "there is no session that could be told"))
			}
			if err := w.subscribe(ctx, d, p.URI); err != nil {
				return nil, b.subscribeError(ctx, p.URI, err)
			}
			p.URI = subscribedURI
		case *mcp.UnsubscribeParams:
			if w := b.watchOfSession(ctx, ss); w != nil {
				w.unsubscribe(p.URI)
			}
			p.URI = subscribedURI
		case *mcp.ListResourcesParams:
			if w := b.watchOfSession(ctx, ss); w != nil {
				_ = w.watchList(ctx) // listing reports the error to a caller who may not
			}
		}
		return next(ctx, method, req)
	}
}

// newWatch returns a watch for the client of a session of the library. Listening returns
// the id of the listening request, for messages.
func (b *builder) newWatch(ss *mcp.ServerSession, listening func() any) *watch {
	w := newWatch(b.cfg.Service)
	w.notify = func(ctx context.Context, method, uri string) error {
		meta := mcp.Meta{}
		if id := listening(); id != nil {
			meta[mcp.MetaKeySubscriptionID] = id
		}
		var err error
		if method == methodResourceUpdated {
			p := &mcp.ResourceUpdatedNotificationParams{Meta: meta, URI: uri}
			_, err = b.send(ctx, method, &mcp.ServerRequest[*mcp.ResourceUpdatedNotificationParams]{Session: ss, Params: p})
		} else {
			p := &mcp.ResourceListChangedParams{Meta: meta}
			_, err = b.send(ctx, method, &mcp.ServerRequest[*mcp.ResourceListChangedParams]{Session: ss, Params: p})
		}
		return err
	}
	return w
}

// watchOfSession returns the watch of a session, or nil if the request has no lasting
// session.
func (b *builder) watchOfSession(ctx context.Context, ss *mcp.ServerSession) *watch {
	if begun := ss.InitializeParams(); begun == nil || begun.ProtocolVersion >= statelessRevision {
		return nil
	}
	session := b.sessions.of(ctx, ss)
	if session == nil {
		return nil
	}
	v, err := session.Value(watchKey{}, func() (any, func(context.Context), error) {
		w := b.newWatch(ss, func() any { return nil })
		remove := b.watches.add(ss.ID(), w)
		return w, func(context.Context) { remove() }, nil
	})
	if err != nil {
		return nil // the session has ended
	}
	return v.(*watch)
}

// listening is a request that stays open and gets notifications.
type listening struct {
	*watch
	id any // known before the first notification
	// begin begins to follow events.
	begin func(ctx context.Context)
}

type listeningKey struct{}

// listen serves a listening request.
func (b *builder) listen(ctx context.Context, ss *mcp.ServerSession, serve func(context.Context) (mcp.Result, error)) (mcp.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &listening{}
	l.watch = b.newWatch(ss, func() any { return l.id })
	remove, err := b.watches.admit(userOf(ctx), l.watch)
	if err != nil {
		return nil, b.rpcError(ctx, err)
	}
	defer remove()
	if b.sessions.stateless {
		l.over = cancel
	}
	done := make(chan struct{})
	close(done)
	l.begin = func(ctx context.Context) {
		done = make(chan struct{})
		go func() { defer close(done); l.follow(ctx) }()
	}
	ctx = context.WithValue(context.WithValue(ctx, watchKey{}, l.watch), listeningKey{}, l)
	res, err := serve(ctx)
	cancel()
	<-done
	return res, err
}

// acknowledged is a middleware for sent messages. It reads from the acknowledgement of a
// subscription what the library has agreed to, and begins to follow events once that is
// sent.
func (b *builder) acknowledged(next mcp.MethodHandler) mcp.MethodHandler {
	b.send = next
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		p, ok := req.GetParams().(*mcp.SubscriptionsAcknowledgedParams)
		l, listens := ctx.Value(listeningKey{}).(*listening)
		if !ok || !listens || method != methodListening {
			return next(ctx, method, req)
		}
		l.id = p.Meta[mcp.MetaKeySubscriptionID]
		if p.Notifications.ResourcesListChanged {
			if err := l.watchList(ctx); err != nil {
				return nil, b.rpcError(ctx, err)
			}
		}
		res, err := next(ctx, method, req)
		if err == nil && (p.Notifications.ResourcesListChanged || len(p.Notifications.ResourceSubscriptions) > 0) {
			l.begin(ctx)
		}
		return res, err
	}
}
