package cli

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"

	"github.com/cove-sh/cove/sandbox"
)

// sendArchive sends an image on this machine to the server: a file unchanged, the
// directory of an OCI layout as a tar archive.
func (c *call) sendArchive(ctx context.Context, path string) (*sandbox.ArchiveUpload, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, hereError("read", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, hereError("read", path, err)
	}
	content, size := io.Reader(f), info.Size()
	if info.IsDir() {
		r, w := io.Pipe()
		defer r.Close()
		go func() {
			tw := tar.NewWriter(w)
			w.CloseWithError(errors.Join(tw.AddFS(os.DirFS(path)), tw.Close()))
		}()
		content, size = r, 0
	}
	c.say("sending %s", clean(path))
	m, done := c.measured(content, size)
	defer done()
	return c.client.UploadArchive(ctx, m)
}
