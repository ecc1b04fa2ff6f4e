package control

import (
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// LoadInBackgroundOpts are options to LoadInBackground.
type LoadInBackgroundOpts struct {
	// Reads is how many reads of pages that nobody waits for may be in flight
	// from now on; if it is negative, nothing changes.
	Reads int `json:"reads"`
}

// LoadInBackgroundResult is the result of LoadInBackground.
type LoadInBackgroundResult struct {
	// LeftBytes are to be loaded yet.
	LeftBytes uint64 `json:"left_bytes"`
}

// LoadInBackground sets how fast the rest of a restored kernel's memory is
// loaded.
func (s *State) LoadInBackground(o *LoadInBackgroundOpts, r *LoadInBackgroundResult) (err error) {
	r.LeftBytes, err = pgalloc.LoadInBackground(o.Reads)
	return err
}
