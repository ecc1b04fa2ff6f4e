package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"syscall"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

var (
	_ engine.Gateway       = (*handle)(nil)
	_ engine.NetworkLogger = (*Engine)(nil)
	_ engine.Switch        = (*Engine)(nil)
	_ engine.Asking        = (*handle)(nil)
	_ engine.Inquirer      = (*Engine)(nil)
)

// gate is the last configuration of an instance's gateway. It enforces nothing.
type gate struct {
	network engine.Network
	values  map[string]string // by placeholder
	// questions are the open questions, and answers the answers given, by id.
	questions []engine.Question
	answers   map[string]bool
}

// newGate records a gateway's configuration and copies the values.
func newGate(n *engine.Network) (gate, error) {
	if n == nil {
		return gate{}, nil
	}
	g := gate{network: *n, values: map[string]string{}}
	g.network.Values = nil
	g.network.Bindings = slices.Clone(n.Bindings)
	if n.Values == nil {
		return g, nil
	}
	err := n.Values(func(placeholder string, value []byte) error {
		g.values[placeholder] = string(value)
		return nil
	})
	return g, err
}

// Network returns the last configuration of an instance's gateway, and the values of its
// bindings by placeholder.
func (s *State) Network(id string) (engine.Network, map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	if i == nil {
		return engine.Network{}, nil
	}
	return i.gate.network, maps.Clone(i.gate.values)
}

// SetNetwork only records the network, see [State.Network].
func (h *handle) SetNetwork(ctx context.Context, n engine.Network) error {
	return h.e.step(ctx, StepSetNetwork, func() error {
		g, err := newGate(&n)
		if err != nil {
			return err
		}
		h.e.state.mu.Lock()
		defer h.e.state.mu.Unlock()
		g.questions, g.answers = h.i.gate.questions, h.i.gate.answers
		h.i.gate = g
		return nil
	})
}

// SetAsked implements [engine.Inquirer].
func (e *Engine) SetAsked(asked func(instanceID string, open []engine.Question)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = asked
}

// Ask replaces the open questions of an instance, as its gateway would.
func (e *Engine) Ask(id string, open ...engine.Question) {
	e.state.mu.Lock()
	i := e.state.instances[id]
	if i != nil {
		i.gate.questions = slices.Clone(open)
	}
	e.state.mu.Unlock()
	e.mu.Lock()
	asked := e.asked
	e.mu.Unlock()
	if asked != nil {
		asked(id, open)
	}
}

// Answers returns the answers that were given once to an instance's questions, by id.
func (s *State) Answers(id string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.instances[id]; i != nil {
		return maps.Clone(i.gate.answers)
	}
	return nil
}

// AnswerQuestion implements [engine.Asking].
func (h *handle) AnswerQuestion(ctx context.Context, id string, allow bool) error {
	return h.e.step(ctx, StepAnswer, func() error {
		h.e.state.mu.Lock()
		defer h.e.state.mu.Unlock()
		g := &h.i.gate
		left := slices.DeleteFunc(slices.Clone(g.questions), func(q engine.Question) bool { return q.ID == id })
		if len(left) == len(g.questions) {
			return engine.ErrNoQuestion
		}
		if g.answers == nil {
			g.answers = map[string]bool{}
		}
		g.questions, g.answers[id] = left, allow
		return nil
	})
}

// DialPort connects to a port of the host, where the programs of instances run.
func (h *handle) DialPort(ctx context.Context, port int, _ bool) (conn net.Conn, err error) {
	err = h.e.step(ctx, StepDialPort, func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("nothing listens on port %d of the sandbox; start a server there first", port))
		}
		return err
	})
	if err != nil && conn != nil {
		err = errors.Join(err, conn.Close())
	}
	return conn, err
}

// SetPeers implements [engine.Switch].
func (e *Engine) SetPeers(dial func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers = dial
}

// DialPeer dials another sandbox like the gateway of a sandbox.
func (e *Engine) DialPeer(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error) {
	e.mu.Lock()
	dial := e.peers
	e.mu.Unlock()
	return dial(ctx, fromSandboxID, name, port)
}

// AddEvent adds an event to the network log of a sandbox.
func (s *State) AddEvent(ev sandbox.NetworkEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logs == nil {
		s.logs = map[string][]sandbox.NetworkEvent{}
	}
	ev.ID = int64(len(s.logs[ev.SandboxID]) + 1)
	s.logs[ev.SandboxID] = append(s.logs[ev.SandboxID], ev)
	if s.logged != nil {
		close(s.logged)
		s.logged = nil
	}
}

// events returns the events of a sandbox, and a channel that is closed at the next event of
// any sandbox.
func (s *State) events(id string) ([]sandbox.NetworkEvent, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logged == nil {
		s.logged = make(chan struct{})
	}
	return s.logs[id], s.logged
}

func selected(ev *sandbox.NetworkEvent, req *sandbox.NetworkLogRequest) bool {
	return (req.Kind == "" || req.Kind == ev.Kind) && (req.Verdict == "" || req.Verdict == ev.Verdict) && (req.Host == "" || req.Host == ev.Host) &&
		(req.Since == nil || !ev.Time.Before(*req.Since)) && (req.Until == nil || ev.Time.Before(*req.Until))
}

// NetworkLog implements [engine.NetworkLogger].
func (e *Engine) NetworkLog(_ context.Context, id string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	limit, err := store.PageLimit(req.Page)
	if err != nil {
		return nil, "", err
	}
	before := int64(1) << 62
	if req.Cursor != "" {
		if before, err = strconv.ParseInt(req.Cursor, 10, 64); err != nil {
			return nil, "", sandbox.Wrap(sandbox.CodeInvalid, err, "the cursor is not valid; start over without a cursor")
		}
	}
	all, _ := e.state.events(id)
	var page []sandbox.NetworkEvent
	for _, ev := range slices.Backward(all) {
		if ev.ID >= before || !selected(&ev, &req) {
			continue
		}
		if len(page) == limit {
			return page, strconv.FormatInt(page[limit-1].ID, 10), nil
		}
		page = append(page, ev)
	}
	return page, "", nil
}

// FollowNetworkLog implements [engine.NetworkLogger].
func (e *Engine) FollowNetworkLog(ctx context.Context, id string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	all, more := e.state.events(id)
	seen := len(all)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
		all, more = e.state.events(id)
		for _, ev := range all[min(seen, len(all)):] {
			if selected(&ev, &req) {
				if err := sink(ev); err != nil {
					return err
				}
			}
		}
		seen = len(all)
	}
}

// RemoveNetworkLog implements [engine.NetworkLogger].
func (e *Engine) RemoveNetworkLog(_ context.Context, id string) error {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	delete(e.state.logs, id)
	return nil
}

// NetworkLogs implements [engine.NetworkLogger].
func (e *Engine) NetworkLogs(context.Context) ([]string, error) {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	return slices.Sorted(maps.Keys(e.state.logs)), nil
}
