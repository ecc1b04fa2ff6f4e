package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// patch changes a file of a new sandbox.
type patch struct {
	Type    string  `json:"type"`
	Path    string  `json:"path,omitempty"`
	Content content `json:"content,omitempty"`
	Mode    *uint32 `json:"mode,omitempty"`
	Replace bool    `json:"replace,omitempty"`
	Target  string  `json:"target,omitempty"`
	Link    string  `json:"link,omitempty"`
	Src     string  `json:"src,omitempty"`
	Dst     string  `json:"dst,omitempty"`
}

// content is a text, or an array of byte values.
type content []byte

// UnmarshalJSON reads either form.
func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*c = content(text)
		return nil
	}
	var numbers []uint16
	if err := json.Unmarshal(data, &numbers); err != nil {
		return err
	}
	out := make(content, len(numbers))
	for i, n := range numbers {
		if n > 0xff {
			return fmt.Errorf("%d is not a byte", n)
		}
		out[i] = byte(n)
	}
	*c = out
	return nil
}

// maxPatches bounds the patches of a sandbox, as for the files of a template.
const maxPatches = sandbox.MaxTemplateFiles

func checkPatches(list []patch) error {
	if len(list) > maxPatches {
		return refused("patches", fmt.Sprintf("there are %d; give at most %d", len(list), maxPatches))
	}
	for i := range list {
		p := &list[i]
		at := p.Path
		switch p.Type {
		case "text", "file", "append", "mkdir", "remove":
		case "symlink":
			at = p.Link
		case "copy_file", "copy_dir":
			return refused("patches", p.Type+" names a file of another machine; copy it into the sandbox")
		default:
			return refused("patches", fmt.Sprintf("Cove knows no patch of type %q", clip.Text(p.Type, maxShown)))
		}
		if !path.IsAbs(at) {
			return refused("patches", fmt.Sprintf("the path %q does not begin with /", clip.Text(at, maxShown)))
		}
	}
	return nil
}

func modeText(mode *uint32) string {
	if mode == nil {
		return ""
	}
	return fmt.Sprintf("%04o", *mode&0o7777)
}

// applyPatches changes files in order, before anyone else knows the sandbox. The files it
// makes belong to root, as in an image.
func (d *Door) applyPatches(ctx context.Context, id string, list []patch) error {
	for i := range list {
		if err := d.applyPatch(ctx, id, &list[i]); err != nil {
			return refused(fmt.Sprintf("patches[%d] (%s)", i, list[i].Type), sandbox.MessageOf(err))
		}
	}
	return nil
}

func (d *Door) applyPatch(ctx context.Context, id string, p *patch) error {
	const owner = "root"
	svc := d.cfg.Service
	var err error
	switch p.Type {
	case "text", "file":
		req := sandbox.WriteFileRequest{Path: p.Path, Mode: modeText(p.Mode), MakeParents: true, Exclusive: !p.Replace, Owner: owner}
		_, err = svc.WriteFile(ctx, id, req, bytes.NewReader(p.Content))
	case "append":
		if _, err = svc.StatFile(ctx, id, p.Path); err == nil {
			_, err = svc.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: p.Path, Append: true}, bytes.NewReader(p.Content))
		}
	case "mkdir":
		_, err = svc.MakeDir(ctx, id, sandbox.MakeDirRequest{Path: p.Path, Mode: modeText(p.Mode), Owner: owner})
	case "remove":
		if strings.Trim(path.Clean(p.Path), "/") == "" {
			return invalid("the root cannot be removed")
		}
		err = svc.DeleteFile(ctx, id, p.Path, true)
	case "symlink":
		_, err = svc.MakeSymlink(ctx, id, sandbox.MakeSymlinkRequest{Path: p.Link, Target: p.Target, MakeParents: true, Overwrite: p.Replace, Owner: owner})
	}
	return err
}
