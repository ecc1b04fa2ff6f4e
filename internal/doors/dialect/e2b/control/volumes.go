package control

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

type volume struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
}

func (p *plane) listVolumes(_ http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	all, err := sandbox.All(r.Context(), p.cfg.Service.ListVolumes)
	if err != nil {
		return nil, err
	}
	out := make([]volume, len(all))
	for i := range all {
		out[i] = volume{all[i].ID, all[i].Name}
	}
	return &response{http.StatusOK, out}, nil
}

// openVolume is a volume with the token for its contents.
type openVolume struct {
	volume
	Token string `json:"token"`
}

type volumeBody struct {
	Name string `json:"name"`
}

func (p *plane) createVolume(r *http.Request, _ []string, body *volumeBody) (*response, error) {
	v, err := p.cfg.Service.CreateVolume(r.Context(), sandbox.CreateVolumeRequest{Name: body.Name})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return nil, invalid("Volume with name '%.80s' already exists", body.Name)
	}
	if err != nil {
		return nil, err
	}
	return &response{http.StatusCreated, p.openVolume(r.Context(), v)}, nil
}

func (p *plane) openVolume(ctx context.Context, v *sandbox.Volume) openVolume {
	caller, _ := sandbox.CallerOf(ctx)
	return openVolume{volume{v.ID, v.Name}, p.cfg.Gate.Token(access.Volume, caller, v.ID)}
}

func (p *plane) getVolume(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	v, err := p.cfg.Service.GetVolume(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	return &response{http.StatusOK, p.openVolume(r.Context(), v)}, nil
}

func (p *plane) deleteVolume(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	v, err := p.cfg.Service.GetVolume(r.Context(), args[0])
	if err == nil {
		err = p.volumes.Close(r.Context(), v.ID)
	}
	if err == nil {
		err = p.cfg.Service.DeleteVolume(r.Context(), v.ID)
	}
	if err != nil {
		return nil, err
	}
	return noContent, nil
}

// nameVolumes replaces the ids of a sandbox's volumes by their names; a volume that no
// longer exists keeps its id.
func (p *plane) nameVolumes(ctx context.Context, l *listed) {
	for i, m := range l.VolumeMounts {
		if v, err := p.cfg.Service.GetVolume(ctx, m.Name); err == nil && v.Name != "" {
			l.VolumeMounts[i].Name = v.Name
		}
	}
}
