package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// StatFile implements [sandbox.Files].
func (c *Client) StatFile(ctx context.Context, name, path string) (*sandbox.FileInfo, error) {
	return get(ctx, c, operation.StatFile, operation.FileQuery{Path: path}, name)
}

// ListFiles implements [sandbox.Files].
func (c *Client) ListFiles(ctx context.Context, name string, req sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	return get(ctx, c, operation.ListFiles, req, name)
}

// EditFile implements [sandbox.Files].
func (c *Client) EditFile(ctx context.Context, name string, req sandbox.EditFileRequest) (*sandbox.EditFileResult, error) {
	return get(ctx, c, operation.EditFile, req, name)
}

// MakeDir implements [sandbox.Files].
func (c *Client) MakeDir(ctx context.Context, name string, req sandbox.MakeDirRequest) (*sandbox.FileInfo, error) {
	return get(ctx, c, operation.MakeDir, req, name)
}

// MakeSymlink implements [sandbox.Files].
func (c *Client) MakeSymlink(ctx context.Context, name string, req sandbox.MakeSymlinkRequest) (*sandbox.FileInfo, error) {
	return get(ctx, c, operation.MakeSymlink, req, name)
}

// MoveFile implements [sandbox.Files].
func (c *Client) MoveFile(ctx context.Context, name string, req sandbox.MoveFileRequest) (*sandbox.FileInfo, error) {
	return get(ctx, c, operation.MoveFile, req, name)
}

// DeleteFile implements [sandbox.Files].
func (c *Client) DeleteFile(ctx context.Context, name, path string, recursive bool) error {
	query := operation.DeleteFileQuery{FileQuery: operation.FileQuery{Path: path}, Recursive: recursive}
	return do(ctx, c, operation.DeleteFile, query, name)
}

// WatchFiles implements [sandbox.Files].
func (c *Client) WatchFiles(ctx context.Context, name string, req sandbox.WatchRequest, sink func(sandbox.WatchEvent) error) error {
	if sink == nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "the function that receives the changes is missing; pass one")
	}
	_, err := stream(ctx, c, operation.WatchFiles.Info, req, func(l operation.WatchLine) error { return sink(l.WatchEvent) }, name)
	if ctx.Err() != nil {
		// A watch ends when its context is cancelled.
		return nil
	}
	return err
}

// ReadFile implements [sandbox.Files].
func (c *Client) ReadFile(ctx context.Context, name string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	resp, err := c.open(ctx, operation.ReadFile.Info, req, name)
	if err != nil {
		return nil, err
	}
	file := &sandbox.FileReader{ReadCloser: &download{c: c, ctx: ctx, resp: resp}}
	if err := json.Unmarshal([]byte(resp.Header.Get("X-Cove-File")), &file.Info); err != nil {
		resp.Body.Close()
		return nil, c.foreign(err)
	}
	return file, nil
}

// ArchiveDir implements [sandbox.Files].
func (c *Client) ArchiveDir(ctx context.Context, name, path string, maxBytes int64) (io.ReadCloser, error) {
	query := operation.ArchiveQuery{FileQuery: operation.FileQuery{Path: path}, MaxBytes: maxBytes}
	resp, err := c.open(ctx, operation.ArchiveDir.Info, query, name)
	if err != nil {
		return nil, err
	}
	return &download{c: c, ctx: ctx, resp: resp}, nil
}

// open requests content with a trailer that says whether it is complete.
func (c *Client) open(ctx context.Context, info operation.Info, query any, name string) (*http.Response, error) {
	req, err := c.request(ctx, info, query, []string{name})
	if err != nil {
		return nil, err
	}
	req.Header.Set("Te", "trailers")
	return c.send(req)
}

// download is the content of a response, whose end is checked.
type download struct {
	c    *Client
	ctx  context.Context
	resp *http.Response
	err  error
}

func (d *download) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.resp.Body.Read(p)
	switch {
	case err == io.EOF:
		d.err = d.end()
	case err != nil:
		d.err = d.c.connectionError(d.ctx, err)
	}
	return n, d.err
}

// end returns io.EOF, or the error in the trailer. A server that could not
// announce the trailer breaks the connection instead.
func (d *download) end() error {
	word, announced := d.resp.Trailer["X-Cove-End"]
	if !announced || len(word) > 0 && word[0] == "ok" {
		return io.EOF
	}
	var p problem
	if len(word) > 0 && json.Unmarshal([]byte(word[0]), &p) == nil && p.Code != "" {
		return p.err()
	}
	return d.c.connectionError(d.ctx, errCut)
}

func (d *download) Close() error { return d.resp.Body.Close() }

// WriteFile implements [sandbox.Files].
func (c *Client) WriteFile(ctx context.Context, name string, req sandbox.WriteFileRequest, data io.Reader) (*sandbox.FileInfo, error) {
	return upload(ctx, c, operation.WriteFile, req, data, name)
}

// upload sends content of any size.
func upload[In, Out any](ctx context.Context, c *Client, op operation.Op[In, Out], query any, data io.Reader, names ...string) (*Out, error) {
	req, err := c.request(ctx, op.Info, content{query, &contentReader{r: data}}, names)
	if err != nil {
		return nil, err
	}
	// Lets the server refuse before the content is sent.
	req.Header.Set("Expect", "100-continue")
	out := new(Out)
	if err := c.answer(req, out); err != nil {
		return nil, err
	}
	return out, nil
}

// contentReader marks the errors of the caller's reader.
type contentReader struct{ r io.Reader }

// contentError is an error of the caller's reader.
type contentError struct{ err error }

func (e *contentError) Error() string { return e.err.Error() }
func (e *contentError) Unwrap() error { return e.err }

func (r *contentReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &contentError{err}
	}
	return n, err
}
