package podflare

import (
	"bytes"
	"context"
	"encoding/base64"
	"path"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxFile bounds an uploaded or downloaded file, in bytes.
const maxFile = 6 << 20

func tooLarge() error {
	return sandbox.Errorf(sandbox.CodeTooLarge, "a file may have at most 6 MB; move larger ones in parts")
}

type uploadArgs struct {
	inSandbox
	Path    string `json:"path"`
	Content string `json:"content_base64"`
}

// file is an uploaded file, or a downloaded one with its content.
type file struct {
	Path    string  `json:"path"`
	Size    int64   `json:"size"`
	Content *string `json:"content_base64,omitempty"`
}

func upload(ctx context.Context, c *call, id string, in uploadArgs) (any, error) {
	data, err := decode(in.Content)
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, tooLarge()
	}
	c.Status("uploading")
	info, err := c.Service.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: c.absolute(ctx, id, in.Path), MakeParents: true}, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return file{Path: info.Path, Size: int64(len(data))}, nil
}

// decode reads base64, with or without padding and line breaks.
func decode(s string) ([]byte, error) {
	s = strings.TrimRight(strings.TrimSpace(s), "=")
	data, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return nil, dialect.Invalid("content_base64 is not valid base64; encode the file's bytes with the standard alphabet")
	}
	return data, nil
}

type downloadArgs struct {
	inSandbox
	Path string `json:"path"`
}

func download(ctx context.Context, c *call, id string, in downloadArgs) (any, error) {
	c.Status("downloading")
	data, at, err := dialect.ReadFile(ctx, c.Service, id, c.absolute(ctx, id, in.Path), maxFile+1)
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, tooLarge()
	}
	content := base64.StdEncoding.EncodeToString(data)
	return file{Path: at, Size: int64(len(data)), Content: &content}, nil
}

// absolute resolves a path as run_python would; its code may have changed the working
// directory.
func (c *call) absolute(ctx context.Context, id, p string) string {
	if path.IsAbs(p) {
		return p
	}
	contexts, err := c.Service.ListContexts(ctx, id)
	if err != nil {
		return p // the call itself reports the error
	}
	for _, k := range contexts.Items {
		if k.Language == sandbox.Python && k.Name == "default" && path.IsAbs(k.WorkDir) {
			return path.Join(k.WorkDir, p)
		}
	}
	return p
}
