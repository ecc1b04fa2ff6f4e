package fleet

import (
	"context"
	"net"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// instance is an instance on a node, over whichever connection the node has.
type instance struct {
	f          *Fleet
	id         string
	site       *site
	unenforced []string
}

var (
	_ engine.Asking       = (*instance)(nil)
	_ engine.Prober       = (*instance)(nil)
	_ engine.DeletedMeter = (*instance)(nil)
)

func (i *instance) ID() string           { return i.id }
func (i *instance) Unenforced() []string { return i.unenforced }

// there returns the instance over the present connection.
func (i *instance) there(ctx context.Context) (engine.Asking, error) {
	_, e, err := i.f.at(i.id)
	if err != nil {
		return nil, err
	}
	far, err := e.Open(ctx, i.id)
	if err != nil {
		return nil, err
	}
	return far.(engine.Asking), nil
}

func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	far, err := i.there(ctx)
	if err != nil {
		return nil, err
	}
	return far.Dial(ctx)
}

func (i *instance) DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error) {
	far, err := i.there(ctx)
	if err != nil {
		return nil, err
	}
	return far.DialPort(ctx, port, loopback)
}

func (i *instance) Stats(ctx context.Context) (engine.Stats, error) {
	far, err := i.there(ctx)
	if err != nil {
		return engine.Stats{}, err
	}
	return far.Stats(ctx)
}

func (i *instance) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	far, err := i.there(ctx)
	if err != nil {
		return nil, err
	}
	return far.SetLimits(ctx, r)
}

func (i *instance) Probe(ctx context.Context) error {
	far, err := i.there(ctx)
	if err != nil {
		return err
	}
	return far.(engine.Prober).Probe(ctx)
}

func (i *instance) DeletedBytes(ctx context.Context) (map[string]int64, error) {
	far, err := i.there(ctx)
	if err != nil {
		return nil, err
	}
	return far.(engine.DeletedMeter).DeletedBytes(ctx)
}

func (i *instance) AnswerQuestion(ctx context.Context, id string, allow bool) error {
	far, err := i.there(ctx)
	if err != nil {
		return err
	}
	return far.AnswerQuestion(ctx, id, allow)
}

// SetNetwork records first whose network the instance has: its node may speak for that
// sandbox.
func (i *instance) SetNetwork(ctx context.Context, n engine.Network) error {
	far, err := i.there(ctx)
	if err != nil {
		return err
	}
	i.f.mu.Lock()
	switch known := i.f.instances[i.id]; {
	case known == nil || known.Sandbox == n.SandboxID:
	case known.site.givingUp:
		err = i.f.away(known.site)
	default:
		changed := *known
		changed.Sandbox = n.SandboxID
		err = i.f.setInstance(i.id, changed)
	}
	i.f.mu.Unlock()
	if err != nil {
		return err
	}
	return far.SetNetwork(ctx, n)
}
