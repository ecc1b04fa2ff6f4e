package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// VolumePath is the part of a path that names a volume.
type VolumePath struct {
	Volume string `path:"volume" doc:"A volume's id or name."`
}

type createVolumeInput struct {
	Body sandbox.CreateVolumeRequest
}

type createVolumeReply struct {
	Location string `header:"Location"`
	Body     *sandbox.Volume
}

func (h *handlers) registerVolumes(a huma.API) {
	create := mayRepeat(op(http.MethodPost, "/v1/volumes", "create-volume", "volumes", "Create a volume, which sandboxes get by their mounts and which outlives them"), repeatWhole)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a, create, func(ctx context.Context, in *createVolumeInput) (*createVolumeReply, error) {
		v, err := h.svc.CreateVolume(ctx, in.Body)
		if err != nil {
			return nil, h.fail(ctx, err)
		}
		return &createVolumeReply{Location: "/v1/volumes/" + v.ID, Body: v}, nil
	})
	huma.Register(a, op(http.MethodGet, "/v1/volumes", "list-volumes", "volumes", "List volumes, newest first"),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Volume]], error) {
			v, err := h.svc.ListVolumes(ctx, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/volumes/{volume}", "get-volume", "volumes", "Get a volume, with what it holds now"),
		func(ctx context.Context, in *VolumePath) (*Reply[sandbox.Volume], error) {
			v, err := h.svc.GetVolume(ctx, in.Volume)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, "/v1/volumes/{volume}", "delete-volume", "volumes", "Delete a volume and its files; one that a sandbox or a snapshot has is a conflict"),
		func(ctx context.Context, in *VolumePath) (*struct{}, error) {
			return done(ctx, h, h.svc.DeleteVolume(ctx, in.Volume))
		})
}
