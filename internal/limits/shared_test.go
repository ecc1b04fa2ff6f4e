package limits

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// TestShare checks that handlers that share a budget hold it until their requests end,
// each caller its part.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const body = 1 << 20
		m := NewMemoryBudget(MemoryBudgetConfig{Total: 3 * body, PerCaller: body, MaxBody: body, Wait: time.Second, ReadTimeout: time.Minute})
		var got error
		handler := m.Share(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = HoldBody(r) }))
		ask := func(key string) (end func()) {
			ctx, cancel := context.WithCancel(sandbox.WithCaller(t.Context(), sandbox.Caller{Team: "red", KeyID: key}))
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(strings.Repeat("x", body)))
			handler.ServeHTTP(httptest.NewRecorder(), r)
			return cancel
		}
		end := ask("a")
		if got != nil {
			t.Fatal(got)
		}
		if ask("a")(); !errors.Is(got, ErrBusy) {
			t.Errorf("one caller holds more than their part: %v", got)
		}
		other := ask("b")
		defer other()
		if got != nil {
			t.Errorf("another caller: %v", got)
		}
		end()
		synctest.Wait()
		if ask("a")(); got != nil {
			t.Errorf("after the request's end: %v", got)
		}
	})
}

func TestHoldBodyWithoutBudget(t *testing.T) {
	if err := HoldBody(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 1<<20)))); err != nil {
		t.Error(err)
	}
}
