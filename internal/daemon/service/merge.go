package service

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/approvals"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/sandbox"
)

// Merge implements [sandbox.Snapshots].
func (s *Service) Merge(ctx context.Context, ref string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.merge"), func(c *call.Call) (*sandbox.MergeResult, error) {
		if err := checkMerge(&req); err != nil {
			return nil, err
		}
		if err := s.needCheckpointer(); err != nil {
			return nil, err
		}
		winner, err := c.Resolve(req.Winner)
		if err != nil {
			return nil, err
		}
		parent, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		c.Detail = string(req.Kind) + " of " + winner.ID
		return s.merge(c.Ctx, &parent, &winner, &req)
	})
}

// checkMerge validates a request and fills in defaults.
func checkMerge(req *sandbox.MergeRequest) error {
	req.Kind = cmp.Or(req.Kind, sandbox.MergeWhole)
	switch req.Kind {
	case sandbox.MergeWhole:
		if req.Policy != "" || len(req.Resolve) > 0 || len(req.Paths) > 0 || req.KillWinner {
			return validate.Errorf("policy, resolve, paths and kill_winner work only with the merge kind %q; a merge of the whole takes everything, and the winner's id ends", sandbox.MergeFiles)
		}
	case sandbox.MergeFiles:
	default:
		return validate.Errorf("kind %s is not valid; use %q or %q", validate.Quote(string(req.Kind)), sandbox.MergeWhole, sandbox.MergeFiles)
	}
	if err := checkPolicy(req.Policy); err != nil {
		return err
	}
	if err := checkResolve(req.Resolve); err != nil {
		return err
	}
	return checkPaths(req.Paths)
}

func checkResolve(resolve map[string]sandbox.MergePolicy) error {
	if len(resolve) > sandbox.MaxResolved {
		return validate.Errorf("resolve has %d paths; use at most %d, or name a directory that contains them", len(resolve), sandbox.MaxResolved)
	}
	for p, policy := range resolve {
		if err := checkPath("resolve", p); err != nil {
			return err
		}
		if path.Clean(p) != p {
			return validate.Errorf("path %s in resolve is not in the form that conflicts have; use %s", validate.Quote(p), validate.Quote(path.Clean(p)))
		}
		if policy != sandbox.PolicyOurs && policy != sandbox.PolicyTheirs {
			return validate.Errorf("resolve has %s for %s; use %q or %q", validate.Quote(string(policy)), validate.Quote(p), sandbox.PolicyOurs, sandbox.PolicyTheirs)
		}
	}
	return nil
}

func checkPolicy(p sandbox.MergePolicy) error {
	switch p {
	case sandbox.PolicyNone, sandbox.PolicyOurs, sandbox.PolicyTheirs:
		return nil
	}
	return validate.Errorf("policy %s is not valid; use %q or %q, or leave it out to get a list of conflicts", validate.Quote(string(p)), sandbox.PolicyOurs, sandbox.PolicyTheirs)
}

func (s *Service) merge(ctx context.Context, parent, winner *store.Record, req *sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	if parent.ID == winner.ID {
		return nil, validate.Errorf("sandbox %s cannot be merged into itself; name a fork of it as the winner", parent.ID)
	}
	if req.Kind != sandbox.MergeFiles && parent.Family != winner.Family {
		return nil, errOtherNode()
	}
	// A paused sandbox must run to take over, or to be written to.
	for _, r := range []*store.Record{winner, parent} {
		if r.State == sandbox.StatePaused && (r == winner || req.Kind == sandbox.MergeFiles) {
			awake, err := s.wake(ctx, r)
			if err != nil {
				return nil, err
			}
			*r = awake
		}
	}
	unlock, err := s.lock(ctx, parent.ID, winner.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, r := range []*store.Record{winner, parent} {
		if *r, err = s.cfg.Store.Sandbox(ctx, r.ID); err != nil {
			return nil, err
		}
		if r.State != sandbox.StateRunning && (r == winner || r.State != sandbox.StatePaused || req.Kind == sandbox.MergeFiles) {
			return nil, call.NotRunning(r)
		}
	}
	if req.Kind == sandbox.MergeFiles {
		return s.mergeFiles(ctx, parent, winner, req)
	}
	return s.mergeWhole(ctx, parent, winner)
}

// errOtherNode refuses to move the instance of a dedicated sandbox to one that is not of its
// family, or the other way round: it would not run where its record says.
func errOtherNode() error {
	return sandbox.Errorf(sandbox.CodeConflict, "a dedicated sandbox can be merged whole only with its own forks and their forks; merge files instead, with kind %q", sandbox.MergeFiles)
}

// mergeWhole moves the winner's instance to the parent's record in one transaction.
func (s *Service) mergeWhole(ctx context.Context, parent, winner *store.Record) (*sandbox.MergeResult, error) {
	h, err := s.openRecord(ctx, winner)
	if err != nil {
		return nil, err
	}
	merged, err := s.cfg.Store.UpdateSandboxes(ctx, []string{parent.ID, winner.ID}, func(all map[string]*store.Record) error {
		p, w := all[parent.ID], all[winner.ID]
		switch {
		case w.State != sandbox.StateRunning:
			return call.NotRunning(w)
		case p.State != sandbox.StateRunning && p.State != sandbox.StatePaused:
			return call.NotRunning(p)
		case w.Instance != winner.Instance || p.Instance != parent.Instance:
			return changedMeanwhile(p.ID)
		}
		s.continueIn(p, h.instance)
		p.Root, p.Origin, p.Template, p.Mounts = w.Root, w.Origin, w.Template, w.Mounts
		p.Resources.DiskMiB = w.Resources.DiskMiB
		p.Applying = true
		p.Kept = store.Kept{} // of a time that is over; a new one is due at once
		end := p.LastActiveAt
		noteMoment(p, sandbox.Moment{Kind: sandbox.MomentMerged, At: end, SandboxID: w.ID, Merge: sandbox.MergeWhole, KillWinner: true})
		w.State, w.Reason, w.EndedAt = sandbox.StateKilled, "it was merged into "+p.ID, &end
		w.Instance, w.ForkPoint, w.Held = "", "", false
		return nil
	})
	if err != nil {
		return nil, err
	}
	// From here on the merge has happened, even if the caller goes away.
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	p, w := merged[parent.ID], merged[winner.ID]
	// The policy first, since the instance runs and the rest takes a while. An error
	// shows up again in settle.
	_ = s.push(ctx, h, &p)
	s.approvals.Move(approvals.Owner{Realm: call.RealmOf(&p), Instance: p.Instance, SandboxID: p.ID, Name: p.Name})
	s.drop(w.ID, call.Ended(&w))
	s.Ports.Close(w.ID)
	s.swap(&p, newHandle(&p, h.instance))
	s.endInstance(ctx, parent)
	if err := s.forgetSteps(ctx, w.ID, 0); err != nil {
		s.log.Error("remove the history of a merged sandbox", "sandbox", w.ID, "error", err)
	}
	if p, err = s.settle(ctx, &p); err != nil {
		// [Service.Repair] tries again.
		s.log.Error("give a merged machine its name, limits and network", "sandbox", p.ID, "error", call.Detailed(err))
	}
	return &sandbox.MergeResult{Merged: true, Kind: sandbox.MergeWhole, Sandbox: s.view(p)}, nil
}

// settle applies the name, the environment and the limits of a record to an instance
// that came from another sandbox.
func (s *Service) settle(ctx context.Context, r *store.Record) (store.Record, error) {
	h, err := s.openRecord(ctx, r)
	if err != nil {
		return *r, err
	}
	if err := s.push(ctx, h, r); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return *r, err
	}
	spec := (&bootSource{}).spec(r)
	_, err = h.client.Configure(ctx, &agentv1.ConfigureRequest{
		Hostname: &spec.Hostname, User: &r.User, Workdir: &r.WorkDir, Env: spec.Env, ReplaceEnv: true,
		Fork: &agentv1.Fork{},
	})
	if err != nil {
		return *r, err
	}
	unenforced, err := h.apply(ctx, r, true, false)
	if err != nil {
		return *r, err
	}
	return s.cfg.Store.UpdateSandbox(ctx, r.ID, store.Change{Apply: applied(unenforced, false)})
}

// mergeFiles applies the winner's changes since its fork to the parent's files.
func (s *Service) mergeFiles(ctx context.Context, parent, winner *store.Record, req *sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	base, err := s.forkPoint(ctx, parent, winner)
	if err != nil {
		return nil, err
	}
	defer base.release()
	ours, err := s.sandboxSubject(parent)
	if err != nil {
		return nil, err
	}
	theirs, err := s.sandboxSubject(winner)
	if err != nil {
		return nil, err
	}
	lower, err := s.openLower(ctx, ours.root)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	spool, err := os.CreateTemp(s.cfg.TempDir, "merge-")
	if err != nil {
		return nil, err
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil {
		return nil, err
	}
	plan, conflicts, err := s.planMerge(ctx, lower, base, ours, theirs, spool, req)
	if err != nil {
		return nil, err
	}
	res := &sandbox.MergeResult{Kind: sandbox.MergeFiles, Conflicts: conflicts}
	if plan != nil {
		if err := s.applyPlan(ctx, parent, plan, spool); err != nil {
			return nil, err
		}
		res.Merged, res.Applied = true, plan.Changes
		m := sandbox.Moment{Kind: sandbox.MomentMerged, At: time.Now().UTC(), SandboxID: winner.ID, Merge: sandbox.MergeFiles}
		var err error
		if req.KillWinner {
			var w store.Record
			w, err = s.kill(ctx, winner.ID, "it was merged into "+parent.ID)
			// A sandbox that is stopping will end, even if not all of it is removed
			// yet.
			m.KillWinner = err == nil || w.State == sandbox.StateStopping || w.State.Final()
		}
		s.noteMergedFiles(ctx, parent.ID, m)
		if err != nil {
			return nil, err
		}
	}
	now, err := s.cfg.Store.Sandbox(ctx, parent.ID)
	if err != nil {
		return nil, err
	}
	res.Sandbox = s.view(now)
	return res, nil
}

// forkPoint returns the checkpoint at which the winner was forked from the parent, or
// its ancestor that is a fork of the parent.
func (s *Service) forkPoint(ctx context.Context, parent, winner *store.Record) (*subject, error) {
	child := *winner
	for child.ForkedFrom != parent.ID {
		next, err := s.cfg.Store.Sandbox(ctx, child.ForkedFrom)
		if child.ForkedFrom == "" || sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, sandbox.Errorf(sandbox.CodeConflict, "sandbox %s was not forked from %s, so its changes since then are not known; merge the whole of it, or name its parent", winner.ID, parent.ID)
		}
		if err != nil {
			return nil, err
		}
		child = next
	}
	if child.ForkPoint == "" || child.Origin != parent.Origin {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "the state at which sandbox %s was forked from %s is no longer kept; merge the whole of it", winner.ID, parent.ID)
	}
	root, err := startup.RootOf(child.Root)
	if err != nil {
		return nil, err
	}
	return &subject{
		id: child.ID, origin: child.Origin, root: root, source: engine.Source{Checkpoint: child.ForkPoint}, release: s.use(child.ForkPoint),
	}, nil
}

// planMerge reads the three sides, compares them, and writes the winner's side to the
// spool.
func (s *Service) planMerge(ctx context.Context, lower layer.Lower, base, ours, theirs *subject, spool *os.File, req *sandbox.MergeRequest) (*layer.Plan, []sandbox.Conflict, error) {
	var views [3]layer.View
	out := bufio.NewWriterSize(spool, 1<<20)
	g, gctx := errgroup.WithContext(ctx)
	for i, side := range []*subject{base, ours, theirs} {
		g.Go(func() error {
			var copyTo io.Writer
			if side == theirs {
				copyTo = out
			}
			l, err := s.readLayer(gctx, side, layer.ReadOptions{}, copyTo)
			views[i] = layer.View{Lower: lower, Layer: l}
			return err
		})
	}
	if err := errors.Join(g.Wait(), out.Flush()); err != nil {
		return nil, nil, err
	}
	return layer.MakePlan(ctx, views[0], views[1], views[2], layer.Resolution{Policy: req.Policy, Paths: req.Resolve}, req.Paths)
}

// applyPlan sends a plan to the parent's agent, which carries it out.
func (s *Service) applyPlan(ctx context.Context, parent *store.Record, plan *layer.Plan, spool *os.File) error {
	if plan.Empty() {
		return nil
	}
	h, err := s.openRecord(ctx, parent)
	if err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, w := io.Pipe()
	writing, cancel := context.WithCancel(ctx)
	written := make(chan struct{})
	go func() {
		defer close(written)
		out := bufio.NewWriterSize(w, 256<<10)
		err := layer.WritePlan(writing, out, plan, bufio.NewReaderSize(spool, 1<<20))
		_ = w.CloseWithError(errors.Join(err, out.Flush()))
	}()
	err = h.client.Apply(ctx, r)
	// Both make the writer end: while it reads a hole, it does not write.
	cancel()
	_ = r.Close()
	<-written
	return h.explain(ctx, err)
}
