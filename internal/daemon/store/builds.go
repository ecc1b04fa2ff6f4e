package store

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// BuildRecord is a build of a template with what only the server knows of it.
type BuildRecord struct {
	sandbox.Build
	// Team is whose quota it counts against.
	Team string
}

// BuildFilter selects builds. Zero fields select all.
type BuildFilter struct {
	Template string
	// Running selects those that have not ended.
	Running bool
}

// Builds is the record of builds.
type Builds interface {
	// CreateBuild adds a record.
	CreateBuild(ctx context.Context, b BuildRecord) error
	// UpdateBuild replaces what changes in the life of a record: State, Reason,
	// Step, Fraction, Version and EndedAt. One that is not there is not_found.
	UpdateBuild(ctx context.Context, b BuildRecord) error
	// Build returns the record with this id.
	Build(ctx context.Context, id string) (BuildRecord, error)
	// ListBuilds returns one page, newest first, and the cursor of the next.
	ListBuilds(ctx context.Context, f BuildFilter, p sandbox.Page) ([]BuildRecord, string, error)
	// TrimBuilds removes those that ended before a time, and returns their ids.
	TrimBuilds(ctx context.Context, before time.Time) ([]string, error)
}
