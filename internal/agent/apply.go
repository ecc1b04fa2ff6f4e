package agent

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/wire/agentv1"
)

// Apply implements [agentv1connect.AgentHandler].
func (a *Agent) Apply(context.Context, *connect.ClientStream[agentv1.ApplyRequest]) (*connect.Response[agentv1.ApplyResponse], error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("not there yet"))
}
