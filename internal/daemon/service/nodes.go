package service

import (
	"context"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

// Nodes are the machines of a server; see [sandbox.Nodes].
type Nodes interface {
	Nodes(ctx context.Context) []sandbox.Node
	CreateToken() (*sandbox.JoinToken, error)
	Drain(node string, drain bool) (sandbox.Node, error)
	Remove(node string) error
}

// ListNodes implements [sandbox.Nodes].
func (s *Service) ListNodes(ctx context.Context) (*sandbox.List[sandbox.Node], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeAdmin), func(c *call.Call) (*sandbox.List[sandbox.Node], error) {
		list := &sandbox.List[sandbox.Node]{Items: []sandbox.Node{}}
		if s.cfg.Nodes != nil {
			list.Items = s.cfg.Nodes.Nodes(c.Ctx)
		}
		return list, nil
	})
}

// nodes returns the nodes, which this server may not have.
func (s *Service) nodes() (Nodes, error) {
	if s.cfg.Nodes == nil {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server takes no nodes; start it with --nodes HOST:PORT")
	}
	return s.cfg.Nodes, nil
}

// CreateJoinToken implements [sandbox.Nodes].
func (s *Service) CreateJoinToken(ctx context.Context) (*sandbox.JoinToken, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "node.token"), func(*call.Call) (*sandbox.JoinToken, error) {
		n, err := s.nodes()
		if err != nil {
			return nil, err
		}
		return n.CreateToken()
	})
}

// DrainNode implements [sandbox.Nodes].
func (s *Service) DrainNode(ctx context.Context, node string) (*sandbox.Node, error) {
	return s.drain(ctx, "node.drain", node, true)
}

// UndrainNode implements [sandbox.Nodes].
func (s *Service) UndrainNode(ctx context.Context, node string) (*sandbox.Node, error) {
	return s.drain(ctx, "node.undrain", node, false)
}

func (s *Service) drain(ctx context.Context, action, node string, drain bool) (*sandbox.Node, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, action), func(c *call.Call) (*sandbox.Node, error) {
		c.Detail = node
		n, err := s.nodes()
		if err != nil {
			return nil, err
		}
		changed, err := n.Drain(node, drain)
		return &changed, err
	})
}

// RemoveNode implements [sandbox.Nodes].
func (s *Service) RemoveNode(ctx context.Context, node string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "node.remove"), func(c *call.Call) error {
		c.Detail = node
		n, err := s.nodes()
		if err != nil {
			return err
		}
		return n.Remove(node)
	})
}
