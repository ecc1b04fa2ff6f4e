package stateipc

import (
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

// ForkPatch tells users of this package that the module has Cove's patches,
// and which version of them.
func (*OpenResponse) ForkPatch() int { return 5 }

// backgroundOf returns how many reads that nobody waits for a file takes at a
// time, or nil if there is no bound.
func backgroundOf(ar stateio.AsyncReader) *int {
	if r, ok := ar.(pgalloc.BackgroundReader); ok {
		if n, bounded := r.BackgroundReads(); bounded {
			return &n
		}
	}
	return nil
}

// BackgroundReads implements pgalloc.BackgroundReader.
func (rw *asyncReadWriter) BackgroundReads() (int, bool) {
	if rw.background == nil {
		return 0, false
	}
	return *rw.background, true
}
