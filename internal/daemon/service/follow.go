package service

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// maxEventID bounds the id of an event that a caller sends.
const maxEventID = 128

// FollowEvents implements [sandbox.Events].
func (s *Service) FollowEvents(ctx context.Context, req sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	return call.Run(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) error {
		if err := checkEventsRequest(&req); err != nil {
			return err
		}
		in, id := c.Realm(), ""
		if req.Sandbox != "" {
			r, err := c.Resolve(req.Sandbox)
			if err != nil {
				return err
			}
			id = r.ID
		}
		following, stop := context.WithCancel(c.Ctx)
		defer stop()
		out := &eventSink{sink: sink}
		var network sync.WaitGroup
		if id != "" && !req.Once && s.logger != nil && req.Wants(sandbox.EventNetwork) {
			network.Go(func() {
				defer stop()
				out.followNetwork(following, s.logger, id)
			})
		}
		wanted := func(e *events.Entry) bool {
			return (e.Team == "" || in.Has(e.Team, e.Namespace)) && (id == "" || e.SandboxID == id) && req.Wants(e.Kind)
		}
		err := s.events.Follow(following, req.After, req.Once, wanted, out.pass)
		ended := following.Err() != nil
		stop()
		network.Wait()
		switch {
		case out.err != nil:
			return out.err
		case errors.Is(err, events.ErrClosed):
			return call.Unavailable(err, "the server is shutting down; when it is back, follow again from the last event")
		case ended && s.gate.Context().Err() == nil:
			return nil
		}
		return err
	})
}

// EndStreams ends all streams of events, which would delay the server's shutdown, and
// refuses new ones. Other calls continue.
func (s *Service) EndStreams() { s.events.Close() }

func checkEventsRequest(req *sandbox.FollowEventsRequest) error {
	for _, k := range req.Kinds {
		if !slices.Contains(sandbox.EventKinds, k) {
			return validate.Errorf("kind %s is not valid; use one of %q", validate.Quote(string(k)), sandbox.EventKinds)
		}
	}
	if len(req.After) > maxEventID {
		return validate.Errorf("after has %d bytes; set it to the id of an event, or to %q", len(req.After), sandbox.EventsOldest)
	}
	if req.Sandbox == "" && len(req.Kinds) == 1 && req.Kinds[0] == sandbox.EventNetwork {
		return validate.Errorf("events of kind %q are reported only for one sandbox; name it as sandbox", sandbox.EventNetwork)
	}
	return nil
}

// eventSink is a caller's sink for several goroutines. After an error the sink is not
// called again.
type eventSink struct {
	sink func(sandbox.Event) error

	mu  sync.Mutex
	err error // guarded by mu
}

func (s *eventSink) pass(e sandbox.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if err := s.sink(e); err != nil {
		s.err = &call.CallbackError{Err: err}
	}
	return s.err
}

// followNetwork passes on what a sandbox tries to reach until ctx is cancelled or the
// sink fails. If the log cannot be followed, only the network events are missing from
// the stream.
func (s *eventSink) followNetwork(ctx context.Context, logger engine.NetworkLogger, id string) {
	for ctx.Err() == nil {
		err := logger.FollowNetworkLog(ctx, id, sandbox.NetworkLogRequest{}, func(e sandbox.NetworkEvent) error {
			return s.pass(sandbox.Event{At: e.Time, Kind: sandbox.EventNetwork, SandboxID: id, Network: &e})
		})
		if s.failed() {
			return
		}
		if err == nil {
			break
		}
		waitUnless(ctx, sandbox.StatsInterval, nil)
	}
	<-ctx.Done()
}

func (s *eventSink) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}
