package store

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// VolumeRecord is a volume with what only the server knows of it. Which
// sandboxes have it is told by their records.
type VolumeRecord struct {
	sandbox.Volume
	Team string
}

// Volumes is the record of volumes. Mounts of sandboxes and snapshots name them
// by their ids.
type Volumes interface {
	// CreateVolume adds a record. A name that another volume of the team has is
	// a conflict. If the team has max volumes, one more is quota_exceeded; 0 is
	// no bound.
	CreateVolume(ctx context.Context, r VolumeRecord, q Quota) error
	// Volume returns the record with this id.
	Volume(ctx context.Context, id string) (VolumeRecord, error)
	// VolumeByName returns the team's volume of this name.
	VolumeByName(ctx context.Context, team, name string) (VolumeRecord, error)
	// ListVolumes returns one page of a team's volumes, or of all for "", newest
	// first, and the cursor of the next.
	ListVolumes(ctx context.Context, team string, p sandbox.Page) ([]VolumeRecord, string, error)
	// MeasureVolume notes what a volume holds, if it is there.
	MeasureVolume(ctx context.Context, id string, usedBytes int64) error
	// DeleteVolume removes a record, if it is there. One that a sandbox which is
	// not ended, or a snapshot, has is a conflict.
	DeleteVolume(ctx context.Context, id string) error
}
