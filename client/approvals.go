package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// ListApprovals implements [sandbox.Approvals].
func (c *Client) ListApprovals(ctx context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return get(ctx, c, operation.ListApprovals, req)
}

// GetApproval implements [sandbox.Approvals].
func (c *Client) GetApproval(ctx context.Context, id string) (*sandbox.Approval, error) {
	return get(ctx, c, operation.GetApproval, nil, id)
}

// AnswerApproval implements [sandbox.Approvals].
func (c *Client) AnswerApproval(ctx context.Context, id string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	return get(ctx, c, operation.AnswerApproval, req, id)
}
