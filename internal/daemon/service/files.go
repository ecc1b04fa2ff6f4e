package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// files opens the caller's sandbox for a verb on a path.
func (s *Service) files(c *call.Call, ref, p string) (*handle, error) {
	if err := validate.Path("path", p); err != nil {
		return nil, err
	}
	c.Detail = p
	return s.openFor(c, ref)
}

// read begins a call that reads a file and that lasts until the content is closed.
func (s *Service) read(ctx context.Context, ref, p string) (*call.Call, *handle, error) {
	c, err := s.gate.Enter(ctx, call.Unaudited(sandbox.ScopeSandboxesRead))
	if err != nil {
		return c, nil, err
	}
	h, err := s.files(c, ref, p)
	return c, h, err
}

// StatFile implements [sandbox.Files].
func (s *Service) StatFile(ctx context.Context, ref, p string) (*sandbox.FileInfo, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.FileInfo, error) {
		h, err := s.files(c, ref, p)
		if err != nil {
			return nil, err
		}
		info, err := h.client.StatFile(c.Ctx, p)
		return info, h.explain(c.Ctx, err)
	})
}

// fileListing marks the cursors of listings of files.
const fileListing = "files"

// ListFiles implements [sandbox.Files]. The cursor is the path of the last entry, so a
// listing continues there even if files were added or removed.
func (s *Service) ListFiles(ctx context.Context, ref string, req sandbox.ListFilesRequest) (*sandbox.List[sandbox.FileInfo], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.FileInfo], error) {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return nil, err
		}
		if err := validate.Range("depth", int64(req.Depth), 0, sandbox.MaxListDepth); err != nil {
			return nil, err
		}
		limit, after, err := fileStart(req.Page)
		if err != nil {
			return nil, err
		}
		entries, more, err := h.client.ListFiles(c.Ctx, req.Path, max(1, req.Depth), limit, after)
		if err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		list := &sandbox.List[sandbox.FileInfo]{Items: append([]sandbox.FileInfo{}, entries...)}
		if more {
			list.NextCursor = store.Place{Text: entries[len(entries)-1].Path}.Cursor(fileListing)
		}
		return list, nil
	})
}

// fileStart returns the limit of a page of a listing of files, and the path after which
// it starts.
func fileStart(p sandbox.Page) (limit int, after string, err error) {
	limit, place, err := store.PageStart(fileListing, p)
	if err != nil || place == nil {
		return limit, "", err
	}
	if after = place.Text; !path.IsAbs(after) || path.Clean(after) != after || validate.Text("cursor", after) != nil {
		return 0, "", validate.Errorf("the cursor is not valid; start over without a cursor")
	}
	return limit, after, nil
}

// ReadFile implements [sandbox.Files].
func (s *Service) ReadFile(ctx context.Context, ref string, req sandbox.ReadFileRequest) (_ *sandbox.FileReader, err error) {
	v, h, err := s.read(ctx, ref, req.Path)
	open := false
	defer func() {
		if !open {
			v.Leave(&err)
		}
	}()
	if err != nil {
		return nil, err
	}
	if req.Offset < 0 || req.Limit < 0 {
		return nil, validate.Errorf("offset %d and limit %d must not be negative; use 0 for the start and for no limit", req.Offset, req.Limit)
	}
	r, err := h.client.ReadFile(v.Ctx, &req)
	if err != nil {
		return nil, h.explain(v.Ctx, err)
	}
	open = true
	return &sandbox.FileReader{Info: r.Info, ReadCloser: s.readerFor(v, h, r.ReadCloser)}, nil
}

// ArchiveDir implements [sandbox.Files].
func (s *Service) ArchiveDir(ctx context.Context, ref, p string, maxBytes int64) (_ io.ReadCloser, err error) {
	v, h, err := s.read(ctx, ref, p)
	open := false
	defer func() {
		if !open {
			v.Leave(&err)
		}
	}()
	if err != nil {
		return nil, err
	}
	if maxBytes < 0 {
		return nil, validate.Errorf("max_bytes is %d; use a positive number, or 0 for no limit", maxBytes)
	}
	r, err := h.client.ArchiveDir(v.Ctx, p, maxBytes)
	if err != nil {
		return nil, h.explain(v.Ctx, err)
	}
	open = true
	return s.readerFor(v, h, r), nil
}

// readerFor makes the call last until the content is closed.
func (s *Service) readerFor(c *call.Call, h *handle, r io.ReadCloser) io.ReadCloser {
	return &callReader{c: c, h: h, r: r, public: s.gate.Public}
}

type callReader struct {
	c      *call.Call
	h      *handle
	r      io.ReadCloser
	public func(err error, action string) error
	once   sync.Once
}

func (r *callReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.public(r.h.explain(r.c.Ctx, err), "file.read")
	}
	return n, err
}

func (r *callReader) Close() error {
	err := r.r.Close()
	r.once.Do(func() {
		var none error
		r.c.Leave(&none)
	})
	return err
}

// WriteFile implements [sandbox.Files].
func (s *Service) WriteFile(ctx context.Context, ref string, req sandbox.WriteFileRequest, content io.Reader) (*sandbox.FileInfo, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.write"), func(c *call.Call) (*sandbox.FileInfo, error) {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return nil, err
		}
		mode, err := validate.Mode(req.Mode)
		if err != nil {
			return nil, err
		}
		if req.Owner != "" {
			if err := validate.User("owner", req.Owner); err != nil {
				return nil, err
			}
		}
		if content == nil {
			content = bytes.NewReader(nil)
		}
		source := &source{r: content}
		info, err := h.client.WriteFile(c.Ctx, &req, mode, source)
		if err != nil && source.err != nil && c.Ctx.Err() == nil {
			return nil, broken(source.err, req.Append)
		}
		return info, h.explain(c.Ctx, err)
	})
}

// source remembers how a caller's content failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = &call.CallbackError{Err: err}
		return n, s.err
	}
	return n, err
}

// broken returns the error for content that ended too early. A door's own errors,
// such as one for content over its limit, are returned unchanged.
func broken(err error, appended bool) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	if appended {
		return sandbox.Wrap(sandbox.CodeCancelled, errors.Unwrap(err), "the content ended early; what arrived was appended, so check the file before you send the rest")
	}
	return sandbox.Wrap(sandbox.CodeCancelled, errors.Unwrap(err), "the content ended early, so nothing was written; send it again")
}

// EditFile implements [sandbox.Files].
func (s *Service) EditFile(ctx context.Context, ref string, req sandbox.EditFileRequest) (*sandbox.EditFileResult, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.edit"), func(c *call.Call) (*sandbox.EditFileResult, error) {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return nil, err
		}
		if req.OldText == "" {
			return nil, validate.Errorf("old_text is empty; set it to the text to replace, or write the whole file")
		}
		if err := validate.Text("old_text", req.OldText); err != nil {
			return nil, err
		}
		if err := validate.Text("new_text", req.NewText); err != nil {
			return nil, err
		}
		if n := len(req.OldText) + len(req.NewText); n > sandbox.MaxEditFileBytes {
			return nil, sandbox.Errorf(sandbox.CodeTooLarge, "old_text and new_text have %d bytes; use at most %d, or write the whole file", n, sandbox.MaxEditFileBytes)
		}
		res, err := h.client.EditFile(c.Ctx, &req)
		return res, h.explain(c.Ctx, err)
	})
}

// MakeDir implements [sandbox.Files].
func (s *Service) MakeDir(ctx context.Context, ref string, req sandbox.MakeDirRequest) (*sandbox.FileInfo, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.mkdir"), func(c *call.Call) (*sandbox.FileInfo, error) {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return nil, err
		}
		bits, err := validate.Mode(req.Mode)
		if err != nil {
			return nil, err
		}
		if req.Owner != "" {
			if err := validate.User("owner", req.Owner); err != nil {
				return nil, err
			}
		}
		info, err := h.client.MakeDir(c.Ctx, &req, bits)
		return info, h.explain(c.Ctx, err)
	})
}

// MakeSymlink implements [sandbox.Files].
func (s *Service) MakeSymlink(ctx context.Context, ref string, req sandbox.MakeSymlinkRequest) (*sandbox.FileInfo, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.symlink"), func(c *call.Call) (*sandbox.FileInfo, error) {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return nil, err
		}
		if err := validate.Path("target", req.Target); err != nil {
			return nil, err
		}
		if req.Owner != "" {
			if err := validate.User("owner", req.Owner); err != nil {
				return nil, err
			}
		}
		c.Detail = req.Path + " to " + req.Target
		info, err := h.client.MakeSymlink(c.Ctx, &req)
		return info, h.explain(c.Ctx, err)
	})
}

// MoveFile implements [sandbox.Files].
func (s *Service) MoveFile(ctx context.Context, ref string, req sandbox.MoveFileRequest) (*sandbox.FileInfo, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.move"), func(c *call.Call) (*sandbox.FileInfo, error) {
		h, err := s.files(c, ref, req.From)
		if err != nil {
			return nil, err
		}
		if err := validate.Path("to", req.To); err != nil {
			return nil, err
		}
		c.Detail = req.From + " to " + req.To
		info, err := h.client.MoveFile(c.Ctx, &req)
		return info, h.explain(c.Ctx, err)
	})
}

// DeleteFile implements [sandbox.Files].
func (s *Service) DeleteFile(ctx context.Context, ref, p string, recursive bool) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeFilesWrite, "file.delete"), func(c *call.Call) error {
		h, err := s.files(c, ref, p)
		if err != nil {
			return err
		}
		return h.explain(c.Ctx, h.client.DeleteFile(c.Ctx, p, recursive))
	})
}

// WatchFiles implements [sandbox.Files].
func (s *Service) WatchFiles(ctx context.Context, ref string, req sandbox.WatchRequest, f func(sandbox.WatchEvent) error) error {
	return call.Run(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) error {
		h, err := s.files(c, ref, req.Path)
		if err != nil {
			return err
		}
		if f == nil {
			return validate.Errorf("the function that receives the changes is missing; pass one")
		}
		err = h.client.WatchFiles(c.Ctx, &req, func(e sandbox.WatchEvent) error {
			if err := f(e); err != nil {
				return &call.CallbackError{Err: err}
			}
			return nil
		})
		return h.explain(c.Ctx, err)
	})
}
