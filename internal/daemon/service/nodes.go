package service

import (
	"context"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Nodes are the machines of a server; see [sandbox.Nodes].
type Nodes interface {
	Nodes(ctx context.Context) []sandbox.Node
	CreateToken() (*sandbox.JoinToken, error)
	// Drain keeps new sandboxes from a node, or takes them again if req is nil. That sandboxes
	// move is only noted.
	Drain(node string, req *sandbox.DrainRequest) (sandbox.Node, error)
	// Moving returns the nodes whose sandboxes are to move, and how.
	Moving() map[string]sandbox.DrainRequest
	// Leave drains a node that stops, and notes that its sandboxes move; Return undoes that,
	// and reports whether there was something to undo.
	Leave(node string) error
	Return(node string) (bool, error)
	Remove(node string) error
}

// ListNodes implements [sandbox.Nodes].
func (s *Service) ListNodes(ctx context.Context) (*sandbox.List[sandbox.Node], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeAdmin), func(c *call.Call) (*sandbox.List[sandbox.Node], error) {
		list := &sandbox.List[sandbox.Node]{Items: []sandbox.Node{}}
		if s.cfg.Nodes != nil {
			list.Items = s.cfg.Nodes.Nodes(c.Ctx)
			for i := range list.Items {
				list.Items[i].Move = s.moves.progress(list.Items[i].Name)
			}
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
func (s *Service) DrainNode(ctx context.Context, node string, req sandbox.DrainRequest) (*sandbox.Node, error) {
	return s.drain(ctx, "node.drain", node, &req)
}

// UndrainNode implements [sandbox.Nodes].
func (s *Service) UndrainNode(ctx context.Context, node string) (*sandbox.Node, error) {
	return s.drain(ctx, "node.undrain", node, nil)
}

func (s *Service) drain(ctx context.Context, action, node string, req *sandbox.DrainRequest) (*sandbox.Node, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, action), func(c *call.Call) (*sandbox.Node, error) {
		c.Detail = node
		n, err := s.nodes()
		if err == nil && req != nil {
			err = s.checkDrain(req)
		}
		if err != nil {
			return nil, err
		}
		if req != nil && req.Move {
			c.Detail += ", moving its sandboxes"
		}
		changed, err := n.Drain(node, req)
		if err != nil {
			return nil, err
		}
		s.beginMoves()
		changed.Move = s.moves.progress(node)
		return &changed, nil
	})
}

func (s *Service) checkDrain(req *sandbox.DrainRequest) error {
	if req.Resume && !req.Move {
		return validate.Errorf("resume is for sandboxes that move; set move too")
	}
	if _, ok := s.cfg.Engine.(engine.Replicator); req.Move && !ok {
		return sandbox.Errorf(sandbox.CodeUnsupported, "sandboxes can only move between nodes if the server has an object store; start it with --objects, or drain the node without moving")
	}
	return nil
}

// LeaveNode moves the sandboxes of a node that stops, at its own request, and returns how far
// that is. It may be repeated.
func (s *Service) LeaveNode(_ context.Context, node string) (*sandbox.NodeMove, error) {
	if err := s.checkDrain(&sandbox.DrainRequest{Move: true}); err != nil {
		return nil, err
	}
	if s.moves.progress(node) == nil {
		if err := s.cfg.Nodes.Leave(node); err != nil {
			return nil, err
		}
		s.log.Info("node stops; its sandboxes move", "node", node)
		s.beginMoves()
	}
	if m := s.moves.progress(node); m != nil {
		return m, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeConflict, "node %s is to take sandboxes again", node)
}

// ReturnNode says that a node has started again: one that was drained because it stopped
// takes sandboxes again.
func (s *Service) ReturnNode(_ context.Context, node string) error {
	changed, err := s.cfg.Nodes.Return(node)
	if changed && err == nil {
		s.beginMoves()
	}
	return err
}

// NodeRemoved says that a node is gone: nothing moves from it any more.
func (s *Service) NodeRemoved() { s.beginMoves() }

// RemoveNode implements [sandbox.Nodes].
func (s *Service) RemoveNode(ctx context.Context, node string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "node.remove"), func(c *call.Call) error {
		c.Detail = node
		n, err := s.nodes()
		if err != nil {
			return err
		}
		if err := n.Remove(node); err != nil {
			return err
		}
		s.beginMoves()
		return nil
	})
}
