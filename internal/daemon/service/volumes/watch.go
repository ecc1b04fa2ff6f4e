package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// measureEvery is how often writable volumes in use are measured, unless that takes
	// too long; see measureShare.
	measureEvery = 3 * time.Second
	// measureShare bounds the time spent on measuring, to one part in this many.
	measureShare = 10
	// overfull is how many times its size a volume may hold before the sandboxes that
	// can write to it are ended.
	overfull = 2
)

// usage is what a volume held when it was last measured.
type usage struct {
	name       string
	used, size int64
	// blind says that not all of the volume could be measured.
	blind bool
}

// full reports whether no more sandboxes that can write may mount the volume, and over
// whether those that can write are ended.
func (f usage) full() bool { return f.used > f.size || f.blind }
func (f usage) over() bool { return f.used > overfull*f.size || f.blind }

func (f usage) String() string {
	if f.blind {
		return "it has directories that cannot be measured, because they are not readable or too deeply nested"
	}
	return fmt.Sprintf("it holds %d of %d MiB", f.used>>20, f.size>>20)
}

// usages has the last measurement of each volume.
type usages struct {
	mu sync.Mutex
	by map[string]usage // by id; guarded by mu
}

func (f *usages) note(id string, now usage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]usage{}
	}
	f.by[id] = now
}

func (f *usages) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.by, id)
}

func (f *usages) of(id string) (usage, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, ok := f.by[id]
	return now, ok
}

// Run measures volumes that sandboxes can write to, until the service ends.
func (vs *Volumes) Run() {
	wait := measureEvery
	for {
		t := time.NewTimer(wait)
		select {
		case <-vs.cfg.Gate.Context().Done():
			t.Stop()
			return
		case <-t.C:
		}
		began := time.Now()
		if err := vs.Watch(vs.cfg.Gate.Context()); err != nil && vs.cfg.Gate.Context().Err() == nil {
			vs.cfg.Log.Error("measure volumes", "error", err)
		}
		wait = max(measureEvery, measureShare*time.Since(began))
	}
}

// Watch measures the volumes that running sandboxes can write to, and ends the writers
// of those that are far over their size. Every other way to enforce the size needs
// rights over the host's file systems.
func (vs *Volumes) Watch(ctx context.Context) error {
	if vs.cfg.Dir == nil {
		return nil
	}
	writers := map[string][]store.Record{}
	f := store.SandboxFilter{Mounted: true, States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning}}
	err := vs.each(ctx, f, func(r *store.Record) {
		for _, m := range r.Mounts {
			if m.Volume != "" && !m.ReadOnly {
				writers[m.Volume] = append(writers[m.Volume], *r)
			}
		}
	})
	if err != nil {
		return err
	}
	for id, all := range writers {
		r, err := vs.cfg.Store.Volume(ctx, id)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue
		}
		if err != nil {
			return err
		}
		full, err := vs.measure(ctx, &r)
		if err != nil {
			vs.cfg.Log.Error("measure a volume", "volume", id, "error", err)
			continue
		}
		full.used += vs.deletedIn(ctx, id, all)
		vs.usages.note(id, full)
		if !full.over() {
			continue
		}
		for i := range all {
			vs.endWriter(ctx, &all[i], full)
		}
	}
	return nil
}

// deletedIn returns the bytes of a volume's deleted files that its writers still have
// open. Such files fill the disk without being in any directory.
func (vs *Volumes) deletedIn(ctx context.Context, volume string, writers []store.Record) (bytes int64) {
	for i := range writers {
		r := &writers[i]
		instance, err := vs.cfg.Engine.Open(ctx, r.Instance)
		if err != nil {
			continue // the sandbox has ended, or has not started yet
		}
		meter, ok := instance.(engine.DeletedMeter)
		if !ok {
			continue
		}
		by, err := meter.DeletedBytes(ctx)
		if err != nil {
			vs.cfg.Log.Error("measure deleted files", "sandbox", r.ID, "error", err)
			continue
		}
		for _, m := range r.Mounts {
			if m.Volume == volume && !m.ReadOnly {
				bytes += by[m.Target]
			}
		}
	}
	return bytes
}

func (vs *Volumes) endWriter(ctx context.Context, r *store.Record, full usage) {
	reason := fmt.Sprintf("its volume %s is far over its size: %s", full.name, full)
	if err := vs.cfg.Kill(ctx, r.ID, reason); err != nil {
		vs.cfg.Log.Error("end a sandbox whose volume is over its size", "sandbox", r.ID, "error", call.Detailed(err))
		return
	}
	vs.cfg.Gate.System(r, "sandbox.overfull", reason)
}

// Unenforced lists the limits of a sandbox's volumes that are not enforced at once.
func (vs *Volumes) Unenforced(r *store.Record) []string {
	var notes []string
	for _, m := range r.Mounts {
		if m.Volume == "" || m.ReadOnly {
			continue
		}
		note := fmt.Sprintf("volume at %s: its size is measured every few seconds, and sandboxes that write are ended when it holds %d times as much", m.Target, overfull)
		if f, ok := vs.usages.of(m.Volume); ok && f.full() {
			note += fmt.Sprintf("; now %s: delete files", f)
		}
		notes = append(notes, note)
	}
	return notes
}
