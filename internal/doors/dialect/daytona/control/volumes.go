package control

import (
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// volume is a volume as clients know it.
type volume struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"`
	OrganizationID string    `json:"organizationId"`
	State          string    `json:"state"`
	CreatedAt      time.Time `json:"createdAt"`
	UpdatedAt      time.Time `json:"updatedAt"`
	ErrorReason    *string   `json:"errorReason"`
}

func viewVolume(r *http.Request, v *sandbox.Volume) volume {
	caller, _ := sandbox.CallerOf(r.Context())
	return volume{ID: v.ID, Name: v.Name, OrganizationID: caller.Team, State: "ready", CreatedAt: v.CreatedAt, UpdatedAt: v.CreatedAt}
}

func (p *plane) listVolumes(w http.ResponseWriter, r *http.Request) error {
	all, err := sandbox.All(r.Context(), p.cfg.Service.ListVolumes)
	if err != nil {
		return err
	}
	out := make([]volume, len(all))
	for i := range all {
		out[i] = viewVolume(r, &all[i])
	}
	answer.JSON(w, http.StatusOK, out)
	return nil
}

func (p *plane) createVolume(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Name string `json:"name"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	v, err := p.cfg.Service.CreateVolume(r.Context(), sandbox.CreateVolumeRequest{Name: body.Name})
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewVolume(r, v))
	return nil
}

func (p *plane) getVolume(w http.ResponseWriter, r *http.Request) error {
	v, err := p.cfg.Service.GetVolume(r.Context(), r.PathValue("volume"))
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewVolume(r, v))
	return nil
}

func (p *plane) deleteVolume(w http.ResponseWriter, r *http.Request) error {
	if err := p.cfg.Service.DeleteVolume(r.Context(), r.PathValue("volume")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
