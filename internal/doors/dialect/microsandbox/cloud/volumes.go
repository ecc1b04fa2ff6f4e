package cloud

import (
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	volumePrefix = "vol-"
	mibPerGiB    = 1 << 10
	mib          = 1 << 20
)

// volume is a volume as the product shows it.
type volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Kind      string            `json:"kind"`
	Status    string            `json:"status"`
	Storage   string            `json:"storage"`
	Labels    map[string]string `json:"labels"`
	Capacity  int64             `json:"capacity_bytes"`
	Used      int64             `json:"used_bytes"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

func viewVolume(v *sandbox.Volume) volume {
	return volume{
		ID: v.ID, Name: v.Name, Kind: "managed", Status: "active", Storage: "block", Labels: map[string]string{},
		Capacity: v.SizeMiB * mib, Used: v.UsedBytes, CreatedAt: v.CreatedAt, UpdatedAt: v.CreatedAt,
	}
}

func (d *Door) listVolumes(w http.ResponseWriter, r *http.Request, _ []string) error {
	all, err := sandbox.All(r.Context(), d.cfg.Service.ListVolumes)
	if err != nil {
		return err
	}
	rows := make([]volume, len(all))
	for i := range all {
		rows[i] = viewVolume(&all[i])
	}
	writeJSON(w, rows)
	return nil
}

func (d *Door) createVolume(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body struct {
		Name     string            `json:"name"`
		Labels   map[string]string `json:"labels"`
		Capacity int64             `json:"capacity_gib"`
	}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	switch {
	case len(body.Labels) > 0:
		return invalid("labels: a volume of Cove's has none; leave them out")
	case body.Capacity < 0 || body.Capacity > sandbox.MaxDiskMiB/mibPerGiB:
		return invalid("capacity_gib is %d; give 1 to %d, or leave it out", body.Capacity, sandbox.MaxDiskMiB/mibPerGiB)
	}
	v, err := d.cfg.Service.CreateVolume(r.Context(), sandbox.CreateVolumeRequest{Name: body.Name, SizeMiB: body.Capacity * mibPerGiB})
	if err != nil {
		return err // clients take the status of a conflict to mean that the name is taken
	}
	writeJSON(w, viewVolume(v))
	return nil
}

func (d *Door) deleteVolume(w http.ResponseWriter, r *http.Request, args []string) error {
	if !strings.HasPrefix(args[0], volumePrefix) { // not the id of a volume
		return errNoVolume(args[0])
	}
	err := d.volumes.Close(r.Context(), args[0])
	if err == nil {
		err = d.cfg.Service.DeleteVolume(r.Context(), args[0])
	}
	if err != nil {
		return aboutVolume(args[0], err)
	}
	writeJSON(w, map[string]string{"message": "volume removed"})
	return nil
}
