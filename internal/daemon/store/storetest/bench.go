package storetest

import (
	"fmt"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// BenchmarkCreate measures what a store does of "create": a record under a quota, and
// its change to running. The team has a hundred other sandboxes.
func BenchmarkCreate(b *testing.B, s store.Store) {
	q := store.Quota{Sandboxes: 1_000_000, VCPUs: 1_000_000, MemoryMiB: 1 << 40}
	create := func(id string) {
		r := full(id)
		r.State = sandbox.StateCreating
		if err := s.CreateSandbox(b.Context(), r, q); err != nil {
			b.Fatal(err)
		}
		if _, err := s.UpdateSandbox(b.Context(), id, store.Change{Apply: setState(sandbox.StateRunning)}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 100 {
		create(fmt.Sprintf("other-%d", i))
	}
	n := 0
	for b.Loop() {
		id := fmt.Sprintf("sbx-%d", n)
		create(id)
		b.StopTimer() // the team stays as large as it was
		if err := s.DeleteSandbox(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		n++
	}
}
