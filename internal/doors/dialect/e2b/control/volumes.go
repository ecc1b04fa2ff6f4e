package control

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

type volume struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
}

func (p *plane) listVolumes(w http.ResponseWriter, r *http.Request, _ []string) error {
	all, err := sandbox.All(r.Context(), p.cfg.Service.ListVolumes)
	if err != nil {
		return err
	}
	out := make([]volume, len(all))
	for i := range all {
		out[i] = volume{all[i].ID, all[i].Name}
	}
	answer.JSON(w, http.StatusOK, out)
	return nil
}

// openVolume is a volume with the token for its contents, which are not served:
// the token opens nothing.
type openVolume struct {
	volume
	Token string `json:"token"`
}

type volumeBody struct {
	Name string `json:"name"`
}

func (p *plane) createVolume(w http.ResponseWriter, r *http.Request, _ []string, body *volumeBody) error {
	v, err := p.cfg.Service.CreateVolume(r.Context(), sandbox.CreateVolumeRequest{Name: body.Name})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return invalid("Volume with name '%.80s' already exists", body.Name)
	}
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusCreated, openVolume{volume{v.ID, v.Name}, noContent})
	return nil
}

// noContent stands for the token of a volume.
const noContent = "none"

func (p *plane) getVolume(w http.ResponseWriter, r *http.Request, args []string) error {
	v, err := p.cfg.Service.GetVolume(r.Context(), args[0])
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, openVolume{volume{v.ID, v.Name}, noContent})
	return nil
}

func (p *plane) deleteVolume(w http.ResponseWriter, r *http.Request, args []string) error {
	v, err := p.cfg.Service.GetVolume(r.Context(), args[0])
	if err == nil {
		err = p.cfg.Service.DeleteVolume(r.Context(), v.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// nameVolumes gives the volumes of a sandbox the names by which clients know
// them; a volume that is gone keeps its id.
func (p *plane) nameVolumes(ctx context.Context, l *listed) {
	for i, m := range l.VolumeMounts {
		if v, err := p.cfg.Service.GetVolume(ctx, m.Name); err == nil && v.Name != "" {
			l.VolumeMounts[i].Name = v.Name
		}
	}
}
