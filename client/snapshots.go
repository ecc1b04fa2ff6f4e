package client

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// Pause implements [sandbox.Snapshots].
func (c *Client) Pause(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/pause", name), nil)
}

// Resume implements [sandbox.Snapshots].
func (c *Client) Resume(ctx context.Context, name string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/resume", name), req)
}

// Fork implements [sandbox.Snapshots].
func (c *Client) Fork(ctx context.Context, name string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return create[sandbox.List[sandbox.Sandbox]](ctx, c, c.path("/v1/sandboxes/%/fork", name), req)
}

// CreateSnapshot implements [sandbox.Snapshots].
func (c *Client) CreateSnapshot(ctx context.Context, name string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return create[sandbox.Snapshot](ctx, c, c.path("/v1/sandboxes/%/snapshots", name), req)
}

// GetSnapshot implements [sandbox.Snapshots].
func (c *Client) GetSnapshot(ctx context.Context, snapshot string) (*sandbox.Snapshot, error) {
	return get[sandbox.Snapshot](ctx, c, http.MethodGet, c.path("/v1/snapshots/%", snapshot), nil)
}

// ListSnapshots implements [sandbox.Snapshots].
func (c *Client) ListSnapshots(ctx context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	e := c.path("/v1/snapshots").page(req.Page).with("sandbox", req.Sandbox).with("automatic", flag(req.Automatic))
	return get[sandbox.List[sandbox.Snapshot]](ctx, c, http.MethodGet, e, nil)
}

// RestoreSnapshot implements [sandbox.Snapshots].
func (c *Client) RestoreSnapshot(ctx context.Context, name string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/restore", name), req)
}

// DeleteSnapshot implements [sandbox.Snapshots].
func (c *Client) DeleteSnapshot(ctx context.Context, snapshot string) (*sandbox.Snapshot, error) {
	return get[sandbox.Snapshot](ctx, c, http.MethodDelete, c.path("/v1/snapshots/%", snapshot), nil)
}

// Diff implements [sandbox.Snapshots].
func (c *Client) Diff(ctx context.Context, subject string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return get[sandbox.Diff](ctx, c, http.MethodPost, c.path("/v1/diff/%", subject), req)
}

// Merge implements [sandbox.Snapshots].
func (c *Client) Merge(ctx context.Context, parent string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return create[sandbox.MergeResult](ctx, c, c.path("/v1/sandboxes/%/merge", parent), req)
}

// tryLine is one line of the stream of a try.
type tryLine struct {
	sandbox.TryEvent
	Result *sandbox.TryResult `json:"result"`
	ending
}

// Try implements [sandbox.Snapshots].
func (c *Client) Try(ctx context.Context, name string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	var result *sandbox.TryResult
	err := stream(ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/try", name), req, func(l tryLine) (ending, error) {
		if l.Final {
			result = l.Result
		} else if l.Error == nil && sink != nil {
			return l.ending, sink(l.TryEvent)
		}
		return l.ending, nil
	})
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the answer of %s is not Cove's; check the URL", c.where)
	}
	return result, nil
}
