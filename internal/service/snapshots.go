package service

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

var errNotYet = sandbox.Errorf(sandbox.CodeUnsupported, "not there yet")

// Pause implements [sandbox.Snapshots].
func (s *Service) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// Resume implements [sandbox.Snapshots].
func (s *Service) Resume(ctx context.Context, ref string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// Fork implements [sandbox.Snapshots].
func (s *Service) Fork(ctx context.Context, ref string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return nil, errNotYet
}

// CreateSnapshot implements [sandbox.Snapshots].
func (s *Service) CreateSnapshot(ctx context.Context, ref string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// GetSnapshot implements [sandbox.Snapshots].
func (s *Service) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// ListSnapshots implements [sandbox.Snapshots].
func (s *Service) ListSnapshots(ctx context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return nil, errNotYet
}

// RestoreSnapshot implements [sandbox.Snapshots].
func (s *Service) RestoreSnapshot(ctx context.Context, ref string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return nil, errNotYet
}

// DeleteSnapshot implements [sandbox.Snapshots].
func (s *Service) DeleteSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return nil, errNotYet
}

// Diff implements [sandbox.Snapshots].
func (s *Service) Diff(ctx context.Context, ref string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return nil, errNotYet
}

// Merge implements [sandbox.Snapshots].
func (s *Service) Merge(ctx context.Context, ref string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return nil, errNotYet
}

// Try implements [sandbox.Snapshots].
func (s *Service) Try(ctx context.Context, ref string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	return nil, errNotYet
}
