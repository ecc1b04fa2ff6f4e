package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// stall is by how much this process must be late to have been stopped, rather than slow.
	// Nodes could not reach it meanwhile, and have another lease to do so.
	stall = 5 * time.Second
	// leaseFile has the longest lease that a node may still count on.
	leaseFile = "lease.json"
)

// leaseRecord is the content of leaseFile.
type leaseRecord struct {
	Lease time.Duration `json:"lease_ns"`
}

// loadLease reads the lease of the server before, and records this one's. Instances that have
// stopped by themselves only when the longer one of both is over may still run until then.
func (f *Fleet) loadLease() error {
	var before leaseRecord
	data, err := f.cfg.Files.Read(leaseFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := unmarshal(leaseFile, data, &before); err != nil {
			return err
		}
	}
	if before.Lease <= f.cfg.Lease {
		if before.Lease == f.cfg.Lease {
			return nil
		}
		return f.saveLease()
	}
	f.notBefore = time.Now().Add(before.Lease)
	f.shorter = time.AfterFunc(before.Lease, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.closed {
			return
		}
		if err := f.saveLease(); err != nil {
			f.log.Warn("record the lease of nodes; the longer one before counts again at the next start", "error", err)
		}
	})
	return nil
}

func (f *Fleet) saveLease() error {
	if err := f.write(leaseFile, leaseRecord{f.cfg.Lease}); err != nil {
		return fmt.Errorf("record the lease of nodes: %w", err)
	}
	return nil
}

// beginLease notes that a node has just answered and may now learn of a new lease, so that its
// instances are not given up before that is over. It fails if one of those was given up since
// it was compared.
func (f *Fleet) beginLease(s *site, keep []string) error {
	s.expiring.Lock()
	defer s.expiring.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.stillWanted(s, keep); err != nil {
		return err
	}
	s.seen = time.Now()
	if s.lease != nil {
		f.runLease(s, f.cfg.Lease)
	}
	return nil
}

// stillWanted fails if a node cannot be driven with these instances any more. The caller holds
// f.mu.
func (f *Fleet) stillWanted(s *site, keep []string) error {
	if f.closed || s.removed {
		return errors.New("the server stops, or the node was removed")
	}
	for _, id := range keep {
		if e := f.instances[id]; e != nil && e.GivenUp {
			return sandbox.Errorf(sandbox.CodeUnavailable, "the lease of node %s ran out while it connected; it connects again", s.name)
		}
	}
	return nil
}

// detach begins the lease of a node whose connection has ended. If this process was stopped
// meanwhile, the node has a whole lease to connect again.
func (f *Fleet) detach(s *site, e *remote.Engine, stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.remote != e || f.closed || s.removed {
		return
	}
	s.remote = nil
	left := f.cfg.Lease
	if !stopped {
		left -= time.Since(s.seen)
	}
	f.runLease(s, left)
	f.log.Warn("node cannot be reached", "node", s.name, "lease", f.cfg.Lease)
}

// runLease begins the lease of a node that is away. The caller holds f.mu, or is alone.
func (f *Fleet) runLease(s *site, left time.Duration) {
	if s.lease != nil {
		s.lease.Stop()
	}
	left = max(0, left, time.Until(f.notBefore))
	end := time.Now().Add(left)
	s.until = end
	s.lease = time.AfterFunc(left, func() { f.expire(s, end) })
}

// expire gives up the instances of a node whose lease has run out, and then says so.
func (f *Fleet) expire(s *site, end time.Time) {
	gone := f.giveUpAll(s, end)
	if len(gone) == 0 {
		return
	}
	f.log.Warn("node lost; its sandboxes have failed", "node", s.name, "sandboxes", len(gone))
	f.mu.Lock()
	failed := f.failed
	f.mu.Unlock()
	for _, id := range gone {
		failed(engine.Status{ID: id, Reason: fmt.Sprintf("its node %s could not be reached for %s", s.name, f.cfg.Lease)})
	}
}

// giveUpAll records that the instances of a node whose lease has run out have ended, and
// returns those of which that was recorded. What keeps the records may be away for long, and
// then nothing else waits for it but the node, if it is back.
func (f *Fleet) giveUpAll(s *site, end time.Time) (gone []string) {
	s.expiring.Lock()
	defer s.expiring.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.remote != nil || f.closed || s.removed || !s.until.Equal(end) {
		return nil
	}
	if late := time.Since(end); late > stall {
		f.log.Warn("this server was stopped; the node may connect again", "node", s.name, "for", late, "lease", f.cfg.Lease)
		f.runLease(s, f.cfg.Lease)
		return nil
	}
	f.wg.Add(1) // Close waits for the writes
	defer f.wg.Done()
	s.givingUp = true
	defer func() { s.givingUp, s.lost = false, true }()
	for _, id := range slices.Collect(maps.Keys(s.instances)) {
		e := s.instances[id]
		if e == nil || e.GivenUp {
			continue
		}
		record := e.givenUp()
		f.mu.Unlock()
		err := f.recordInstance(id, record)
		f.mu.Lock()
		switch {
		case err != nil:
			// It stays wanted, which only means that it has not failed yet. So do the others:
			// each could wait for what keeps the records.
			f.log.Error("give up an instance of a lost node", "node", s.name, "instance", id, "error", err)
			if !f.closed && !s.removed {
				f.runLease(s, beat)
			}
			return gone
		case s.instances[id] == e: // otherwise it was abandoned or forgotten meanwhile
			f.put(id, e.givenUp())
			gone = append(gone, id)
		}
		if f.closed {
			return gone
		}
	}
	return gone
}
