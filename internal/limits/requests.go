package limits

import (
	"context"
	"time"
)

// Request is a request with an idempotency key, so that its client may send it again.
type Request struct {
	// Team and Key identify the record.
	Team, Key string
	// Hash is the hash of the whole request.
	Hash []byte
	// Run is the run of the server that is processing the request; "" means that none is.
	Run       string
	CreatedAt time.Time
	// Answer is the response that the client got; nil if there is none yet, or if none was
	// kept.
	Answer *Answer
}

// Answer is a response that is sent again for a repeated request.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        []byte
}

// RequestRetention is how long a request is remembered, and MaxRequests is how many
// requests of a team are remembered.
const (
	RequestRetention = 24 * time.Hour
	MaxRequests      = 10_000
)

// Requests stores requests with idempotency keys.
type Requests interface {
	// BeginRequest adds a record and returns nil, unless the team has a record with that
	// key, which it then returns. A record older than before counts as absent. On a full
	// disk the error is unavailable.
	BeginRequest(ctx context.Context, r Request, before time.Time) (*Request, error)
	// AnswerRequest records that the request is no longer being processed and, unless a's
	// status is 0, the answer. Without such a record, AnswerRequest does nothing.
	AnswerRequest(ctx context.Context, team, key string, a Answer) error
	// ForgetRequest removes a record. It is not an error if there is none.
	ForgetRequest(ctx context.Context, team, key string) error
	// TrimRequests removes the records older than before and, for each team, the oldest in
	// excess of keep. It returns how many it removed.
	TrimRequests(ctx context.Context, before time.Time, keep int) (int, error)
}
