package fleet

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// Notify implements [engine.Engine].
func (f *Fleet) Notify(failed func(engine.Status)) {
	f.mu.Lock()
	f.failed = failed
	f.mu.Unlock()
	if f.local != nil {
		f.local.local.Notify(failed)
	}
}

// SetAsked implements [engine.Inquirer].
func (f *Fleet) SetAsked(asked func(instanceID string, open []engine.Question)) {
	f.mu.Lock()
	f.asked = asked
	f.mu.Unlock()
	if f.local == nil {
		return
	}
	if q, ok := f.local.local.(engine.Inquirer); ok {
		q.SetAsked(asked)
	}
}

// SetPeers implements [engine.Switch].
func (f *Fleet) SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)) {
	f.mu.Lock()
	f.peers = dial
	f.mu.Unlock()
	if f.local == nil {
		return
	}
	if p, ok := f.local.local.(engine.Switch); ok {
		p.SetPeers(dial)
	}
}

// Create implements [engine.Engine].
func (f *Fleet) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	f.awaitNodes(ctx, spec.Family != "")
	if spec.Checkpoint != "" {
		s, err := f.siteOfCheckpoint(spec.Checkpoint)
		if err != nil {
			return nil, err
		}
		return f.createAt(ctx, s, spec)
	}
	if spec.Place != "" {
		f.mu.Lock()
		s, err := f.site(spec.Place)
		f.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return f.createAt(ctx, s, spec)
	}
	sites, err := f.candidates(&spec)
	if err != nil {
		return nil, err
	}
	var i engine.Instance
	for _, s := range sites {
		// A node may know better that it has no room, or be gone just now.
		i, err = f.createAt(ctx, s, spec)
		if err == nil || ctx.Err() != nil || !errors.Is(err, engine.ErrNoRoom) && !errors.Is(err, errAway) {
			break
		}
	}
	return i, err
}

// errAway is the cause of errors of a node that was not asked.
var errAway = errors.New("the node is away")

func (f *Fleet) createAt(ctx context.Context, s *site, spec engine.Spec) (engine.Instance, error) {
	if s.local != nil {
		f.mu.Lock()
		taken := s.takes(spec.Family)
		why := f.notTaken(s, &spec)
		if spec.Checkpoint != "" && f.checkpoints[spec.Checkpoint] == nil {
			why = errStateGone()
		}
		f.mu.Unlock()
		if !taken {
			return nil, why
		}
		i, err := s.local.Create(ctx, spec)
		if err == nil {
			f.mu.Lock()
			f.here++
			f.mu.Unlock()
		}
		return i, err
	}
	e, err := f.begin(s, &spec)
	if err != nil {
		return nil, err
	}
	i, err := e.Create(ctx, spec)
	if err != nil {
		f.undo(ctx, s, &spec, err)
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.instances[spec.ID]
	if known == nil || known.GivenUp {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox ended while it was being made; try again")
	}
	known.making = false
	return &instance{f, spec.ID, s, i.Unenforced()}, nil
}

// begin records an instance that is about to be made on a node.
func (f *Fleet) begin(s *site, spec *engine.Spec) (*remote.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.remote == nil || s.removed {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, errAway, f.away(s).Error())
	}
	if f.instances[spec.ID] != nil {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "instance %s exists", spec.ID)
	}
	first, err := f.claim(s, spec)
	if err != nil {
		return nil, err
	}
	e := entry{site: s, making: true, claimed: first, Root: spec.Root, From: spec.Checkpoint}
	if spec.Network != nil {
		e.Sandbox = spec.Network.SandboxID
	}
	if err := f.setInstance(spec.ID, e); err != nil {
		if first {
			f.unclaim(s, spec.Family)
		}
		return nil, err
	}
	s.pending += growth(spec.Resources)
	return s.remote, nil
}

// undo forgets an instance that could not be made. Without an answer the node may have made it,
// and must end it.
func (f *Fleet) undo(ctx context.Context, s *site, spec *engine.Spec, failed error) {
	if errors.Is(failed, remote.ErrUnanswered) {
		f.abandon(ctx, spec.ID)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.instances[spec.ID]
	f.dropInstance(spec.ID)
	// What continues from a checkpoint may have run for a moment: its node is replaced.
	if e != nil && e.claimed && spec.Checkpoint == "" {
		f.unclaim(s, spec.Family)
	}
}

// endTimeout bounds the wait for a node to end an instance that was given up.
const endTimeout = time.Minute

// abandon gives up an instance, and has it ended now if its node is there.
func (f *Fleet) abandon(ctx context.Context, id string) {
	f.mu.Lock()
	e := f.instances[id]
	if e == nil {
		f.mu.Unlock()
		return
	}
	if err := f.giveUp(id); err != nil {
		f.log.Error("give up an instance", "instance", id, "error", err)
	}
	there := e.site.remote
	f.mu.Unlock()
	if there == nil {
		return // the next connection of the node
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := there.Destroy(ctx, id); err != nil {
		f.log.Warn("an instance ends with the next connection of its node", "instance", id, "error", err)
		return
	}
	f.mu.Lock()
	f.dropInstance(id)
	f.mu.Unlock()
}

// at returns the site of an instance and its engine. Both are nil for one that is on no
// node.
func (f *Fleet) at(id string) (*site, engine.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.instances[id]
	switch {
	case e == nil && f.local == nil, e != nil && e.GivenUp:
		return nil, nil, engine.ErrNotFound
	case e == nil:
		return f.local, f.local.local, nil
	case e.site.remote == nil:
		return e.site, nil, f.away(e.site)
	}
	return e.site, e.site.remote, nil
}

// Open implements [engine.Engine].
func (f *Fleet) Open(ctx context.Context, id string) (engine.Instance, error) {
	s, e, err := f.at(id)
	if err != nil {
		return nil, err
	}
	i, err := e.Open(ctx, id)
	if err != nil || s == f.local {
		return i, err
	}
	return &instance{f, id, s, i.Unenforced()}, nil
}

// List implements [engine.Engine]. Instances of nodes that are away count as running until
// the lease of the node has run out.
func (f *Fleet) List(ctx context.Context) ([]engine.Status, error) {
	var all []engine.Status
	if f.local != nil {
		var err error
		if all, err = f.local.local.List(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	there := map[*site]*remote.Engine{}
	for _, s := range f.sites {
		there[s] = s.remote
	}
	f.mu.Unlock()
	for s, e := range there {
		var list []engine.Status
		err := errAway
		if e != nil {
			list, err = e.List(ctx)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f.mu.Lock()
		all = append(all, f.believed(s, list, err != nil)...)
		f.mu.Unlock()
	}
	return all, nil
}

// believed returns the statuses of a node's instances, as far as it may speak of them. The
// caller holds f.mu.
func (f *Fleet) believed(s *site, told []engine.Status, away bool) (all []engine.Status) {
	for _, st := range told {
		if f.owns(s, st.ID) {
			all = append(all, st)
		}
	}
	if away {
		for id, e := range s.instances {
			if !e.GivenUp {
				all = append(all, engine.Status{ID: id, Running: true})
			}
		}
	}
	return all
}

// Destroy implements [engine.Engine]. An instance of a lost node has ended with it: the
// node removes it before it is driven again.
func (f *Fleet) Destroy(ctx context.Context, id string) error {
	return f.end(id, func(e engine.Engine) error { return e.Destroy(ctx, id) }, true)
}

// End implements [engine.Ender].
func (f *Fleet) End(ctx context.Context, id string) error {
	return f.end(id, func(e engine.Engine) error {
		if ender, ok := e.(engine.Ender); ok {
			return ender.End(ctx, id)
		}
		return e.Destroy(ctx, id)
	}, false)
}

func (f *Fleet) end(id string, do func(engine.Engine) error, forget bool) error {
	f.mu.Lock()
	known := f.instances[id]
	if known != nil && known.site.remote == nil && (known.GivenUp || known.site.lost) {
		err := f.giveUp(id)
		f.mu.Unlock()
		return err
	}
	f.mu.Unlock()
	var e engine.Engine
	switch {
	case known == nil && f.local == nil:
		return nil
	case known == nil:
		e = f.local.local
	default:
		f.mu.Lock()
		there := known.site.remote
		err := f.away(known.site)
		f.mu.Unlock()
		if there == nil {
			return err
		}
		e = there
	}
	if err := do(e); err != nil || !forget {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known == nil {
		f.here = max(0, f.here-1)
	} else {
		f.dropInstance(id)
	}
	return nil
}

// Admit implements [engine.Admitter].
func (f *Fleet) Admit(ctx context.Context, n int, of engine.Source, spec *engine.Spec) error {
	_, e, err := f.atSource(of)
	if err != nil {
		return err
	}
	if admitter, ok := e.(engine.Admitter); ok {
		return admitter.Admit(ctx, n, of, spec)
	}
	return nil
}

func (f *Fleet) atSource(of engine.Source) (*site, engine.Engine, error) {
	if of.Checkpoint == "" {
		return f.at(of.Instance)
	}
	s, err := f.siteOfCheckpoint(of.Checkpoint)
	if err != nil {
		return nil, nil, err
	}
	e, err := f.engineOf(s)
	return s, e, err
}

// engineOf returns the engine of a site, if it is there.
func (f *Fleet) engineOf(s *site) (engine.Engine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case s.local != nil:
		return s.local, nil
	case s.remote == nil:
		return nil, f.away(s)
	}
	return s.remote, nil
}
