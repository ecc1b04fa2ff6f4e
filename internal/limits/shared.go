package limits

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

type sharedKey struct{}

// Share makes the requests of next share one budget, which [HoldBody] uses.
func (m *MemoryBudget) Share(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sharedKey{}, m)))
	})
}

// HoldBody is [MemoryBudget.Hold] with the budget that the request's handlers share, for
// the caller in its context; without such a budget it does nothing. The memory is
// returned when the request has ended. The error is that of Hold.
func HoldBody(r *http.Request) error {
	m, ok := r.Context().Value(sharedKey{}).(*MemoryBudget)
	if !ok {
		return nil
	}
	caller, _ := sandbox.CallerOf(r.Context())
	release, err := m.Hold(r, caller.Team+"\x00"+caller.KeyID)
	if err == nil {
		context.AfterFunc(r.Context(), release)
	}
	return err
}
