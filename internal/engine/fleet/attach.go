package fleet

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// beat is how often a node is asked for its report, and beatTimeout how long it may
	// take to answer.
	beat        = 2 * time.Second
	beatTimeout = 20 * time.Second
	// settleTimeout bounds how long a node may take to end what is not wanted any more.
	settleTimeout = 5 * time.Minute
)

// Attach takes over the connection of a node that has proved its name and id. It returns
// when the node can be driven: the node has ended what is not wanted any more.
func (f *Fleet) Attach(ctx context.Context, name, id, address string, e *remote.Engine) (err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if !f.IsMember(name, id) {
		return sandbox.Errorf(sandbox.CodeForbidden, "node %s is no member", name)
	}
	f.mu.Lock()
	s := f.sites[name]
	f.mu.Unlock()
	s.starting.Lock()
	defer s.starting.Unlock()
	report, err := e.Report(ctx, 0, nil)
	if err != nil {
		return err
	}
	if report.Protocol != remote.Protocol {
		return fmt.Errorf("node %s speaks version %d of the protocol, this server %d; run the same version of cove on both", name, report.Protocol, remote.Protocol)
	}
	f.listen(s, e)
	keep, ended, err := f.settle(ctx, s, e)
	if err != nil {
		return err
	}
	// The node counts its lease from a report that has arrived, and so does this server, from
	// now on: that the node has learnt of its lease may be all that comes of this connection.
	if _, err := e.Report(ctx, 0, nil); err != nil {
		return err
	}
	if err := f.beginLease(s, keep); err != nil {
		return err
	}
	// The node learns the lease, and instances that have stopped because it ran out go on.
	if report, err = e.Report(ctx, f.cfg.Lease, f.fenced(s)); err != nil {
		return err
	}
	s.expiring.Lock()
	f.mu.Lock()
	if err := f.stillWanted(s, keep); err != nil {
		f.mu.Unlock()
		s.expiring.Unlock()
		return err
	}
	if err := f.checkDedicated(s, report.Dedicated); err != nil {
		f.mu.Unlock()
		s.expiring.Unlock()
		return err
	}
	before := s.remote
	s.remote, s.report, s.seen, s.address, s.lost, s.pending = e, report, time.Now(), address, false, 0
	if s.lease != nil {
		s.lease.Stop()
		s.lease = nil
	}
	close(f.attached)
	f.attached = make(chan struct{})
	warm, failed, reached := s.warm, f.failed, f.reached
	f.wg.Go(func() { f.keep(s, e) })
	f.mu.Unlock()
	s.expiring.Unlock()
	if before != nil {
		before.Close()
	}
	e.Watch()
	reached()
	for _, st := range ended {
		failed(st)
	}
	if len(warm) > 0 {
		e.Warm(warm)
	}
	f.log.Info("node connected", "node", name, "address", address, "version", report.Version)
	return nil
}

// listen passes on what a node tells about its own instances, and nothing else.
func (f *Fleet) listen(s *site, e *remote.Engine) {
	e.Notify(func(st engine.Status) {
		if tell := f.failedOf(s, st.ID); tell != nil {
			tell(st)
		}
	})
	e.SetAsked(func(id string, open []engine.Question) {
		f.mu.Lock()
		asked := f.asked
		own := f.owns(s, id)
		f.mu.Unlock()
		if own {
			asked(id, open)
		}
	})
	e.SetPeers(func(ctx context.Context, from, name string, port int) (net.Conn, error) {
		f.mu.Lock()
		dial := f.peers
		own := false
		for _, i := range s.instances {
			own = own || !i.GivenUp && i.Sandbox == from
		}
		f.mu.Unlock()
		if !own || dial == nil {
			return nil, sandbox.Errorf(sandbox.CodeForbidden, "this node runs no such sandbox")
		}
		return dial(ctx, from, name, port)
	})
}

// owns reports whether an instance is on a node and wanted. The caller holds f.mu.
func (f *Fleet) owns(s *site, id string) bool {
	e := f.instances[id]
	return e != nil && e.site == s && !e.GivenUp
}

// failedOf returns whom to tell of the failure of a node's instance, or nil.
func (f *Fleet) failedOf(s *site, id string) func(engine.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.owns(s, id) {
		f.log.Warn("a node tells of an instance that it does not have", "node", s.name)
		return nil
	}
	return f.failed
}

// settle compares what a node has with what is recorded, and has the node end the rest. It
// returns the instances that are wanted, and those that have ended while the node was away.
func (f *Fleet) settle(ctx context.Context, s *site, e *remote.Engine) (keep []string, ended []engine.Status, err error) {
	there, err := e.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	checkpoints, err := e.Checkpoints(ctx)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return nil, nil, err
	}
	here, err := f.ofThisMachine(ctx)
	if err != nil {
		return nil, nil, err
	}
	keep, ended, err = f.compare(s, there, here)
	if err != nil {
		return nil, nil, err
	}
	if err := e.Settle(ctx, f.cfg.Epoch, keep); err != nil {
		return nil, nil, err
	}
	f.forgetEnded(s, there)
	if err := f.compareCheckpoints(ctx, s, e, checkpoints, here); err != nil {
		return nil, nil, err
	}
	logs, err := e.NetworkLogs(ctx)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		return nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range logs {
		if f.logs[id] == nil {
			f.logs[id] = s
		}
	}
	return keep, ended, nil
}

// ofThisMachine returns the ids of the instances and checkpoints of the server's own engine,
// which no node can claim.
func (f *Fleet) ofThisMachine(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	if f.local == nil {
		return ids, nil
	}
	instances, err := f.local.local.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, st := range instances {
		ids[st.ID] = true
	}
	if k, ok := f.local.local.(engine.Checkpointer); ok {
		checkpoints, err := k.Checkpoints(ctx)
		if err != nil {
			return nil, err
		}
		for _, c := range checkpoints {
			ids[c.ID] = true
		}
	}
	return ids, nil
}

// compare returns the instances of a node that are wanted, and those that have ended while
// it was away. Here are the ids that it cannot claim.
func (f *Fleet) compare(s *site, there []engine.Status, here map[string]bool) (keep []string, ended []engine.Status, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	has := map[string]bool{}
	for _, st := range there {
		has[st.ID] = true
		known := f.instances[st.ID]
		if known == nil && !f.started && !here[st.ID] && validID.MatchString(st.ID) {
			// The records are older than the node's instances: the service decides.
			if err := f.setInstance(st.ID, entry{site: s}); err != nil {
				return nil, nil, err
			}
		}
		if !f.owns(s, st.ID) {
			continue
		}
		keep = append(keep, st.ID)
		if !st.Running {
			ended = append(ended, st)
		}
	}
	for id, i := range s.instances {
		if !i.GivenUp && !has[id] && !i.making {
			ended = append(ended, engine.Status{ID: id, Reason: "its node " + s.name + " was restarted"})
		}
	}
	return keep, ended, nil
}

// forgetEnded forgets instances that were given up, which the node has ended now.
func (f *Fleet) forgetEnded(s *site, there []engine.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	has := map[string]bool{}
	for _, st := range there {
		has[st.ID] = true
	}
	for id, i := range s.instances {
		if i.GivenUp || !has[id] && !i.making {
			f.dropInstance(id)
		}
	}
}

// compareCheckpoints records the checkpoints of a node, and has it remove those that are
// not wanted any more. Here are the ids that the node cannot claim.
func (f *Fleet) compareCheckpoints(ctx context.Context, s *site, e *remote.Engine, there []engine.Checkpoint, here map[string]bool) error {
	has := map[string]bool{}
	for _, c := range there {
		has[c.ID] = true
		f.mu.Lock()
		unwanted := s.stale[c.ID]
		var err error
		if f.checkpoints[c.ID] == nil && !unwanted && !here[c.ID] && validID.MatchString(c.ID) {
			c.Family = s.member.Family // not what the node says
			err = f.setCheckpoint(kept{site: s, Checkpoint: c})
		}
		f.mu.Unlock()
		if unwanted {
			err = f.removeStale(ctx, s, e, c.ID)
		}
		if err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, k := range f.checkpoints {
		if k.site == s && !has[id] {
			f.dropCheckpoint(id)
		}
	}
	for id := range s.stale {
		if !has[id] {
			f.clearStale(s, id)
		}
	}
	return nil
}

// removeStale has a node remove a checkpoint that is not wanted there any more.
func (f *Fleet) removeStale(ctx context.Context, s *site, e *remote.Engine, id string) error {
	if err := e.RemoveCheckpoint(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clearStale(s, id)
	return nil
}

// keep asks a node for its report until its connection ends, and then begins its lease.
func (f *Fleet) keep(s *site, e *remote.Engine) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	// A process that was stopped for a while has heard nothing of nodes that were there.
	stopped, last := false, time.Now()
	woke := func(after time.Duration) {
		now := time.Now()
		stopped, last = stopped || now.Sub(last) > after+stall, now
	}
	for {
		select {
		case <-e.Done():
			woke(beat)
			f.detach(s, e, stopped)
			return
		case <-tick.C:
			woke(beat)
		}
		ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
		report, err := e.Report(ctx, f.cfg.Lease, f.fenced(s))
		cancel()
		woke(beatTimeout)
		if err != nil {
			go e.Close()
			<-e.Done()
			continue
		}
		stopped = false
		f.mu.Lock()
		s.report, s.seen, s.pending = report, time.Now(), 0
		f.mu.Unlock()
	}
}
