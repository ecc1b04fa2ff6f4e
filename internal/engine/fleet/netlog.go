package fleet

import (
	"context"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// logger returns what has the network log of a sandbox, or nil if nothing has.
func (f *Fleet) logger(sandboxID string) (engine.NetworkLogger, error) {
	f.mu.Lock()
	s := f.logs[sandboxID]
	f.mu.Unlock()
	if s == nil {
		s = f.local
	}
	if s == nil {
		return nil, nil
	}
	e, err := f.engineOf(s)
	if err != nil {
		return nil, err
	}
	l, _ := e.(engine.NetworkLogger)
	return l, nil
}

// NetworkLog implements [engine.NetworkLogger].
func (f *Fleet) NetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	l, err := f.logger(sandboxID)
	if err != nil || l == nil {
		return nil, "", err
	}
	return l.NetworkLog(ctx, sandboxID, req)
}

// FollowNetworkLog implements [engine.NetworkLogger].
func (f *Fleet) FollowNetworkLog(ctx context.Context, sandboxID string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	l, err := f.logger(sandboxID)
	if err != nil {
		return err
	}
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return l.FollowNetworkLog(ctx, sandboxID, req, sink)
}

// RemoveNetworkLog implements [engine.NetworkLogger].
func (f *Fleet) RemoveNetworkLog(ctx context.Context, sandboxID string) error {
	l, err := f.logger(sandboxID)
	if err != nil || l == nil {
		return err
	}
	if err := l.RemoveNetworkLog(ctx, sandboxID); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.logs, sandboxID)
	return nil
}

// NetworkLogs implements [engine.NetworkLogger]. It leaves out those of nodes that are
// away: they can be neither read nor removed.
func (f *Fleet) NetworkLogs(ctx context.Context) ([]string, error) {
	var all []string
	if f.local != nil {
		if l, ok := f.local.local.(engine.NetworkLogger); ok {
			var err error
			if all, err = l.NetworkLogs(ctx); err != nil {
				return nil, err
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, s := range f.logs {
		if s.remote != nil {
			all = append(all, id)
		}
	}
	return all, nil
}
