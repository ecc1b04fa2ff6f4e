package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

var (
	errNoGateway = sandbox.Errorf(sandbox.CodeUnsupported, "this server cannot change the network of a running sandbox; create a new sandbox with the policy")
	errNoLog     = sandbox.Errorf(sandbox.CodeUnsupported, "this server keeps no network logs")
)

// alive are the states of a sandbox whose policy can be changed.
var alive = []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}

// push applies a record's network configuration to the gateway of its running sandbox.
//
// Preconditions: the caller holds the lock of the sandbox.
func (s *Service) push(ctx context.Context, h *handle, r *store.Record) error {
	gateway, ok := h.instance.(engine.Gateway)
	if !ok {
		return errNoGateway
	}
	n, err := s.networkOf(ctx, r)
	if err != nil {
		return err
	}
	if err := gateway.SetNetwork(ctx, *n); err != nil {
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			return e
		}
		return call.Unavailable(err, "sandbox %s is not responding; try again", r.ID)
	}
	return nil
}

// pushAgain sends the current values of a sandbox's secrets to its gateway, if the
// sandbox runs.
func (s *Service) pushAgain(ctx context.Context, id string) error {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil || r.State != sandbox.StateRunning {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = nil
		}
		return err
	}
	h, err := s.openRecord(ctx, &r)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
			err = nil
		}
		return err
	}
	return s.push(ctx, h, &r)
}

// regate changes the policy or the bindings of a sandbox: the record first, then the
// gateway and the environment if the sandbox runs. If that fails, regate takes the
// record back. After a crash in between, the next start repairs the difference.
func (s *Service) regate(ctx context.Context, id string, apply func(*store.Record) error) (store.Record, error) {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	defer unlock()
	var before store.Record
	after, err := s.cfg.Store.UpdateSandbox(ctx, id, store.Change{From: alive, Apply: func(r *store.Record) error {
		before = *r
		r.Applying = r.State == sandbox.StateRunning
		return apply(r)
	}})
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
		err = call.NotRunning(&after)
	}
	if err != nil || after.State != sandbox.StateRunning {
		return after, err
	}
	// From here on the change is completed or undone, even if the caller goes away.
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	h, err := s.openRecord(ctx, &after)
	if err != nil {
		return after, err
	}
	err = s.push(ctx, h, &after)
	if err == nil && !maps.Equal(environment(&before), environment(&after)) {
		err = h.setEnvironment(ctx, &after)
		if err != nil && len(after.Bindings) < len(before.Bindings) {
			// The gateway no longer has the secret. Code inside must not be able to
			// keep the secret by stopping the agent, so the error is not returned;
			// Repair tries again.
			s.log.Warn("take the placeholder of a secret out of an environment", "sandbox", id, "error", call.Detailed(err))
			return after, nil
		}
	}
	if err != nil {
		s.takeBackNetwork(ctx, h, &before)
		return after, h.explain(ctx, err)
	}
	return s.cfg.Store.UpdateSandbox(ctx, id, store.Change{Apply: applied(nil, before.Applying)})
}

// takeUp applies a record's network and environment to its running sandbox.
func (s *Service) takeUp(ctx context.Context, h *handle, r *store.Record) error {
	if err := s.push(ctx, h, r); err != nil {
		return err
	}
	return h.setEnvironment(ctx, r)
}

// setEnvironment sends the environment of a record to the agent.
func (h *handle) setEnvironment(ctx context.Context, r *store.Record) error {
	_, err := h.client.Configure(ctx, &agentv1.ConfigureRequest{Env: environment(r), ReplaceEnv: true})
	return err
}

// takeBackNetwork undoes a change that could not be applied.
func (s *Service) takeBackNetwork(ctx context.Context, h *handle, before *store.Record) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	err := s.takeUp(ctx, h, before)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		err = nil // nothing was changed
	}
	if err != nil {
		s.log.Warn("take back a change of the network", "sandbox", h.id, "error", call.Detailed(err))
	}
	_, serr := s.cfg.Store.UpdateSandbox(ctx, h.id, store.Change{Apply: func(r *store.Record) error {
		r.Network, r.Answers, r.Bindings, r.Applying = before.Network, before.Answers, before.Bindings, before.Applying || err != nil
		return nil
	}})
	if serr != nil {
		s.log.Error("take back the record of a change of the network", "sandbox", h.id, "error", serr)
	}
}

// GetNetwork implements [sandbox.Network].
func (s *Service) GetNetwork(ctx context.Context, ref string) (*sandbox.NetworkPolicy, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.NetworkPolicy, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		policy := call.PolicyOf(&r)
		return &policy, nil
	})
}

// SetNetwork implements [sandbox.Network].
func (s *Service) SetNetwork(ctx context.Context, ref string, policy sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "network.set"), func(c *call.Call) (*sandbox.NetworkPolicy, error) {
		if err := validate.Network(&policy); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		c.Detail = describePolicy(&policy)
		headerBindings, err := s.Secrets.HeaderBindings(c, &policy, nil)
		if err != nil {
			return nil, err
		}
		r, err = s.regate(c.Ctx, r.ID, func(r *store.Record) error {
			r.Network, r.Answers = &policy, nil // the answers were to questions of the old policy
			return secrets.ReplaceHeaderBindings(r, headerBindings)
		})
		if err != nil {
			return nil, err
		}
		now := call.PolicyOf(&r)
		return &now, nil
	})
}

// describePolicy returns the audit record's text for a policy.
func describePolicy(p *sandbox.NetworkPolicy) string {
	text := fmt.Sprintf("preset %s, %d rules, %d allow_out, %d deny_out", p.Preset, len(p.Rules), len(p.AllowOut), len(p.DenyOut))
	for _, r := range p.Headers {
		text += ", headers for " + r.To
	}
	if named := egress.HeaderSecrets(p.Headers); len(named) > 0 {
		text += " with secret " + strings.Join(slices.Sorted(maps.Keys(named)), ", ")
	}
	return text
}

// NetworkLog implements [sandbox.Network].
func (s *Service) NetworkLog(ctx context.Context, ref string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.NetworkEvent], error) {
		if err := s.checkLogRequest(&req); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		events, next, err := s.logger.NetworkLog(c.Ctx, r.ID, req)
		if err != nil {
			return nil, err
		}
		return &sandbox.List[sandbox.NetworkEvent]{Items: append([]sandbox.NetworkEvent{}, events...), NextCursor: next}, nil
	})
}

// checkLogRequest refuses a request that by a mistake would select nothing.
func (s *Service) checkLogRequest(req *sandbox.NetworkLogRequest) error {
	if s.logger == nil {
		return errNoLog
	}
	switch req.Kind {
	case "", sandbox.NetworkConnection, sandbox.NetworkDNS, sandbox.NetworkRequest:
	default:
		return validate.Errorf("kind %s is not valid; use %q, %q or %q", validate.Quote(string(req.Kind)), sandbox.NetworkConnection, sandbox.NetworkDNS, sandbox.NetworkRequest)
	}
	switch req.Verdict {
	case "", sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkFailed:
	default:
		return validate.Errorf("verdict %s is not valid; use %q, %q or %q", validate.Quote(string(req.Verdict)), sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkFailed)
	}
	if err := validate.Text("host", req.Host); err != nil {
		return err
	}
	if len(req.Host) > maxHostName {
		return validate.Errorf("host has %d bytes; host names have at most %d", len(req.Host), maxHostName)
	}
	if req.Since != nil && req.Until != nil && req.Until.Before(*req.Since) {
		return validate.Errorf("until is earlier than since; swap them")
	}
	_, err := store.PageLimit(req.Page)
	return err
}

// maxHostName is the longest name of a host, with "*." before it.
const maxHostName = 256

// lookEvery is how often the state of a sandbox is checked while its log is followed.
const lookEvery = time.Second

// FollowNetworkLog implements [sandbox.Network].
func (s *Service) FollowNetworkLog(ctx context.Context, ref string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	return call.Run(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) error {
		if err := s.checkLogRequest(&req); err != nil {
			return err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return err
		}
		if r.State.Final() {
			return nil
		}
		following, stop := context.WithCancel(c.Ctx)
		defer stop()
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			s.untilEnded(following, r.ID)
			stop()
		}()
		err = s.logger.FollowNetworkLog(following, r.ID, req, func(ev sandbox.NetworkEvent) error {
			if err := sink(ev); err != nil {
				return &call.CallbackError{Err: err}
			}
			return nil
		})
		ended := following.Err() != nil
		stop()
		<-watched
		if _, own := errors.AsType[*call.CallbackError](err); ended && !own && s.gate.Context().Err() == nil {
			return nil
		}
		return err
	})
}

// untilEnded returns when a sandbox has ended, or ctx is done.
func (s *Service) untilEnded(ctx context.Context, id string) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, err := s.cfg.Store.Sandbox(ctx, id)
		if err == nil && r.State.Final() || sandbox.CodeOf(err) == sandbox.CodeNotFound {
			// Events from the end of the sandbox are passed on first.
			select {
			case <-ctx.Done():
			case <-time.After(lookEvery):
			}
			return
		}
	}
}

// collectLogs removes the logs of sandboxes without a record.
func (s *Service) collectLogs(ctx context.Context) error {
	if s.logger == nil {
		return nil
	}
	kept, err := s.logger.NetworkLogs(ctx)
	if err != nil {
		return err
	}
	for _, id := range kept {
		if s.Builder.Owns(id) {
			continue // the build removes it
		}
		_, err := s.cfg.Store.Sandbox(ctx, id)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = s.logger.RemoveNetworkLog(ctx, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
