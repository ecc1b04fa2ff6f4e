package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// again are paused sandboxes that are to continue as soon as their state is in the object
	// store. Only the move's own goroutine uses it.
	again map[string]bool

	mu     sync.Mutex
	resume bool             // guarded by mu
	now    sandbox.NodeMove // guarded by mu
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
	wanted := s.cfg.Nodes.Moving()
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	maps.DeleteFunc(s.moves.active, func(node string, _ *move) bool { return !wanted[node].Move })
	for node, req := range wanted {
		mv := s.moves.active[node]
		if mv == nil {
			mv = &move{node: node, again: map[string]bool{}}
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

// runMove empties a node until that is no longer wanted. What comes to the node later, such
// as a fork of a sandbox that stays, moves too.
func (s *Service) runMove(mv *move) {
	ctx := s.gate.Context()
	for {
		s.moves.mu.Lock()
		wanted := s.moves.active[mv.node] == mv
		s.moves.mu.Unlock()
		if !wanted {
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
		return errors.New("there is no object store")
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
		switch {
		case r.State == sandbox.StatePaused:
			paused = append(paused, r)
		case places.PlaceOf(engine.Source{Instance: r.Instance}) == mv.node:
			running = append(running, r)
		}
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards next
	var g errgroup.Group
	g.SetLimit(movesAtOnce)
	for _, r := range running {
		if reason := immovable(&r); reason != "" {
			next.Stay = append(next.Stay, sandbox.NodeStay{Sandbox: r.ID, Reason: reason})
			continue
		}
		next.Left++
		if unreachable != nil {
			continue
		}
		g.Go(func() error {
			err := s.pauseToMove(ctx, mv.node, &r)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				mv.moved(r.ID)
			} else if !errors.Is(err, errInUse) {
				next.Stay = append(next.Stay, sandbox.NodeStay{Sandbox: r.ID, Reason: sandbox.MessageOf(err)})
			}
			return nil
		})
	}
	_ = g.Wait()
	// Those that were paused just now are counted as running.
	left, waiting, err := s.keptOn(ctx, mv, kept, places, paused)
	if err != nil {
		return err
	}
	next.Left += left
	if next.Waiting == "" {
		next.Waiting = waiting
	}
	mv.mu.Lock()
	defer mv.mu.Unlock()
	next.Moved = mv.now.Moved
	mv.now = next
	return nil
}

// moved notes that a sandbox was paused to be moved. Only the goroutines of one
// [Service.moveSome] call it, one at a time.
func (mv *move) moved(id string) {
	mv.mu.Lock()
	defer mv.mu.Unlock()
	mv.now.Moved++
	if mv.resume {
		mv.again[id] = true
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
// elsewhere.
func (s *Service) pauseToMove(ctx context.Context, node string, r *store.Record) error {
	h, err := s.openRecord(ctx, r)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, moveGrace)
	defer cancel()
	wake, ok := h.quiet(short)
	if !ok {
		return errInUse
	}
	defer wake()
	if _, err := s.pause(ctx, r.ID, nothing); err != nil {
		return err
	}
	s.gate.System(r, "sandbox.pause", "to move it from node "+node)
	return nil
}

// keptOn counts what is kept on a node and not in the object store yet, and says why. It
// continues sandboxes that wait for that.
func (s *Service) keptOn(ctx context.Context, mv *move, kept engine.Replicator, places engine.Placer, paused []store.Record) (left int, waiting string, err error) {
	count := func(checkpoint string) bool {
		waits, failure := kept.Waits(checkpoint)
		if !waits || places.PlaceOf(engine.Source{Checkpoint: checkpoint}) != mv.node {
			return false
		}
		left++
		if failure != nil {
			waiting = fmt.Sprintf("kept state is not in the object store: %v", failure)
		}
		return true
	}
	var g errgroup.Group
	g.SetLimit(movesAtOnce)
	for _, r := range paused {
		if count(r.Checkpoint) || !mv.again[r.ID] {
			continue
		}
		delete(mv.again, r.ID)
		g.Go(func() error {
			// If there is no room now, it continues at its next call.
			if _, err := s.wake(ctx, &r); err != nil && ctx.Err() == nil {
				s.log.Warn("continue a sandbox that has moved; it continues at its next call", "sandbox", r.ID, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
	for snap, err := range store.All(ctx, s.cfg.Store.ListSnapshots, everySnapshot) {
		if err != nil {
			return left, waiting, err
		}
		count(snap.Checkpoint)
	}
	return left, waiting, nil
}
