package webhooks

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/sandbox"
)

// deliveries is a store of deliveries that records for which sandboxes' jobs the queue
// waits.
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

// A webhook that is recorded before the list of the earlier process's deliveries is
// read is in that list too. Only the call that recorded it delivers it.
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

// closing is a store of deliveries that closes the service before anything is recorded.
type closing struct {
	store.Store
	close    func()
	recorded []store.Delivery
}

func (s *closing) UpdateDelivery(ctx context.Context, d store.Delivery) error {
	s.close()
	if ctx.Err() == nil {
		s.recorded = append(s.recorded, d)
	}
	return ctx.Err()
}

// A receiver's answer is recorded even though the service ends, so that the next start
// does not send it again.
func TestRecordsWhileEnding(t *testing.T) {
	for status, want := range map[int]string{http.StatusOK: store.DeliveryDelivered, http.StatusInternalServerError: store.DeliveryPending} {
		receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer receiver.Close()
		gate := call.NewGate(call.Config{})
		s := &closing{close: gate.Close}
		q := New(Config{Gate: gate, Store: s, Log: slog.New(slog.DiscardHandler), Sender: webhook.Config{AllowPrivate: true}})
		q.Deliver(&store.Delivery{Body: []byte("{}"), Delivery: sandbox.Delivery{ID: "whd-1", URL: receiver.URL, State: store.DeliveryPending}})
		gate.Wait()
		q.Close()
		if len(s.recorded) != 1 || s.recorded[0].State != want || s.recorded[0].Attempts != 1 {
			t.Errorf("after the answer %d, recorded are %+v", status, s.recorded)
		}
	}
}
