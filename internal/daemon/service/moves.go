package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// moveEvery is how often a node whose sandboxes move is looked at, movedEvery how often
	// if nothing was left there, and movesAtOnce how many sandboxes are paused at once.
	moveEvery   = time.Second
	movedEvery  = 15 * time.Second
	movesAtOnce = 4
	// moveGrace is how long a sandbox that moves may take to end the calls under way. New
	// ones wait meanwhile. Calls that take longer end with an error; what they have begun
	// goes on.
	moveGrace = 5 * time.Second
	// reachTimeout bounds a look at the object store.
	reachTimeout = 10 * time.Second
)

// moves empties nodes: it pauses the sandboxes that run there, so that they continue
// elsewhere. The zero value is ready for use.
type moves struct {
	mu     sync.Mutex
	active map[string]*move // by node; guarded by mu
}

// move is the emptying of one node.
type move struct {
	node string

	mu     sync.Mutex
	resume bool             // guarded by mu
	now    sandbox.NodeMove // guarded by mu
	// again has the sandboxes that are to continue as soon as their state is in the object
	// store, with the checkpoints with which the move has paused them. Guarded by mu.
	again map[string]string
}

// progress returns how far a node is emptied, or nil if it is not.
func (m *moves) progress(node string) *sandbox.NodeMove {
	m.mu.Lock()
	mv := m.active[node]
	m.mu.Unlock()
	if mv == nil {
		return nil
	}
	mv.mu.Lock()
	defer mv.mu.Unlock()
	now := mv.now
	return &now
}

// beginMoves begins to empty the nodes that are to be, and gives up the others.
func (s *Service) beginMoves() {
	if s.cfg.Nodes == nil {
		return
	}
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	wanted := s.cfg.Nodes.Moving() // under the lock, so that the last change counts
	maps.DeleteFunc(s.moves.active, func(node string, _ *move) bool { return !wanted[node].Move })
	for node, req := range wanted {
		mv := s.moves.active[node]
		if mv == nil {
			mv = &move{node: node, again: map[string]string{}}
			mv.now.Left = 1 // until it was counted
			if s.moves.active == nil {
				s.moves.active = map[string]*move{}
			}
			s.moves.active[node] = mv
			s.gate.Go(func() { s.runMove(mv) })
		}
		mv.mu.Lock()
		mv.resume = req.Resume
		mv.mu.Unlock()
	}
}

// wants reports whether a move is still wanted.
func (m *moves) wants(mv *move) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active[mv.node] == mv
}

// runMove empties a node until that is no longer wanted. What comes to the node later, such
// as a fork of a sandbox that stays, moves too.
func (s *Service) runMove(mv *move) {
	ctx := s.gate.Context()
	for {
		if !s.moves.wants(mv) {
			mv.mu.Lock()
			again := mv.again
			mv.mu.Unlock()
			s.continueMoved(ctx, mv, again) // nothing else uses them any more
			return
		}
		if err := s.moveSome(ctx, mv); err != nil && ctx.Err() == nil {
			s.log.Error("move sandboxes from a node", "node", mv.node, "error", err)
		}
		wait := moveEvery
		if mv.done() {
			wait = movedEvery
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// done reports whether nothing was left on the node.
func (mv *move) done() bool {
	mv.mu.Lock()
	defer mv.mu.Unlock()
	return mv.now.Left == 0
}

// moveSome moves what can be moved now, and notes what is left.
func (s *Service) moveSome(ctx context.Context, mv *move) error {
	kept, ok := s.cfg.Engine.(engine.Replicator)
	places, placed := s.cfg.Engine.(engine.Placer)
	if !ok || !placed {
		mv.mu.Lock()
		defer mv.mu.Unlock()
		mv.now.Waiting = "there is no object store; start the server with --objects, or let the node take sandboxes again with: cove node undrain " + mv.node
		return nil
	}
	short, cancel := context.WithTimeout(ctx, reachTimeout)
	unreachable := kept.Reach(short)
	cancel()
	var next sandbox.NodeMove
	if unreachable != nil {
		next.Waiting = fmt.Sprintf("the object store does not work: %v", unreachable)
	}
	var running, paused []store.Record
	err := s.held(ctx, []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}, func(r store.Record) {
		switch reason := immovable(&r); {
		case r.State == sandbox.StatePaused:
			paused = append(paused, r)
		case places.PlaceOf(engine.Source{Instance: r.Instance}) != mv.node:
		case reason != "":
			next.Stay = append(next.Stay, sandbox.NodeStay{Sandbox: r.ID, Reason: reason})
		default:
			running = append(running, r)
		}
	})
	if err != nil {
		return err
	}
	next.Left = len(running)
	if next.Left > 0 { // to pause them takes a while
		mv.note(next)
	}
	if unreachable == nil {
		next.Stay = append(next.Stay, s.pauseAll(ctx, mv, places, running)...)
	}
	// Those that were paused just now are counted as running.
	left, waiting, err := s.keptOn(ctx, mv, kept, places, paused)
	if err != nil {
		return err
	}
	next.Left += left
	if next.Waiting == "" {
		next.Waiting = waiting
	}
	mv.note(next)
	return nil
}

// note notes what is left. What has moved is counted by [move.moved].
func (mv *move) note(next sandbox.NodeMove) {
	mv.mu.Lock()
	defer mv.mu.Unlock()
	next.Moved = mv.now.Moved
	next.Stay = slices.Clone(next.Stay)
	mv.now = next
}

// pauseAll pauses sandboxes to move them, and returns those that cannot be paused.
func (s *Service) pauseAll(ctx context.Context, mv *move, places engine.Placer, running []store.Record) (stay []sandbox.NodeStay) {
	var mu sync.Mutex // guards stay
	var g errgroup.Group
	g.SetLimit(movesAtOnce)
	for _, r := range running {
		g.Go(func() error {
			checkpoint, err := s.pauseToMove(ctx, mv, places, &r)
			switch {
			case err == nil:
				mv.moved(r.ID, checkpoint)
			case !errors.Is(err, errInUse):
				mu.Lock()
				defer mu.Unlock()
				stay = append(stay, sandbox.NodeStay{Sandbox: r.ID, Reason: sandbox.MessageOf(err)})
			}
			return nil
		})
	}
	_ = g.Wait()
	return stay
}

// moved notes that a sandbox was paused to be moved.
func (mv *move) moved(id, checkpoint string) {
	mv.mu.Lock()
	defer mv.mu.Unlock()
	mv.now.Moved++
	if mv.resume {
		mv.again[id] = checkpoint
	}
}

// immovable returns why a sandbox cannot run on another machine, or "".
func immovable(r *store.Record) string {
	for _, m := range r.Mounts {
		switch {
		case m.Volume != "":
			return fmt.Sprintf("the volume at %s is on this machine", m.Target)
		case m.Host != "":
			return fmt.Sprintf("the directory of the host at %s is on this machine", m.Target)
		}
	}
	return ""
}

// pauseToMove pauses a sandbox without losing a call: new ones wait, and continue it
// elsewhere. It returns the checkpoint. A sandbox that need not move any more is [errInUse].
func (s *Service) pauseToMove(ctx context.Context, mv *move, places engine.Placer, r *store.Record) (checkpoint string, err error) {
	if !s.moves.wants(mv) {
		return "", errInUse
	}
	h, err := s.openRecord(ctx, r)
	if err != nil {
		return "", err
	}
	short, cancel := context.WithTimeout(ctx, moveGrace)
	defer cancel()
	wake, ok := h.quiet(short)
	if !ok {
		return "", errInUse
	}
	defer wake()
	// It may have been paused, and have continued elsewhere, since it was listed.
	mine := func() bool {
		s.mu.Lock()
		same := s.handles[r.ID] == h
		s.mu.Unlock()
		return same && s.moves.wants(mv) && places.PlaceOf(engine.Source{Instance: h.instance.ID()}) == mv.node
	}
	if !mine() {
		return "", errInUse
	}
	agreed := false
	paused, err := s.pause(ctx, r.ID, func() (func(), error) {
		if agreed = mine(); !agreed {
			return nil, errInUse
		}
		return nothing()
	})
	switch {
	case err != nil:
		return "", err
	case !agreed: // somebody else has paused it
		return "", errInUse
	}
	s.gate.System(r, "sandbox.pause", "to move it from node "+mv.node)
	return paused.Checkpoint, nil
}

// keptOn counts what is kept on a node and not in the object store yet, and says why. It
// continues sandboxes that wait for that.
func (s *Service) keptOn(ctx context.Context, mv *move, kept engine.Replicator, places engine.Placer, paused []store.Record) (left int, waiting string, err error) {
	failing, stuck := "", ""
	// count counts a checkpoint. If the object store will not have it, that is left too:
	// whoever removes the node destroys it.
	count := func(checkpoint, advice string) bool {
		waits, failure := kept.Waits(checkpoint)
		at := kept.Kept(checkpoint)
		unknown := !waits && (at == "" || at == engine.PlaceUnknown)
		if !waits && !unknown || places.PlaceOf(engine.Source{Checkpoint: checkpoint}) != mv.node {
			return false
		}
		left++
		switch {
		case failure != nil:
			failing = fmt.Sprintf("kept state is not in the object store: %v", failure)
		case unknown:
			stuck = advice
		}
		return true
	}
	stored := map[string]string{}
	for _, r := range paused {
		if !count(r.Checkpoint, fmt.Sprintf("the state of paused sandbox %s is only on this node, and is not one that the object store gets; resume the sandbox, so that it moves, or kill it", r.ID)) {
			stored[r.ID] = r.Checkpoint
		}
	}
	s.continueMoved(ctx, mv, mv.takeAgain(paused, stored))
	for snap, err := range store.All(ctx, s.cfg.Store.ListSnapshots, everySnapshot) {
		if err != nil {
			return left, "", err
		}
		if snap.Automatic { // it stays, and ends with its sandbox
			continue
		}
		count(snap.Checkpoint, fmt.Sprintf("snapshot %s is only on this node, and is not one that the object store gets; delete it, if need be after a sandbox was made from it", snap.ID))
	}
	return left, cmp.Or(failing, stuck), nil
}

// takeAgain returns which of the paused sandboxes are to continue now, since their state is
// stored, and forgets them. One that was paused anew is somebody else's.
func (mv *move) takeAgain(paused []store.Record, stored map[string]string) map[string]string {
	mv.mu.Lock()
	defer mv.mu.Unlock()
	now := map[string]string{}
	for _, r := range paused {
		checkpoint, ok := mv.again[r.ID]
		if !ok || checkpoint == r.Checkpoint && stored[r.ID] == "" {
			continue
		}
		delete(mv.again, r.ID)
		if checkpoint == r.Checkpoint {
			now[r.ID] = checkpoint
		}
	}
	return now
}

// continueMoved continues sandboxes that are still paused as the move has paused them.
func (s *Service) continueMoved(ctx context.Context, mv *move, again map[string]string) {
	var g errgroup.Group
	g.SetLimit(movesAtOnce)
	for id, checkpoint := range again {
		g.Go(func() error {
			r, err := s.cfg.Store.Sandbox(ctx, id)
			if err == nil && r.State == sandbox.StatePaused && r.Checkpoint == checkpoint {
				_, err = s.wake(ctx, &r)
			}
			// If there is no room now, it continues at its next call.
			if err != nil && ctx.Err() == nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				s.log.Warn("continue a sandbox that was paused to move it; it continues at its next call", "sandbox", id, "node", mv.node, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}
