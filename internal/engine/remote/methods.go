package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// A method serves one call.
type method func(ctx context.Context, n *session, f *frames) error

// unary makes a method with one message in each direction.
func unary[Req, Res any](call func(*session, context.Context, *Req) (*Res, error)) method {
	return func(ctx context.Context, n *session, f *frames) error {
		var req Req
		if err := f.receive(&req); err != nil {
			return err
		}
		res, err := call(n, ctx, &req)
		if err != nil {
			return err
		}
		return f.send(res)
	}
}

// cancelled makes a method like streamed, which Cancel ends. It goes on until it has undone
// what it did.
func cancelled[Req any](tokenOf func(*Req) int64, call func(*session, context.Context, *Req, *frames) error) method {
	return streamed(func(n *session, ctx context.Context, req *Req, f *frames) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		n.calls.Store(tokenOf(req), cancel)
		defer n.calls.Delete(tokenOf(req))
		return call(n, ctx, req, f)
	})
}

func (n *session) cancelCall(_ context.Context, req *cancelRequest) (*empty, error) {
	if cancel, ok := n.calls.Load(req.Token); ok {
		cancel.(context.CancelFunc)()
	}
	return &empty{}, nil
}

// streamed makes a method that begins with a message.
func streamed[Req any](call func(*session, context.Context, *Req, *frames) error) method {
	return func(ctx context.Context, n *session, f *frames) error {
		var req Req
		if err := f.receive(&req); err != nil {
			return err
		}
		return call(n, ctx, &req, f)
	}
}

var methods map[string]method

func init() {
	methods = map[string]method{
		"/Cancel":           unary((*session).cancelCall),
		"/Report":           unary((*session).report),
		"/Settle":           unary((*session).settle),
		"/List":             unary((*session).list),
		"/Create":           cancelled(func(r *createRequest) int64 { return r.Token }, (*session).create),
		"/Open":             unary((*session).open),
		"/Destroy":          unary((*session).destroy),
		"/End":              unary((*session).endInstance),
		"/Admit":            unary((*session).admit),
		"/Stats":            unary((*session).stats),
		"/SetLimits":        unary((*session).setLimits),
		"/Probe":            unary((*session).probe),
		"/Fence":            unary((*session).fence),
		"/DeletedBytes":     unary((*session).deletedBytes),
		"/Dial":             streamed((*session).dial),
		"/DialPort":         streamed((*session).dialPort),
		"/SetNetwork":       cancelled(func(r *networkRequest) int64 { return r.Token }, (*session).setNetwork),
		"/AnswerQuestion":   unary((*session).answer),
		"/NetworkLog":       unary((*session).networkLog),
		"/FollowNetworkLog": streamed((*session).followNetworkLog),
		"/RemoveNetworkLog": unary((*session).removeNetworkLog),
		"/NetworkLogs":      unary((*session).networkLogs),
		"/Checkpoint":       cancelled(func(r *checkpointRequest) int64 { return r.Token }, (*session).checkpoint),
		"/Checkpoints":      unary((*session).checkpoints),
		"/RemoveCheckpoint": unary((*session).removeCheckpoint),
		"/SetAside":         unary((*session).setAside),
		"/BringBack":        unary((*session).bringBack),
		"/Changes":          streamed((*session).changes),
		"/Export":           streamed((*session).export),
		"/ReadExport":       streamed((*session).readExport),
		"/Import":           cancelled(func(r *importRequest) int64 { return r.Token }, (*session).importCheckpoint),
		"/Unfinished":       unary((*session).unfinished),
		"/FinishImport":     cancelled(func(r *finishRequest) int64 { return r.Token }, (*session).finishImport),
		"/Warm":             unary((*session).warm),
		"/Events":           streamed((*session).events),
		"/Peer":             streamed((*session).connectPeer),
	}
}

func marshalFailure(err error) ([]byte, error) { return json.Marshal(failureOf(err)) }

func unsupported(what string) error {
	return sandbox.Errorf(sandbox.CodeUnsupported, "the node cannot %s", what)
}

func errUnreachable() error {
	return sandbox.Errorf(sandbox.CodeUnavailable, "the server cannot be reached from the sandbox's node now; try again")
}

func (n *session) list(ctx context.Context, _ *empty) (*[]*status, error) {
	all, err := n.cfg.Engine.List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]*status, len(all))
	for i, st := range all {
		list[i] = statusOf(st)
	}
	return &list, nil
}

func (n *session) create(ctx context.Context, req *createRequest, f *frames) error {
	spec := req.Spec
	digest := req.Root.Digest
	if spec.Checkpoint != "" {
		// The checkpoint continues with the root that it has, whatever it is called elsewhere.
		c, err := n.checkpointNamed(ctx, spec.Checkpoint)
		if err != nil {
			return err
		}
		spec.Root = c.Root
		if known := unwrapLabel(c.Label).Root; known != "" {
			digest = known
		}
	} else {
		root, release, err := n.cfg.Roots.Root(ctx, digest, req.Root.Bound)
		if err != nil {
			return err
		}
		defer release()
		spec.Root = root
	}
	var err error
	if spec.Label, err = wrapLabel(digest, spec.Root.Digest, req.Label); err != nil {
		return err
	}
	if spec.Network != nil && req.Values {
		spec.Network.Values = askValues[opened](f)
	}
	i, err := n.cfg.Engine.Create(ctx, spec)
	if err != nil {
		return err
	}
	return f.send(step[opened]{Done: &opened{i.Unenforced()}})
}

// checkpointNamed returns a checkpoint with the node's own root. An unknown one has no
// root, which the engine reports.
func (n *session) checkpointNamed(ctx context.Context, id string) (engine.Checkpoint, error) {
	keeper, err := n.keeper()
	if err != nil {
		return engine.Checkpoint{}, err
	}
	all, err := keeper.Checkpoints(ctx)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	for _, c := range all {
		if c.ID == id {
			return c, nil
		}
	}
	return engine.Checkpoint{}, nil
}

// askValues returns the values that the daemon sends when it is asked. None is kept here.
func askValues[Res any](f *frames) engine.Values {
	return func(yield func(placeholder string, value []byte) error) error {
		if err := f.send(step[Res]{Values: true}); err != nil {
			return err
		}
		for {
			var v value
			if err := f.receive(&v); err != nil {
				return err
			}
			if v.Failed != nil {
				return v.Failed.error()
			}
			if v.End {
				return nil
			}
			secret, err := f.secret()
			if err == nil {
				err = yield(v.Placeholder, secret)
			}
			clear(secret)
			if err != nil {
				return err
			}
		}
	}
}

func (n *session) open(ctx context.Context, req *byID) (*opened, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	return &opened{i.Unenforced()}, nil
}

func (n *session) destroy(ctx context.Context, req *byID) (*empty, error) {
	return &empty{}, n.cfg.Engine.Destroy(ctx, req.ID)
}

func (n *session) endInstance(ctx context.Context, req *byID) (*empty, error) {
	if ender, ok := n.cfg.Engine.(engine.Ender); ok {
		return &empty{}, ender.End(ctx, req.ID)
	}
	return &empty{}, n.cfg.Engine.Destroy(ctx, req.ID)
}

func (n *session) admit(ctx context.Context, req *admitRequest) (*empty, error) {
	if admitter, ok := n.cfg.Engine.(engine.Admitter); ok {
		return &empty{}, admitter.Admit(ctx, req.N, req.Of, &engine.Spec{Resources: req.Resources})
	}
	return &empty{}, nil
}

func (n *session) stats(ctx context.Context, req *byID) (*engine.Stats, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	st, err := i.Stats(ctx)
	return &st, err
}

func (n *session) setLimits(ctx context.Context, req *limitsRequest) (*opened, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	unenforced, err := i.SetLimits(ctx, req.Resources)
	return &opened{unenforced}, err
}

func (n *session) probe(ctx context.Context, req *byID) (*empty, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	if prober, ok := i.(engine.Prober); ok {
		return &empty{}, prober.Probe(ctx)
	}
	return nil, unsupported("probe the kernels of sandboxes")
}

func (n *session) deletedBytes(ctx context.Context, req *byID) (*map[string]int64, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	sum := map[string]int64{}
	if meter, ok := i.(engine.DeletedMeter); ok {
		sum, err = meter.DeletedBytes(ctx)
	}
	return &sum, err
}

func (n *session) dial(ctx context.Context, req *byID, f *frames) error {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return err
	}
	c, err := i.Dial(ctx)
	if err != nil {
		return err
	}
	return relay(ctx, f, c)
}

func (n *session) gateway(ctx context.Context, id string) (engine.Gateway, error) {
	i, err := n.cfg.Engine.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	if g, ok := i.(engine.Gateway); ok {
		return g, nil
	}
	return nil, unsupported("connect to sandboxes")
}

func (n *session) dialPort(ctx context.Context, req *portRequest, f *frames) error {
	g, err := n.gateway(ctx, req.ID)
	if err != nil {
		return err
	}
	c, err := g.DialPort(ctx, req.Port, req.Loopback)
	if err != nil {
		return err
	}
	return relay(ctx, f, c)
}

// relay says that c is connected, and then copies between it and the stream.
func relay(ctx context.Context, f *frames, c net.Conn) error {
	defer c.Close()
	if err := f.send(empty{}); err != nil {
		return err
	}
	near := newConn(f, func() {})
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	join(near, c)
	return nil
}

func (n *session) setNetwork(ctx context.Context, req *networkRequest, f *frames) error {
	g, err := n.gateway(ctx, req.ID)
	if err != nil {
		return err
	}
	if req.Values {
		req.Network.Values = askValues[empty](f)
	}
	if err := g.SetNetwork(ctx, req.Network); err != nil {
		return err
	}
	return f.send(step[empty]{Done: &empty{}})
}

func (n *session) answer(ctx context.Context, req *answerRequest) (*empty, error) {
	i, err := n.cfg.Engine.Open(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	if a, ok := i.(engine.Asking); ok {
		return &empty{}, a.AnswerQuestion(ctx, req.Question, req.Allow)
	}
	return nil, unsupported("answer questions of gateways")
}

func (n *session) logger() (engine.NetworkLogger, error) {
	if l, ok := n.cfg.Engine.(engine.NetworkLogger); ok {
		return l, nil
	}
	return nil, unsupported("keep network logs")
}

func (n *session) networkLog(ctx context.Context, req *logRequest) (*logPage, error) {
	l, err := n.logger()
	if err != nil {
		return nil, err
	}
	events, next, err := l.NetworkLog(ctx, req.SandboxID, req.Request)
	return &logPage{events, next}, err
}

func (n *session) followNetworkLog(ctx context.Context, req *logRequest, f *frames) error {
	l, err := n.logger()
	if err != nil {
		return err
	}
	return l.FollowNetworkLog(ctx, req.SandboxID, req.Request, func(e sandbox.NetworkEvent) error { return f.send(e) })
}

func (n *session) removeNetworkLog(ctx context.Context, req *byID) (*empty, error) {
	l, err := n.logger()
	if err != nil {
		return nil, err
	}
	return &empty{}, l.RemoveNetworkLog(ctx, req.ID)
}

func (n *session) networkLogs(ctx context.Context, _ *empty) (*[]string, error) {
	l, err := n.logger()
	if err != nil {
		return nil, err
	}
	ids, err := l.NetworkLogs(ctx)
	return &ids, err
}

func (n *session) keeper() (engine.Checkpointer, error) {
	if k, ok := n.cfg.Engine.(engine.Checkpointer); ok {
		return k, nil
	}
	return nil, unsupported("keep the state of sandboxes")
}

// abroad returns a checkpoint as the daemon knows it.
func abroad(c engine.Checkpoint) engine.Checkpoint {
	l := unwrapLabel(c.Label)
	c.Root, c.Label = engine.Root{Digest: l.Root}, l.Label
	return c
}

func (n *session) checkpoint(ctx context.Context, req *checkpointRequest, f *frames) error {
	keeper, err := n.keeper()
	if err != nil {
		return err
	}
	root, err := n.rootOf(ctx, req.Instance)
	if err != nil {
		return err
	}
	opts := engine.CheckpointOptions{FilesOnly: req.FilesOnly, Durable: req.Durable, Early: req.Early}
	if opts.Label, err = wrapLabel(root.Root, root.Here, req.Label); err != nil {
		return err
	}
	if req.Commit {
		opts.Commit = func(c engine.Checkpoint) error {
			c = abroad(c)
			var answer committed
			err := f.send(step[checkpointed]{Commit: &c})
			if err == nil {
				err = f.receive(&answer)
			}
			if err != nil {
				// The daemon may have recorded the checkpoint, or not: it says so when it is
				// back, by the instances that it wants and the checkpoints that it removes.
				return errors.Join(err, engine.ErrUndecided)
			}
			if answer.Failed != nil {
				return answer.Failed.error()
			}
			return nil
		}
	}
	c, err := keeper.Checkpoint(ctx, req.Instance, req.Checkpoint, opts)
	if err != nil {
		return err
	}
	return f.send(step[checkpointed]{Done: &checkpointed{abroad(c), c.Stopped}})
}

// rootOf returns the label of an instance, which has the digests of its root.
func (n *session) rootOf(ctx context.Context, instance string) (label, error) {
	all, err := n.cfg.Engine.List(ctx)
	if err != nil {
		return label{}, err
	}
	for _, st := range all {
		if st.ID == instance {
			return unwrapLabel(st.Label), nil
		}
	}
	return label{}, engine.ErrNotFound
}

func (n *session) checkpoints(ctx context.Context, _ *empty) (*[]engine.Checkpoint, error) {
	keeper, err := n.keeper()
	if err != nil {
		return nil, err
	}
	all, err := keeper.Checkpoints(ctx)
	for i, c := range all {
		all[i] = abroad(c)
	}
	return &all, err
}

func (n *session) removeCheckpoint(ctx context.Context, req *byID) (*empty, error) {
	keeper, err := n.keeper()
	if err != nil {
		return nil, err
	}
	return &empty{}, keeper.RemoveCheckpoint(ctx, req.ID)
}

// aside returns the directory for what the daemon sets aside at a place of its own.
func (n *session) aside(place string) string {
	sum := sha256.Sum256([]byte(place))
	return filepath.Join(n.cfg.AsideDir, hex.EncodeToString(sum[:16]))
}

func (n *session) setAside(ctx context.Context, req *asideRequest) (*empty, error) {
	keeper, err := n.keeper()
	if err != nil {
		return nil, err
	}
	return &empty{}, keeper.SetAside(ctx, req.ID, n.aside(req.Place))
}

func (n *session) bringBack(ctx context.Context, req *asideRequest) (*engine.Checkpoint, error) {
	keeper, err := n.keeper()
	if err != nil {
		return nil, err
	}
	c, err := keeper.BringBack(ctx, req.ID, n.aside(req.Place))
	c = abroad(c)
	return &c, err
}

func (n *session) changes(ctx context.Context, req *engine.Source, f *frames) error {
	keeper, err := n.keeper()
	if err != nil {
		return err
	}
	r, err := keeper.Changes(ctx, *req)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := f.send(empty{}); err != nil {
		return err
	}
	out := newConn(f, func() {})
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{r}, make([]byte, maxData)); err != nil {
		return fmt.Errorf("read changes: %w", err) // the end is missing, which is an error there
	}
	return out.CloseWrite()
}

func (n *session) warm(ctx context.Context, req *[]warmSpec) (*empty, error) {
	keeper, err := n.keeper()
	if err != nil {
		return nil, err
	}
	all, err := keeper.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	roots := map[string]engine.Root{}
	for _, c := range all {
		roots[c.ID] = c.Root
	}
	var specs []engine.WarmSpec
	for _, w := range *req {
		root, ok := roots[w.Checkpoint]
		if !ok {
			continue
		}
		specs = append(specs, engine.WarmSpec{Checkpoint: w.Checkpoint, Root: root, Resources: w.Resources, Max: w.Max, Failed: func(err error) {
			n.tell("warm "+w.Checkpoint, event{Warm: &warmFailure{w.Checkpoint, failureOf(err)}})
		}})
	}
	keeper.Warm(specs)
	return &empty{}, nil
}

func (n *session) events(ctx context.Context, _ *empty, f *frames) error {
	for {
		e, err := n.queue.take(ctx)
		if err != nil {
			return err
		}
		if err := f.send(e); err != nil {
			return err
		}
	}
}

// connectPeer receives the connection for which a sandbox waits, or why there is none.
func (n *session) connectPeer(ctx context.Context, req *peerAnswer, f *frames) error {
	n.mu.Lock()
	w := n.peers[req.ID]
	delete(n.peers, req.ID)
	n.mu.Unlock()
	if w == nil {
		return context.Canceled // nobody waits any more
	}
	if req.Failed != nil {
		select {
		case w.failed <- req.Failed.error():
		case <-w.gone:
		}
		return f.send(empty{})
	}
	if err := f.send(empty{}); err != nil {
		return err
	}
	ended := make(chan struct{})
	select {
	case w.conn <- newConn(f, sync.OnceFunc(func() { close(ended) })):
	case <-w.gone:
		return nil
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}
