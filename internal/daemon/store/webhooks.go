package store

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// The states of a delivery; see [sandbox.Delivery].
const (
	DeliveryWaiting   = "waiting"
	DeliveryPending   = "pending"
	DeliveryDelivered = "delivered"
	DeliveryFailed    = "failed"
)

// Delivery is the attempt to tell a webhook, with what only the server knows
// of it.
type Delivery struct {
	sandbox.Delivery
	Team string
	// Sealed is what package vault made of the webhook's secret and headers;
	// nil if it has none.
	Sealed []byte
	// Body is what is sent; nil while the job runs.
	Body []byte
	// Until is when there is nothing to tell any more; nil is never.
	Until *time.Time
}

// DeliveryFilter selects deliveries. Zero fields select all.
type DeliveryFilter struct {
	Team      string
	SandboxID string
	// Open selects those that are waiting or pending.
	Open bool
}

// Deliveries is the record of webhooks.
type Deliveries interface {
	// CreateDelivery adds a record. If the sandbox or the team has as many that
	// are waiting or pending as it may, one more is quota_exceeded; 0 is no
	// bound.
	CreateDelivery(ctx context.Context, d Delivery, ofSandbox, ofTeam int) error
	// UpdateDelivery replaces what changes in the life of a record: State,
	// Attempts, Status, Error, NextAt, EndedAt and Body. Sealed is removed if it
	// is nil, and stays otherwise. One that is not there is not_found.
	UpdateDelivery(ctx context.Context, d Delivery) error
	// ResealDelivery replaces Sealed of a record that is there and has it.
	ResealDelivery(ctx context.Context, id string, sealed []byte) error
	// Delivery returns a record. One that is not there is not_found.
	Delivery(ctx context.Context, id string) (Delivery, error)
	// ListDeliveries returns one page, newest first, and the cursor of the
	// next.
	ListDeliveries(ctx context.Context, f DeliveryFilter, p sandbox.Page) ([]Delivery, string, error)
	// DeleteDelivery removes a record, if it is there.
	DeleteDelivery(ctx context.Context, id string) error
	// TrimDeliveries removes those that ended before a time, and says how many.
	TrimDeliveries(ctx context.Context, before time.Time) (int, error)
}
