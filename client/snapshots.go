package client

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

var errNotYet = sandbox.Errorf(sandbox.CodeUnsupported, "not there yet")

// Pause implements [sandbox.Snapshots].
func (c *Client) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// Resume implements [sandbox.Snapshots].
func (c *Client) Resume(ctx context.Context, ref string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// Fork implements [sandbox.Snapshots].
func (c *Client) Fork(ctx context.Context, ref string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return nil, errNotYet
}

// CreateSnapshot implements [sandbox.Snapshots].
func (c *Client) CreateSnapshot(ctx context.Context, ref string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// GetSnapshot implements [sandbox.Snapshots].
func (c *Client) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// ListSnapshots implements [sandbox.Snapshots].
func (c *Client) ListSnapshots(ctx context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return nil, errNotYet
}

// RestoreSnapshot implements [sandbox.Snapshots].
func (c *Client) RestoreSnapshot(ctx context.Context, ref string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// DeleteSnapshot implements [sandbox.Snapshots].
func (c *Client) DeleteSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// Diff implements [sandbox.Snapshots].
func (c *Client) Diff(ctx context.Context, ref string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return nil, errNotYet
}

// Merge implements [sandbox.Snapshots].
func (c *Client) Merge(ctx context.Context, ref string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return nil, errNotYet
}

// Try implements [sandbox.Snapshots].
func (c *Client) Try(ctx context.Context, ref string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return nil, errNotYet
}
