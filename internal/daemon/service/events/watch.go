package events

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Watch returns a store that tells the log of what is written to it: sandboxes,
// snapshots and builds. View makes of a record what callers see.
//
// Times of last use are not told, nor records that are removed long after their
// sandbox has ended, nor ends of lifetimes that move with the machine's clock.
func Watch(s store.Store, log *Log, view func(store.Record) *sandbox.Sandbox) store.Store {
	return &watched{Store: s, log: log, view: view, seed: maphash.MakeSeed()}
}

type watched struct {
	store.Store
	log  *Log
	view func(store.Record) *sandbox.Sandbox
	// order has writes of the same record told in the order in which they are written.
	order [64]sync.Mutex
	seed  maphash.Seed
}

// lock holds back other writes of the same records.
func (w *watched) lock(ids ...string) (unlock func()) {
	var places []int
	for _, id := range ids {
		places = append(places, int(maphash.String(w.seed, id)%uint64(len(w.order))))
	}
	slices.Sort(places)
	places = slices.Compact(places)
	for _, i := range places {
		w.order[i].Lock()
	}
	return func() {
		for _, i := range places {
			w.order[i].Unlock()
		}
	}
}

func (w *watched) changed(r store.Record) {
	w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSandbox, SandboxID: r.ID, Sandbox: w.view(r)}})
}

// CreateSandbox tells of the sandbox.
func (w *watched) CreateSandbox(ctx context.Context, r store.Record, q store.Quota) error {
	defer w.lock(r.ID)()
	err := w.Store.CreateSandbox(ctx, r, q)
	if err == nil {
		w.changed(r)
	}
	return err
}

// CreateSandboxes tells of each sandbox.
func (w *watched) CreateSandboxes(ctx context.Context, records []store.Record, q store.Quota) error {
	var ids []string
	for i := range records {
		ids = append(ids, records[i].ID)
	}
	defer w.lock(ids...)()
	err := w.Store.CreateSandboxes(ctx, records, q)
	if err == nil {
		for i := range records {
			w.changed(records[i])
		}
	}
	return err
}

// UpdateSandbox tells of the sandbox.
func (w *watched) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	defer w.lock(id)()
	r, err := w.Store.UpdateSandbox(ctx, id, c)
	if err == nil {
		w.changed(r)
	}
	return r, err
}

// UpdateSandboxes tells of each sandbox, in the order of ids.
func (w *watched) UpdateSandboxes(ctx context.Context, ids []string, apply func(map[string]*store.Record) error) (map[string]store.Record, error) {
	defer w.lock(ids...)()
	records, err := w.Store.UpdateSandboxes(ctx, ids, apply)
	if err == nil {
		for _, id := range ids {
			if r, ok := records[id]; ok {
				w.changed(r)
			}
		}
	}
	return records, err
}

// DeleteSandbox tells that the record is gone.
func (w *watched) DeleteSandbox(ctx context.Context, id string) error {
	defer w.lock(id)()
	r, found := w.Store.Sandbox(ctx, id)
	err := w.Store.DeleteSandbox(ctx, id)
	if err == nil && found == nil {
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSandboxDeleted, SandboxID: id}})
	}
	return err
}

// CreateSnapshot tells of the snapshot.
func (w *watched) CreateSnapshot(ctx context.Context, r store.SnapshotRecord, q store.Quota) error {
	defer w.lock(r.ID)()
	err := w.Store.CreateSnapshot(ctx, r, q)
	if err == nil {
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSnapshot, SandboxID: r.SandboxID, SnapshotID: r.ID, Snapshot: &r.Snapshot}})
	}
	return err
}

// DeleteSnapshot tells that the snapshot is gone.
func (w *watched) DeleteSnapshot(ctx context.Context, id string) error {
	defer w.lock(id)()
	r, found := w.Store.Snapshot(ctx, id)
	err := w.Store.DeleteSnapshot(ctx, id)
	if err == nil && found == nil {
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSnapshotDeleted, SandboxID: r.SandboxID, SnapshotID: id}})
	}
	return err
}

// CreateBuild tells of the build.
func (w *watched) CreateBuild(ctx context.Context, b store.BuildRecord) error {
	defer w.lock(b.ID)()
	err := w.Store.CreateBuild(ctx, b)
	if err == nil {
		w.built(b)
	}
	return err
}

// UpdateBuild tells of the build.
func (w *watched) UpdateBuild(ctx context.Context, b store.BuildRecord) error {
	defer w.lock(b.ID)()
	err := w.Store.UpdateBuild(ctx, b)
	if err == nil {
		w.built(b)
	}
	return err
}

func (w *watched) built(b store.BuildRecord) {
	w.log.Add(Entry{Event: sandbox.Event{Kind: sandbox.EventBuild, Build: &b.Build}})
}
