package envd

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb"
	"github.com/cove-sh/cove/sandbox"
)

var eventTypes = map[sandbox.WatchKind]pb.EventType{
	sandbox.WatchCreated:    pb.EventType_EVENT_TYPE_CREATE,
	sandbox.WatchModified:   pb.EventType_EVENT_TYPE_WRITE,
	sandbox.WatchDeleted:    pb.EventType_EVENT_TYPE_REMOVE,
	sandbox.WatchRenamed:    pb.EventType_EVENT_TYPE_RENAME,
	sandbox.WatchAttributes: pb.EventType_EVENT_TYPE_CHMOD,
}

// watchRequest is what both requests for a watch have in common. The option to watch
// network mounts has no effect: the only ones are volumes, and changes that the sandbox
// itself makes to them are always seen.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// watch is a watched directory.
type watch struct {
	p       *plane
	id      string // of the sandbox
	root    string
	entries bool // describe the files too
	deep    bool
	// ended is set when the directory itself is removed.
	ended bool
}

// newWatch checks a request for a watch.
func (s filesystem) newWatch(ctx context.Context, req connect.AnyRequest, ask watchRequest) (*watch, error) {
	at, root, err := s.at(ctx, req, ask.GetPath())
	if err != nil {
		return nil, err
	}
	if err := s.needDir(ctx, at, root); err != nil {
		return nil, err
	}
	return &watch{p: s.plane, id: at.box.ID, root: root, entries: ask.GetIncludeEntry(), deep: ask.GetRecursive()}, nil
}

// run passes on changes until ctx ends. It calls ready when it starts to see changes.
func (w *watch) run(ctx context.Context, ready func() error, change func(*pb.FilesystemEvent) error) error {
	var own error
	err := w.p.cfg.Service.WatchFiles(ctx, w.id, sandbox.WatchRequest{Path: w.root, Recursive: w.deep}, func(e sandbox.WatchEvent) error {
		switch {
		case e.Kind == sandbox.WatchReady:
			own = ready()
		case e.Kind == sandbox.WatchOverflow:
			own = fail(connect.CodeDataLoss, "changes came faster than they were read, and some were lost; list the directory, and watch again")
		case eventTypes[e.Kind] != pb.EventType_EVENT_TYPE_UNSPECIFIED:
			own = change(w.event(ctx, e))
		}
		return own
	})
	switch {
	case own != nil:
		return own
	case w.ended || ctx.Err() != nil && context.Cause(ctx) == context.Canceled:
		return nil
	case ctx.Err() != nil:
		return fail(connect.CodeDeadlineExceeded, "the time that the client gave is over")
	}
	return w.p.explain(ctx, w.id, err)
}

// event describes a change.
func (w *watch) event(ctx context.Context, e sandbox.WatchEvent) *pb.FilesystemEvent {
	out := &pb.FilesystemEvent{Name: relative(w.root, e.Path), Type: eventTypes[e.Kind]}
	gone := e.Kind == sandbox.WatchDeleted || e.Kind == sandbox.WatchRenamed
	if gone && e.Path == w.root {
		w.ended = true
	}
	if w.entries && !gone {
		if info, err := w.p.cfg.Service.StatFile(ctx, w.id, e.Path); err == nil { // else it is already deleted
			out.Entry = entryOf(info)
		}
	}
	return out
}

// relative returns a path as seen from a directory.
func relative(root, p string) string {
	if p == root {
		return "."
	}
	return strings.TrimPrefix(p, strings.TrimSuffix(root, "/")+"/")
}

func (s filesystem) WatchDir(ctx context.Context, req *connect.Request[pb.WatchDirRequest], out *connect.ServerStream[pb.WatchDirResponse]) error {
	w, err := s.newWatch(ctx, req, req.Msg)
	if err != nil {
		return err
	}
	release, err := s.watches.take(w.id)
	if err != nil {
		return err
	}
	defer release()
	pulse := newPulse(req.Header(), func() error {
		return out.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}})
	})
	defer pulse.close()
	return w.run(ctx, func() error {
		return pulse.send(func() error {
			return out.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}})
		})
	}, func(e *pb.FilesystemEvent) error {
		return pulse.send(func() error {
			return out.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: e}})
		})
	})
}
