package service

import (
	"context"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

// CheckMachine implements [sandbox.Machine].
func (s *Service) CheckMachine(ctx context.Context) (*sandbox.MachineReport, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeAdmin), func(c *call.Call) (*sandbox.MachineReport, error) {
		if s.cfg.CheckMachine == nil {
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server does not report on its machine; run cove doctor there")
		}
		r := s.cfg.CheckMachine(c.Ctx)
		return &r, c.Ctx.Err()
	})
}
