package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func mountsSchema() *jsonschema.Schema {
	return array("What to show in it, by exactly one of volume, host and tmpfs each.", object("",
		req("target", bounded("Absolute path in the sandbox, such as /data.", 1, sandbox.MaxPathBytes)),
		opt("volume", bounded("Id or name of a volume, which outlives the sandbox; see volume_create.", 0, 128)),
		opt("host", bounded("Directory of the server, if its operator allows it.", 0, sandbox.MaxPathBytes)),
		opt("tmpfs", boolean("A file system in the sandbox's memory.")),
		opt("size_mib", integer("Of a tmpfs; half of the memory if left out.", 0, sandbox.MaxMemoryMiB)),
		opt("read_only", boolean("")),
	), 0, sandbox.MaxMounts)
}

func volumeProps() []prop {
	return []prop{
		req("id", text("")), req("name", text("")),
		req("size_mib", count("")), req("used_bytes", count("When it was last looked at.")),
		opt("sandboxes", array("Ids of the living sandboxes that have it.", text(""), 0, 0)),
		req("created_at", moment("")),
	}
}

type volumeCreateArgs struct {
	Name    string `json:"name"`
	SizeMiB int64  `json:"size_mib"`
}

func volumeCreate() dialect.Tool {
	return dialect.New(toolsetVolumes, &mcp.Tool{
		Name:        "volume_create",
		Title:       "Create a volume",
		Description: "Create a volume: files that outlive sandboxes and can be in several at a time. Next: sandbox_create with mounts.",
		Annotations: annotations("Create a volume", false, false, false, false),
		InputSchema: input(
			req("name", bounded("Lower-case letters, digits, dashes, dots and underscores.", 1, sandbox.MaxNameLength)),
			opt("size_mib", with(integer("What it may hold.", 1, sandbox.MaxDiskMiB), sandbox.DefaultVolumeMiB)),
		),
		OutputSchema: output(volumeProps()...),
	}, func(ctx context.Context, c *dialect.Call, in volumeCreateArgs) (*mcp.CallToolResult, error) {
		v, err := c.Service.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: in.Name, SizeMiB: in.SizeMiB})
		if err != nil {
			return nil, err
		}
		return dialect.Text("Created volume "+volumeText(v), v), nil
	})
}

func volumeText(v *sandbox.Volume) string {
	return fmt.Sprintf("%s (%s), %d of %d MiB used, in %s", v.Name, v.ID, v.UsedBytes>>20, v.SizeMiB, plural(int64(len(v.Sandboxes)), "sandbox"))
}

type volumePage struct {
	Volumes    []sandbox.Volume `json:"volumes"`
	NextCursor string           `json:"next_cursor,omitempty"`
}

func volumeList() dialect.Tool {
	return dialect.New(toolsetVolumes, &mcp.Tool{
		Name:        "volume_list",
		Title:       "List volumes",
		Description: "List volumes, newest first, with what they hold and which sandboxes have them.",
		Annotations: annotations("List volumes", true, false, true, false),
		InputSchema: input(pageArgs(200)...),
		OutputSchema: output(
			req("volumes", array("", object("", volumeProps()...), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get the next page; absent on the last.")),
		),
	}, func(ctx context.Context, c *dialect.Call, in pageOnly) (*mcp.CallToolResult, error) {
		var out volumePage
		err := fitPage(in.Limit, func(limit int) (any, error) {
			list, err := c.Service.ListVolumes(ctx, sandbox.Page{Limit: limit, Cursor: in.Cursor})
			if err != nil {
				return nil, err
			}
			out = volumePage{Volumes: list.Items, NextCursor: list.NextCursor}
			if out.Volumes == nil {
				out.Volumes = []sandbox.Volume{}
			}
			return out, nil
		})
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		for i := range out.Volumes {
			b.WriteString(volumeText(&out.Volumes[i]) + "\n")
		}
		if len(out.Volumes) == 0 {
			b.WriteString("No volumes. volume_create makes one.\n")
		}
		if out.NextCursor != "" {
			fmt.Fprintf(&b, "More: call again with cursor %s\n", out.NextCursor)
		}
		return dialect.Text(b.String(), out), nil
	})
}

type volumeRef struct {
	Volume string `json:"volume"`
}

func volumeDelete() dialect.Tool {
	return dialect.New(toolsetVolumes, &mcp.Tool{
		Name:         "volume_delete",
		Title:        "Delete a volume",
		Description:  "Delete a volume with its files. One that a living sandbox or a snapshot has is refused.",
		Annotations:  annotations("Delete a volume", false, true, true, false),
		InputSchema:  input(req("volume", bounded("Id or name.", 1, 128))),
		OutputSchema: output(req("deleted", text("What was named."))),
	}, func(ctx context.Context, c *dialect.Call, in volumeRef) (*mcp.CallToolResult, error) {
		if err := c.Service.DeleteVolume(ctx, in.Volume); err != nil {
			return nil, err
		}
		return dialect.Text("Deleted volume "+in.Volume, map[string]string{"deleted": in.Volume}), nil
	})
}
