package events

import (
	"context"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Watch returns a store that adds to the log what is written to it: sandboxes,
// snapshots and builds. View turns a record into what callers see.
//
// It does not report times of last use, the removal of records long after their sandbox
// has ended, or ends of lifetimes that move with the machine's clock.
func Watch(s store.Store, log *Log, view func(store.Record) *sandbox.Sandbox) store.Store {
	return &watched{Store: s, log: log, view: view, writing: map[string]*writers{}}
}

type watched struct {
	store.Store
	log  *Log
	view func(store.Record) *sandbox.Sandbox

	mu      sync.Mutex
	writing map[string]*writers // guarded by mu; by the id of the record
}

// writers counts the concurrent writes of a record. A write that was not alone may not
// be the last one, so the record is read again before it is reported.
type writers struct {
	count    int
	together bool
}

// begin notes that records are about to be written.
func (w *watched) begin(ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		one := w.writing[id]
		if one == nil {
			one = &writers{}
			w.writing[id] = one
		}
		one.count++
		one.together = one.together || one.count > 1
	}
}

// end ends the write of a record and, if it was written, calls tell to report it. With
// again, tell must read the record first. Reports of a record never go back in time.
func (w *watched) end(id string, written bool, tell func(again bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.writing[id]
	if written {
		tell(one.together)
	}
	if one.count--; one.count == 0 {
		delete(w.writing, id)
	}
}

// sandbox ends the write of a sandbox.
func (w *watched) sandbox(ctx context.Context, r store.Record, err error) {
	w.end(r.ID, err == nil, func(again bool) {
		if again {
			if r, err = w.Store.Sandbox(context.WithoutCancel(ctx), r.ID); err != nil {
				return // it was deleted, which is reported too
			}
		}
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSandbox, SandboxID: r.ID, Sandbox: w.view(r)}})
	})
}

// CreateSandbox reports the sandbox.
func (w *watched) CreateSandbox(ctx context.Context, r store.Record, q store.Quota) error {
	w.begin(r.ID)
	err := w.Store.CreateSandbox(ctx, r, q)
	w.sandbox(ctx, r, err)
	return err
}

// CreateSandboxes reports each sandbox.
func (w *watched) CreateSandboxes(ctx context.Context, records []store.Record, q store.Quota) error {
	for i := range records {
		w.begin(records[i].ID)
	}
	err := w.Store.CreateSandboxes(ctx, records, q)
	for i := range records {
		w.sandbox(ctx, records[i], err)
	}
	return err
}

// UpdateSandbox reports the sandbox.
func (w *watched) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	w.begin(id)
	r, err := w.Store.UpdateSandbox(ctx, id, c)
	told := r
	told.ID = id
	w.sandbox(ctx, told, err)
	return r, err
}

// UpdateSandboxes reports each sandbox, in the order of ids.
func (w *watched) UpdateSandboxes(ctx context.Context, ids []string, apply func(map[string]*store.Record) error) (map[string]store.Record, error) {
	w.begin(ids...)
	records, err := w.Store.UpdateSandboxes(ctx, ids, apply)
	for _, id := range ids {
		r := records[id]
		r.ID = id
		w.sandbox(ctx, r, err)
	}
	return records, err
}

// DeleteSandbox reports that the record is gone.
func (w *watched) DeleteSandbox(ctx context.Context, id string) error {
	r, found := w.Store.Sandbox(ctx, id)
	w.begin(id)
	err := w.Store.DeleteSandbox(ctx, id)
	w.end(id, err == nil && found == nil, func(bool) {
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSandboxDeleted, SandboxID: id}})
	})
	return err
}

// CreateSnapshot reports the snapshot.
func (w *watched) CreateSnapshot(ctx context.Context, r store.SnapshotRecord, q store.Quota) error {
	w.begin(r.ID)
	err := w.Store.CreateSnapshot(ctx, r, q)
	w.end(r.ID, err == nil, func(again bool) {
		if again {
			if _, err := w.Store.Snapshot(context.WithoutCancel(ctx), r.ID); err != nil {
				return // it was deleted, which is reported too
			}
		}
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSnapshot, SandboxID: r.SandboxID, SnapshotID: r.ID, Snapshot: &r.Snapshot}})
	})
	return err
}

// DeleteSnapshot reports that the snapshot is gone.
func (w *watched) DeleteSnapshot(ctx context.Context, id string) error {
	r, found := w.Store.Snapshot(ctx, id)
	w.begin(id)
	err := w.Store.DeleteSnapshot(ctx, id)
	w.end(id, err == nil && found == nil, func(bool) {
		w.log.Add(Entry{Team: r.Team, Namespace: r.Namespace, Event: sandbox.Event{Kind: sandbox.EventSnapshotDeleted, SandboxID: r.SandboxID, SnapshotID: id}})
	})
	return err
}

// CreateBuild reports the build.
func (w *watched) CreateBuild(ctx context.Context, b store.BuildRecord) error {
	w.begin(b.ID)
	err := w.Store.CreateBuild(ctx, b)
	w.build(ctx, b, err)
	return err
}

// UpdateBuild reports the build.
func (w *watched) UpdateBuild(ctx context.Context, b store.BuildRecord) error {
	w.begin(b.ID)
	err := w.Store.UpdateBuild(ctx, b)
	w.build(ctx, b, err)
	return err
}

// build ends the write of a build.
func (w *watched) build(ctx context.Context, b store.BuildRecord, err error) {
	w.end(b.ID, err == nil, func(again bool) {
		if again {
			if b, err = w.Store.Build(context.WithoutCancel(ctx), b.ID); err != nil {
				return
			}
		}
		w.log.Add(Entry{Event: sandbox.Event{Kind: sandbox.EventBuild, Build: &b.Build}})
	})
}
