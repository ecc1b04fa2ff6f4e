package control

import (
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// LoadInBackgroundOpts are options to LoadInBackground.
type LoadInBackgroundOpts struct {
	// Reads is how many reads of pages that nobody waits for may be in flight
	// from now on; if it is negative, nothing changes.
	Reads int `json:"reads"`

	// FilesOnly leaves the memory of programs out of these reads.
	FilesOnly bool `json:"files_only"`
}

// LoadInBackgroundResult is the result of LoadInBackground.
type LoadInBackgroundResult struct {
	// LeftBytes are to be loaded yet, MemoryBytes of them of programs' memory.
	LeftBytes   uint64 `json:"left_bytes"`
	MemoryBytes uint64 `json:"memory_bytes"`

	// Failures is how many reads have failed. After each there are no reads
	// that nobody waits for, until the next call.
	Failures uint64 `json:"failures"`
}

// LoadInBackground sets how fast the rest of a restored kernel's memory is
// loaded.
func (s *State) LoadInBackground(o *LoadInBackgroundOpts, r *LoadInBackgroundResult) error {
	left, err := pgalloc.LoadInBackground(o.Reads, s.Kernel.MemoryFile(), o.FilesOnly)
	*r = LoadInBackgroundResult{LeftBytes: left.LeftBytes, MemoryBytes: left.MainBytes, Failures: left.Failures}
	return err
}
