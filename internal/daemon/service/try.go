package service

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/sandbox"
)

// attempts is a try that is under way.
type attempts struct {
	s        *Service
	req      *sandbox.TryRequest
	children []store.Record
	results  []sandbox.Attempt
	// base is what the parent had changed at the fork, and lower is the root below
	// that. Both are nil if no changes are asked for.
	base  *layer.Layer
	lower *layer.Dir

	mu   sync.Mutex
	done int // guarded by mu
	sink func(sandbox.TryEvent) error
}

// Try implements [sandbox.Snapshots].
func (s *Service) Try(ctx context.Context, ref string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.try"), func(c *call.Call) (_ *sandbox.TryResult, err error) {
		commands, err := checkTry(&req)
		if err != nil {
			return nil, err
		}
		parent, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		c.Detail = strconv.Itoa(req.Count) + " attempts"
		children, err := s.fork(c.Ctx, parent.ID, &sandbox.ForkRequest{Count: req.Count})
		if err != nil {
			return nil, err
		}
		t := &attempts{s: s, req: &req, children: children, results: make([]sandbox.Attempt, req.Count), sink: sink}
		keep := map[string]bool{}
		defer func() { err = errors.Join(err, t.killRest(c.Ctx, keep)) }()
		if !req.NoDiff {
			if err := t.readBase(c.Ctx); err != nil {
				return nil, err
			}
			defer t.lower.Close()
		}
		if err := t.run(c.Ctx, commands); err != nil {
			return nil, err
		}
		return t.conclude(c.Ctx, &parent, keep)
	})
}

// checkTry validates a request, fills in defaults, and returns the command of each
// attempt.
func checkTry(req *sandbox.TryRequest) ([]sandbox.ExecRequest, error) {
	if len(req.Commands) == 0 {
		return nil, validate.Errorf("there is no command; set one for all attempts, or one for each")
	}
	req.Count = cmp.Or(req.Count, len(req.Commands))
	if err := validate.Range("count", int64(req.Count), 1, sandbox.MaxForks); err != nil {
		return nil, err
	}
	if len(req.Commands) != 1 && len(req.Commands) != req.Count {
		return nil, validate.Errorf("%d commands are given for %d attempts; set one for all, or one for each", len(req.Commands), req.Count)
	}
	req.Pick = cmp.Or(req.Pick, sandbox.PickNone)
	if req.Pick != sandbox.PickNone && req.Pick != sandbox.PickFirstSuccess {
		if n, err := strconv.Atoi(req.Pick); err != nil || n < 0 || n >= req.Count {
			return nil, validate.Errorf("pick %s is not valid; use %q, %q or an index from 0 to %d", validate.Quote(req.Pick), sandbox.PickNone, sandbox.PickFirstSuccess, req.Count-1)
		}
	}
	req.Keep = cmp.Or(req.Keep, sandbox.KeepNone)
	switch req.Keep {
	case sandbox.KeepNone, sandbox.KeepWinners, sandbox.KeepAll:
	default:
		return nil, validate.Errorf("keep %s is not valid; use %q, %q or %q", validate.Quote(string(req.Keep)), sandbox.KeepNone, sandbox.KeepWinners, sandbox.KeepAll)
	}
	if req.Pick == sandbox.PickNone && (req.Merge != "" || req.Policy != "") {
		return nil, validate.Errorf("merge and policy apply to the picked attempt, but pick is %q; pick an attempt, or leave them out", sandbox.PickNone)
	}
	merge := sandbox.MergeRequest{Kind: req.Merge, Policy: req.Policy}
	if err := checkMerge(&merge); err != nil {
		return nil, err
	}
	req.Merge = merge.Kind
	commands := make([]sandbox.ExecRequest, req.Count)
	for i := range commands {
		c := req.Commands[min(i, len(req.Commands)-1)]
		commands[i] = sandbox.ExecRequest{
			Command: c.Command, Shell: c.Shell, Env: c.Env, WorkDir: c.WorkDir, User: c.User,
			TimeoutMS: req.TimeoutMS, KeepBytes: sandbox.MaxTryOutput,
		}
		if err := validate.Exec(&commands[i]); err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// readBase reads what the parent had changed when it was forked.
func (t *attempts) readBase(ctx context.Context) (err error) {
	first := &t.children[0]
	root, err := startup.RootOf(first.Root)
	if err != nil {
		return err
	}
	if t.lower, err = t.s.openLower(ctx, root); err != nil {
		return err
	}
	defer t.s.use(first.ForkPoint)()
	t.base, err = t.s.readLayer(ctx, &subject{id: first.ForkedFrom, source: engine.Source{Checkpoint: first.ForkPoint}}, layer.ReadOptions{}, nil)
	if err != nil {
		t.lower.Close()
	}
	return err
}

// run runs the commands of all attempts at the same time.
func (t *attempts) run(ctx context.Context, commands []sandbox.ExecRequest) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range t.children {
		g.Go(func() error {
			a := t.attempt(ctx, i, &commands[i])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return t.tell(i, a)
		})
	}
	return g.Wait()
}

// tell stores a result and passes it on.
func (t *attempts) tell(i int, a sandbox.Attempt) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results[i] = a
	t.done++
	if t.sink == nil {
		return nil
	}
	if err := t.sink(sandbox.TryEvent{Attempt: a, Done: t.done, Total: len(t.results)}); err != nil {
		return &call.CallbackError{Err: err}
	}
	return nil
}

// attempt runs one command in its fork, and finds out what the command changed.
func (t *attempts) attempt(ctx context.Context, i int, req *sandbox.ExecRequest) sandbox.Attempt {
	r := &t.children[i]
	a := sandbox.Attempt{Index: i, SandboxID: r.ID}
	began := time.Now()
	defer func() {
		if a.DurationMS == 0 {
			a.DurationMS = time.Since(began).Milliseconds()
		}
	}()
	h, err := t.s.acquireHandle(ctx, func() (*handle, error) { return t.s.openRecord(ctx, r) })
	if err == nil {
		defer h.release()
		err = t.exec(ctx, h, req, &a)
	}
	a.DurationMS = time.Since(began).Milliseconds()
	if err == nil && t.base != nil {
		a.Changes, err = t.changes(ctx, r)
	}
	if err != nil {
		a.Error = sandbox.MessageOf(t.s.gate.Public(err, "sandbox.try"))
	}
	return a
}

// exec runs the command and keeps the beginning and the end of its output.
func (t *attempts) exec(ctx context.Context, h *handle, req *sandbox.ExecRequest, a *sandbox.Attempt) error {
	id := ids.New(ids.Job)
	job, err := h.client.Exec(ctx, id, req, func(sandbox.JobEvent) error { return nil })
	if err != nil {
		return h.explain(ctx, err)
	}
	a.ExitCode, a.Signal, a.EndCause = job.ExitCode, job.Signal, job.EndCause
	for _, stream := range []struct {
		name sandbox.Stream
		into *string
	}{{sandbox.Stdout, &a.Stdout}, {sandbox.Stderr, &a.Stderr}} {
		text, cut, err := t.s.keptOutput(ctx, h, id, stream.name)
		if err != nil {
			return h.explain(ctx, err)
		}
		*stream.into = text
		a.OutputTruncated = a.OutputTruncated || cut
	}
	return nil
}

// changes compares a fork with the parent's state at the fork.
func (t *attempts) changes(ctx context.Context, r *store.Record) (*sandbox.Diff, error) {
	now, err := t.s.sandboxSubject(r)
	if err != nil {
		return nil, err
	}
	defer now.release()
	l, err := t.s.readLayer(ctx, now, layer.ReadOptions{}, nil)
	if err != nil {
		return nil, err
	}
	return layer.Compare(ctx, layer.View{Lower: t.lower, Layer: t.base}, layer.View{Lower: t.lower, Layer: l}, layer.CompareOptions{Limit: sandbox.DefaultDiffLimit})
}

// conclude merges the picked attempt, and decides which other forks are kept.
func (t *attempts) conclude(ctx context.Context, parent *store.Record, keep map[string]bool) (*sandbox.TryResult, error) {
	res := &sandbox.TryResult{Attempts: t.results}
	if i, ok := t.picked(); ok {
		p, w := *parent, t.children[i]
		var err error
		if p, err = t.s.cfg.Store.Sandbox(ctx, p.ID); err != nil {
			return nil, err
		}
		res.Merge, err = t.s.merge(ctx, &p, &w, &sandbox.MergeRequest{Winner: w.ID, Kind: t.req.Merge, Policy: t.req.Policy})
		if err != nil {
			return nil, err
		}
		if res.Merge.Merged {
			res.Picked = &i
		} else {
			keep[w.ID] = true // its work would be lost
		}
	}
	for i := range t.results {
		a := &t.results[i]
		merged := res.Picked != nil && *res.Picked == i
		switch {
		case merged && t.req.Merge == sandbox.MergeWhole:
			keep[a.SandboxID] = false
		case t.req.Keep == sandbox.KeepAll, t.req.Keep == sandbox.KeepWinners && succeeded(a):
			keep[a.SandboxID] = true
		}
		a.Kept = keep[a.SandboxID]
	}
	return res, nil
}

func succeeded(a *sandbox.Attempt) bool { return a.Error == "" && a.ExitCode == 0 }

// picked returns the index of the attempt to be merged.
func (t *attempts) picked() (int, bool) {
	switch t.req.Pick {
	case sandbox.PickNone:
		return 0, false
	case sandbox.PickFirstSuccess:
		for i := range t.results {
			if succeeded(&t.results[i]) {
				return i, true
			}
		}
		return 0, false
	}
	i, err := strconv.Atoi(t.req.Pick)
	return i, err == nil
}

// killRest kills the forks that are not kept.
func (t *attempts) killRest(ctx context.Context, keep map[string]bool) error {
	var g errgroup.Group
	for _, r := range t.children {
		if keep[r.ID] {
			continue
		}
		g.Go(func() error {
			_, err := t.s.kill(ctx, r.ID, "its attempt is over")
			return err
		})
	}
	return g.Wait()
}

// keptOutput returns the first and last bytes of a job's output.
func (s *Service) keptOutput(ctx context.Context, h *handle, job string, stream sandbox.Stream) (text string, cut bool, err error) {
	const half = sandbox.MaxTryOutput / 2
	head, err := h.client.ReadOutput(ctx, job, &sandbox.OutputRequest{Stream: stream, Limit: sandbox.MaxTryOutput})
	if err != nil {
		return "", false, err
	}
	if head.TotalBytes > sandbox.MaxTryOutput {
		tail, err := h.client.ReadOutput(ctx, job, &sandbox.OutputRequest{Stream: stream, Offset: head.TotalBytes - half, Limit: half})
		if err != nil {
			return "", false, err
		}
		return clip.HeadText(head.Data[:min(len(head.Data), half)]) + "\n…\n" + clip.TailText(tail.Data), true, nil
	}
	return clip.ToText(head.Data), false, nil
}
