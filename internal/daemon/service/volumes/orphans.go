package volumes

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// asideTimeout bounds measuring a volume that is set aside.
const asideTimeout = 5 * time.Second

// label returns what the files of a volume say about it, in case its record is lost.
func label(r *store.VolumeRecord) []byte {
	data, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return data
}

// discard removes the files of a volume without a record if this store once had it, or
// if there are no files, and otherwise sets them aside.
func (vs *Volumes) discard(ctx context.Context, id string) error {
	named, err := vs.cfg.Store.WasNamed(ctx, id)
	if err != nil {
		return err
	}
	if named || vs.cfg.Orphans == nil || vs.cfg.Dir.Empty(id) {
		if err := vs.remove(ctx, id); err != nil {
			return err
		}
		vs.cfg.Log.Warn("removed the files of a volume without a record", "volume", id)
		return nil
	}
	return vs.SetAside(ctx, id, "no record names it")
}

// SetAside makes an orphan of the files of a volume, so that they can be recovered.
func (vs *Volumes) SetAside(ctx context.Context, id, why string) error {
	it := orphan.Item{ID: id, Kind: orphan.Volume, Why: why}
	var known store.VolumeRecord
	if data := vs.cfg.Dir.Label(id); json.Unmarshal(data, &known) == nil {
		it.Team, it.Name, it.Record = known.Team, known.Name, data
	}
	measure, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	it.SizeBytes, _ = vs.cfg.Dir.Used(measure, id, sandbox.MaxDiskMiB<<20) // as far as it was measured
	it, err := vs.cfg.Orphans.Put(it, func(to string) error { return vs.cfg.Dir.MoveOut(id, to) })
	if err != nil {
		return err
	}
	vs.cfg.Log.Warn("set aside a volume; cove recover brings it back", "volume", id, "why", why, "name", it.Name, "team", it.Team, "until", it.Since.Add(vs.cfg.OrphanRetention))
	return nil
}
