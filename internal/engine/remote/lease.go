package remote

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// leaseShare is the part of a lease by which instances stop before the server gives them
	// up, for clocks that do not run alike, and leastMargin the least of it.
	leaseShare  = 20
	leastMargin = 2 * time.Second
	// renewTimeout bounds a renewal in one instance, and renewers how many are made at once.
	renewTimeout = 10 * time.Second
	renewers     = 16
)

// reportRequest asks a node for its report, and says what the server counts on meanwhile.
type reportRequest struct {
	// Lease is how long after the last report the server gives up the node's instances.
	Lease time.Duration
	// Fenced are the instances that must have stopped by then.
	Fenced []string `json:",omitempty"`
}

// leases are what a node knows of the server's patience. The end of the lease is counted from
// when the node has sent a report that has surely arrived: that is the one before the report
// that the server asks for now. So the lease of the node never ends after the server's.
type leases struct {
	engine engine.Leaser // nil if the engine has none

	until    time.Duration // guarded by Server.mu; 0 if it is not known yet
	renewing bool          // guarded by Server.mu
}

// renew renews the leases of instances after a report that was sent at the given time has
// arrived. It does not wait: a report must not be late because of an instance.
func (s *Server) renew(sent time.Duration, req *reportRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := sent + req.Lease - max(leastMargin, req.Lease/leaseShare)
	s.leases.until = max(1, s.leases.until, until)
	if len(req.Fenced) == 0 || s.leases.renewing {
		return
	}
	s.leases.renewing = true
	until = s.leases.until
	go func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.leases.renewing = false
		}()
		var g errgroup.Group
		g.SetLimit(renewers)
		for _, id := range req.Fenced {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
				defer cancel()
				// Without a renewal the instance stops, which is safe.
				if err := s.leases.engine.Lease(ctx, id, until); err != nil && !errors.Is(err, engine.ErrNotFound) {
					s.cfg.Log.Warn("renew the lease of an instance", "instance", id, "error", err)
				}
				return nil
			})
		}
		_ = g.Wait()
	}()
}

func (n *session) report(_ context.Context, req *reportRequest) (*Report, error) {
	r := n.cfg.Report()
	r.Protocol = Protocol
	_, r.Checkpoints = n.cfg.Engine.(engine.Checkpointer)
	_, r.Early = n.cfg.Engine.(engine.EarlyImporter)
	if n.leases.engine == nil {
		return &r, nil
	}
	now, err := n.leases.engine.LeaseTime()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	before := n.reported
	n.reported = now
	n.mu.Unlock()
	if before > 0 && req.Lease > 0 {
		n.renew(before, req)
	}
	return &r, nil
}

// fence begins the lease of an instance.
func (n *session) fence(ctx context.Context, req *byID) (*empty, error) {
	n.mu.Lock()
	until := n.leases.until
	n.mu.Unlock()
	if n.leases.engine == nil {
		return nil, unsupported("stop sandboxes that it may not run any more")
	}
	if until == 0 {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the node has just connected; try again")
	}
	return &empty{}, n.leases.engine.Lease(ctx, req.ID, until)
}

// Report asks the node what it has. Each call says that the report before it has arrived, so
// there must be one at a time. The node stops the instances of fenced by themselves before
// the lease, counted from that report, has run out.
func (e *Engine) Report(ctx context.Context, lease time.Duration, fenced []string) (Report, error) {
	r, err := call[Report](ctx, e, "Report", reportRequest{lease, fenced})
	r.Version = cleanTo(r.Version, 64)
	return r, err
}

// Fence begins the lease of an instance, which stops without further reports that name it.
func (e *Engine) Fence(ctx context.Context, instanceID string) error {
	_, err := call[empty](ctx, e, "Fence", byID{instanceID})
	return err
}
