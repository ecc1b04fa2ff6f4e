package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func createVolume(ctx context.Context, c *dialect.Call, in sandbox.CreateVolumeRequest) (*reply[*sandbox.Volume], error) {
	v, err := c.Service.CreateVolume(ctx, in)
	if err != nil {
		return nil, err
	}
	return answer("Created volume "+volumeText(v), v)
}

func volumeText(v *sandbox.Volume) string {
	return fmt.Sprintf("%s (%s), %d of %d MiB used, in %s", v.Name, v.ID, v.UsedBytes>>20, v.SizeMiB, plural(int64(len(v.Sandboxes)), "sandbox"))
}

type volumePage struct {
	Volumes []sandbox.Volume `json:"volumes"`
	nextPage
}

func listVolumes(ctx context.Context, c *dialect.Call, in sandbox.Page) (*reply[volumePage], error) {
	var out volumePage
	return fitPage(in.Limit, &out, func(limit int) error {
		in.Limit = limit
		list, err := c.Service.ListVolumes(ctx, in)
		out.Volumes, out.nextPage = views(list, same)
		return err
	})
}

func (p volumePage) text() string {
	var b strings.Builder
	for i := range p.Volumes {
		b.WriteString(volumeText(&p.Volumes[i]) + "\n")
	}
	return p.list(b.String(), "No volumes. volume_create makes one.\n")
}

type volumeRef struct {
	Volume string `json:"volume"`
}

// deleted is the result of a deletion.
type deleted struct {
	Deleted string `json:"deleted"`
}

func deleteVolume(ctx context.Context, c *dialect.Call, in volumeRef) (*reply[deleted], error) {
	err := c.Service.DeleteVolume(ctx, in.Volume)
	return done(err, "Deleted volume "+in.Volume, deleted{in.Volume})
}
