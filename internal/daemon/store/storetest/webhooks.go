package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func delivery(id, sandboxID string) store.Delivery {
	return store.Delivery{
		Delivery: sandbox.Delivery{ID: id, SandboxID: sandboxID, JobID: "job-" + id, URL: "https://example.com/" + id, State: store.DeliveryWaiting, CreatedAt: epoch},
		Team:     "red",
	}
}

func testDeliveries(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	d := delivery("whd-1", "sbx-1")
	d.Sealed, d.ApprovalID, d.Until = []byte{1, 0, 255}, "apr-1", at(time.Hour)
	if err := s.CreateDelivery(ctx, d, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateDelivery(ctx, d, 0, 0); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a second of one id: got %v", err)
	}
	if err := s.UpdateDelivery(ctx, delivery("whd-none", "sbx-1")); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("an update of none: got %v", err)
	}
	d.State, d.Attempts, d.Status, d.Error, d.Body, d.NextAt = store.DeliveryPending, 2, 500, "the receiver answered 500", []byte(`{"a":"ü"}`), at(time.Minute)
	if err := s.UpdateDelivery(ctx, d); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t)
	list := func(f store.DeliveryFilter) []store.Delivery {
		t.Helper()
		all, _, err := s.ListDeliveries(ctx, f, sandbox.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if diff := cmp.Diff([]store.Delivery{d}, list(store.DeliveryFilter{SandboxID: "sbx-1", Team: "red", Open: true})); diff != "" {
		t.Error(diff)
	}
	if n := len(list(store.DeliveryFilter{Team: "blue"})) + len(list(store.DeliveryFilter{SandboxID: "sbx-2"})); n != 0 {
		t.Errorf("others see %d", n)
	}
	// Whoever updates one does not undo that it was sealed again meanwhile.
	old := d
	d.Sealed = []byte{2, 0, 254}
	for _, id := range []string{d.ID, "whd-none"} {
		if err := s.ResealDelivery(ctx, id, d.Sealed); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.UpdateDelivery(ctx, old); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.Delivery{d}, list(store.DeliveryFilter{})); diff != "" {
		t.Error(diff)
	}
	one, err := s.Delivery(ctx, d.ID)
	if diff := cmp.Diff(d, one); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := s.Delivery(ctx, "whd-none"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("one that is not there: %v", err)
	}
	d.State, d.NextAt, d.EndedAt, d.Sealed = store.DeliveryDelivered, nil, at(time.Hour), nil
	if err := s.UpdateDelivery(ctx, d); err != nil {
		t.Fatal(err)
	}
	if err := s.ResealDelivery(ctx, d.ID, []byte{3}); err != nil {
		t.Fatal(err)
	}
	if n := len(list(store.DeliveryFilter{Open: true})); n != 0 {
		t.Errorf("%d are open after the end", n)
	}
	if diff := cmp.Diff([]store.Delivery{d}, list(store.DeliveryFilter{})); diff != "" {
		t.Error(diff)
	}
	for _, step := range []struct {
		before time.Time
		want   int
	}{{*at(time.Hour), 0}, {*at(2 * time.Hour), 1}} {
		if n, err := s.TrimDeliveries(ctx, step.before); err != nil || n != step.want {
			t.Errorf("trimmed %d, %v; want %d", n, err, step.want)
		}
	}
}

func testDeliveryQuota(t *testing.T, open Opener) {
	s, ctx := open(t), t.Context()
	for i := range 3 {
		if err := s.CreateDelivery(ctx, delivery(fmt.Sprint("whd-", i), "sbx-1"), 3, 4); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CreateDelivery(ctx, delivery("whd-3", "sbx-1"), 3, 4); sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
		t.Errorf("one too many: got %v", err)
	}
	if err := s.CreateDelivery(ctx, delivery("whd-4", "sbx-2"), 3, 4); err != nil {
		t.Errorf("of another sandbox: %v", err)
	}
	if err := s.CreateDelivery(ctx, delivery("whd-5", "sbx-3"), 3, 4); sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded {
		t.Errorf("one too many of the team: got %v", err)
	}
	blue := delivery("whd-6", "sbx-4")
	blue.Team = "blue"
	if err := s.CreateDelivery(ctx, blue, 3, 4); err != nil {
		t.Errorf("of another team: %v", err)
	}
	ended := delivery("whd-0", "sbx-1")
	ended.State, ended.EndedAt = store.DeliveryFailed, at(0)
	if err := s.UpdateDelivery(ctx, ended); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateDelivery(ctx, delivery("whd-3", "sbx-1"), 3, 4); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if err := s.DeleteDelivery(ctx, "whd-3"); err != nil {
		t.Fatal(err)
	}
	all, next, err := s.ListDeliveries(ctx, store.DeliveryFilter{SandboxID: "sbx-1"}, sandbox.Page{Limit: 2})
	if err != nil || len(all) != 2 || next == "" {
		t.Fatalf("got %d, %q, %v", len(all), next, err)
	}
	rest, next, err := s.ListDeliveries(ctx, store.DeliveryFilter{SandboxID: "sbx-1"}, sandbox.Page{Limit: 2, Cursor: next})
	if err != nil || len(rest) != 1 || next != "" {
		t.Errorf("got %d, %q, %v", len(rest), next, err)
	}
}
