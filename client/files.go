package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// StatFile implements [sandbox.Files].
func (c *Client) StatFile(ctx context.Context, name, path string) (*sandbox.FileInfo, error) {
	return get[sandbox.FileInfo](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/files/stat", name).must("path", path), nil)
}

// ListFiles implements [sandbox.Files].
func (c *Client) ListFiles(ctx context.Context, name string, req sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	e := c.path("/v1/sandboxes/%/files", name).must("path", req.Path).with("depth", number(int64(req.Depth))).page(req.Page)
	return get[sandbox.List[sandbox.FileInfo]](ctx, c, http.MethodGet, e, nil)
}

// EditFile implements [sandbox.Files].
func (c *Client) EditFile(ctx context.Context, name string, req sandbox.EditFileRequest) (*sandbox.EditFileResult, error) {
	return get[sandbox.EditFileResult](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/files/edit", name), req)
}

// MakeDir implements [sandbox.Files].
func (c *Client) MakeDir(ctx context.Context, name, path, mode string) (*sandbox.FileInfo, error) {
	body := struct {
		Path string `json:"path"`
		Mode string `json:"mode,omitempty"`
	}{path, mode}
	return get[sandbox.FileInfo](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/files/mkdir", name), body)
}

// MakeSymlink implements [sandbox.Files].
func (c *Client) MakeSymlink(ctx context.Context, name string, req sandbox.MakeSymlinkRequest) (*sandbox.FileInfo, error) {
	return get[sandbox.FileInfo](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/files/symlink", name), req)
}

// MoveFile implements [sandbox.Files].
func (c *Client) MoveFile(ctx context.Context, name string, req sandbox.MoveFileRequest) (*sandbox.FileInfo, error) {
	return get[sandbox.FileInfo](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/files/move", name), req)
}

// DeleteFile implements [sandbox.Files].
func (c *Client) DeleteFile(ctx context.Context, name, path string, recursive bool) error {
	e := c.path("/v1/sandboxes/%/files", name).must("path", path).with("recursive", flag(recursive))
	return c.call(ctx, http.MethodDelete, e, nil, nil)
}

// WatchFiles implements [sandbox.Files].
func (c *Client) WatchFiles(ctx context.Context, name string, req sandbox.WatchRequest, sink func(sandbox.WatchEvent) error) error {
	if sink == nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "nobody takes the changes; give a function that does")
	}
	e := c.path("/v1/sandboxes/%/files/watch", name).must("path", req.Path).with("recursive", flag(req.Recursive))
	type line struct {
		sandbox.WatchEvent
		ending
	}
	err := stream(ctx, c, http.MethodGet, e, nil, func(l line) (ending, error) {
		if l.Final || l.Error != nil {
			return l.ending, nil
		}
		return l.ending, sink(l.WatchEvent)
	})
	if ctx.Err() != nil {
		// That is how a watch ends.
		return nil
	}
	return err
}

// ReadFile implements [sandbox.Files].
func (c *Client) ReadFile(ctx context.Context, name string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	e := c.path("/v1/sandboxes/%/files/content", name).must("path", req.Path).
		with("offset", number(req.Offset)).with("limit", number(req.Limit))
	resp, err := c.open(ctx, e)
	if err != nil {
		return nil, err
	}
	file := &sandbox.FileReader{ReadCloser: &download{c: c, ctx: ctx, resp: resp}}
	if err := json.Unmarshal([]byte(resp.Header.Get("X-Cove-File")), &file.Info); err != nil {
		resp.Body.Close()
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "the answer of "+c.where+" is not Cove's; check the URL")
	}
	return file, nil
}

// ArchiveDir implements [sandbox.Files].
func (c *Client) ArchiveDir(ctx context.Context, name, path string, maxBytes int64) (io.ReadCloser, error) {
	e := c.path("/v1/sandboxes/%/files/archive", name).must("path", path).with("max_bytes", number(maxBytes))
	resp, err := c.open(ctx, e)
	if err != nil {
		return nil, err
	}
	return &download{c: c, ctx: ctx, resp: resp}, nil
}

// open requests content, with word of how it ended after it.
func (c *Client) open(ctx context.Context, e endpoint) (*http.Response, error) {
	req, err := c.request(ctx, http.MethodGet, e, nil)
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

// end returns io.EOF, or what the server says went wrong on the way. A server
// that could not announce its word breaks the connection in place of it.
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
func (c *Client) WriteFile(ctx context.Context, name string, req sandbox.WriteFileRequest, content io.Reader) (*sandbox.FileInfo, error) {
	e := c.path("/v1/sandboxes/%/files/content", name).must("path", req.Path).
		with("mode", req.Mode).with("owner", req.Owner).
		with("make_parents", flag(req.MakeParents)).
		with("append", flag(req.Append)).
		with("exclusive", flag(req.Exclusive))
	hreq, err := c.request(ctx, http.MethodPut, e, &contentReader{r: content})
	if err != nil {
		return nil, err
	}
	// A refusal comes before the content is sent.
	hreq.Header.Set("Expect", "100-continue")
	resp, err := c.send(hreq)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	info := new(sandbox.FileInfo)
	if err := c.decode(ctx, resp, info); err != nil {
		return nil, err
	}
	return info, nil
}

// contentReader marks the errors of what the caller gave to be sent.
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
