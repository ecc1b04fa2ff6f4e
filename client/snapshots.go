package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Pause implements [sandbox.Snapshots].
func (c *Client) Pause(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Pause, nil, name)
}

// Resume implements [sandbox.Snapshots].
func (c *Client) Resume(ctx context.Context, name string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Resume, req, name)
}

// Fork implements [sandbox.Snapshots].
func (c *Client) Fork(ctx context.Context, name string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return get(ctx, c, operation.Fork, req, name)
}

// CreateSnapshot implements [sandbox.Snapshots].
func (c *Client) CreateSnapshot(ctx context.Context, name string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return get(ctx, c, operation.CreateSnapshot, req, name)
}

// GetSnapshot implements [sandbox.Snapshots].
func (c *Client) GetSnapshot(ctx context.Context, snapshot string) (*sandbox.Snapshot, error) {
	return get(ctx, c, operation.GetSnapshot, nil, snapshot)
}

// ListSnapshots implements [sandbox.Snapshots].
func (c *Client) ListSnapshots(ctx context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return get(ctx, c, operation.ListSnapshots, req)
}

// RestoreSnapshot implements [sandbox.Snapshots].
func (c *Client) RestoreSnapshot(ctx context.Context, name string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.RestoreSnapshot, req, name)
}

// DeleteSnapshot implements [sandbox.Snapshots].
func (c *Client) DeleteSnapshot(ctx context.Context, snapshot string) (*sandbox.Snapshot, error) {
	return get(ctx, c, operation.DeleteSnapshot, nil, snapshot)
}

// Diff implements [sandbox.Snapshots].
func (c *Client) Diff(ctx context.Context, subject string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return get(ctx, c, operation.Diff, req, subject)
}

// Merge implements [sandbox.Snapshots].
func (c *Client) Merge(ctx context.Context, parent string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return get(ctx, c, operation.Merge, req, parent)
}

// Try implements [sandbox.Snapshots].
func (c *Client) Try(ctx context.Context, name string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	last, err := stream(ctx, c, operation.Try.Info, req, func(l operation.TryLine) error {
		event := sandbox.TryEvent{Done: l.Done, Total: l.Total}
		if l.Attempt != nil {
			event.Attempt = *l.Attempt
		}
		return tell(sink, event)
	}, name)
	if err != nil {
		return nil, err
	}
	if last.Result == nil {
		return nil, c.foreign(nil)
	}
	return last.Result, nil
}
