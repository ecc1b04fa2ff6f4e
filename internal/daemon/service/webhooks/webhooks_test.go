package webhooks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// deliveries is a store of deliveries that notes whose job is waited for.
type deliveries struct {
	store.Store

	mu     sync.Mutex
	all    []store.Delivery // guarded by mu
	waited []string         // ids of sandboxes; guarded by mu
}

func (s *deliveries) CreateDelivery(_ context.Context, d store.Delivery, _, _ int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, d)
	return nil
}

func (s *deliveries) ListDeliveries(context.Context, store.DeliveryFilter, sandbox.Page) ([]store.Delivery, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all), "", nil
}

func (s *deliveries) Sandbox(ctx context.Context, id string) (store.Record, error) {
	s.mu.Lock()
	s.waited = append(s.waited, id)
	s.mu.Unlock()
	<-ctx.Done()
	return store.Record{}, ctx.Err()
}

// A webhook that is recorded before those of the earlier process are listed is in
// that list too. Only the call that recorded it delivers it.
func TestResumeLeavesOwn(t *testing.T) {
	s := &deliveries{all: []store.Delivery{{Delivery: sandbox.Delivery{ID: "whd-1", SandboxID: "sbx-earlier", State: store.DeliveryWaiting}}}}
	gate := call.NewGate(call.Config{})
	q := New(Config{Gate: gate, Store: s, Log: slog.New(slog.DiscardHandler), Sealing: new(sync.Mutex)})
	defer q.Close()
	d, err := q.Record(&call.Call{Ctx: t.Context(), SandboxID: "sbx-own"}, "job-1", &sandbox.Webhook{URL: "https://example.com"})
	if err != nil {
		t.Fatal(err)
	}
	q.resume()
	q.Deliver(d)
	gate.Close()
	gate.Wait()
	slices.Sort(s.waited)
	if want := []string{"sbx-earlier", "sbx-own"}; !slices.Equal(s.waited, want) {
		t.Errorf("the jobs of %v are waited for, want %v", s.waited, want)
	}
}
