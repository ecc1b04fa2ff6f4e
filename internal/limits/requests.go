package limits

import (
	"context"
	"time"
)

// Request is a request that its client may send again: it has a key that
// the client chose.
type Request struct {
	// Team and Key are what the record goes by.
	Team, Key string
	// Hash is of all that the request says.
	Hash []byte
	// Run is the run of the server that works on it; "" is none any more.
	Run       string
	CreatedAt time.Time
	// Answer is what the client was told; nil is nothing yet, or nothing that was
	// kept.
	Answer *Answer
}

// Answer is an answer that is given again.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        []byte
}

// RequestRetention is how long a request is remembered, and MaxRequests of how
// many of a team.
const (
	RequestRetention = 24 * time.Hour
	MaxRequests      = 10_000
)

// Requests is the record of requests that may come again.
type Requests interface {
	// BeginRequest adds a record if there is none of its team and key, and
	// returns nil; or else it returns the one that is there. One from before a
	// time counts as none. On a full disk it fails with unavailable.
	BeginRequest(ctx context.Context, r Request, before time.Time) (*Request, error)
	// AnswerRequest notes that nobody works on a record any more, if that is there,
	// and the answer, unless its status is 0.
	AnswerRequest(ctx context.Context, team, key string, a Answer) error
	// ForgetRequest removes a record, if it is there.
	ForgetRequest(ctx context.Context, team, key string) error
	// TrimRequests removes records from before a time, and the oldest of each team
	// over keep, and says how many.
	TrimRequests(ctx context.Context, before time.Time, keep int) (int, error)
}
