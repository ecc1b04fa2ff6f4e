package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// files enters a verb on a path of a running sandbox.
func (s *Service) files(ctx context.Context, scope sandbox.Scope, action, ref, p string) (*visit, *handle, error) {
	v, err := s.enter(ctx, scope, action)
	if err != nil {
		return v, nil, err
	}
	if err := checkPath("path", p); err != nil {
		return v, nil, err
	}
	v.detail = p
	h, err := v.open(ref)
	return v, h, err
}

// StatFile implements [sandbox.Files].
func (s *Service) StatFile(ctx context.Context, ref, p string) (_ *sandbox.FileInfo, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeSandboxesRead, "", ref, p)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	info, err := h.client.StatFile(v.ctx, p)
	return info, h.explain(v.ctx, err)
}

// fileListing names listings of files in their cursors.
const fileListing = "files"

// ListFiles implements [sandbox.Files]. The cursor is the path of the last
// entry, so that a listing goes on where it was although files come and go.
func (s *Service) ListFiles(ctx context.Context, ref string, req sandbox.ListFilesRequest) (_ *sandbox.List[sandbox.FileInfo], err error) {
	v, h, err := s.files(ctx, sandbox.ScopeSandboxesRead, "", ref, req.Path)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkRange("depth", int64(req.Depth), 0, sandbox.MaxListDepth); err != nil {
		return nil, err
	}
	limit, after, err := fileStart(req.Page)
	if err != nil {
		return nil, err
	}
	entries, more, err := h.client.ListFiles(v.ctx, req.Path, max(1, req.Depth), limit, after)
	if err != nil {
		return nil, h.explain(v.ctx, err)
	}
	list := &sandbox.List[sandbox.FileInfo]{Items: append([]sandbox.FileInfo{}, entries...)}
	if more {
		list.NextCursor = store.Place{Text: entries[len(entries)-1].Path}.Cursor(fileListing)
	}
	return list, nil
}

// fileStart reads what a page of a listing of files asks for: at most how many
// entries, and after which path.
func fileStart(p sandbox.Page) (limit int, after string, err error) {
	limit, place, err := store.PageStart(fileListing, p)
	if err != nil || place == nil {
		return limit, "", err
	}
	if after = place.Text; !path.IsAbs(after) || path.Clean(after) != after || checkText("cursor", after) != nil {
		return 0, "", invalid("the cursor is not one that this server gave out; start over without a cursor")
	}
	return limit, after, nil
}

// ReadFile implements [sandbox.Files].
func (s *Service) ReadFile(ctx context.Context, ref string, req sandbox.ReadFileRequest) (_ *sandbox.FileReader, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeSandboxesRead, "", ref, req.Path)
	open := false
	defer func() {
		if !open {
			v.leave(&err)
		}
	}()
	if err != nil {
		return nil, err
	}
	if req.Offset < 0 || req.Limit < 0 {
		return nil, invalid("offset %d and limit %d must not be negative; give 0 for the start and the whole rest", req.Offset, req.Limit)
	}
	r, err := h.client.ReadFile(v.ctx, &req)
	if err != nil {
		return nil, h.explain(v.ctx, err)
	}
	open = true
	return &sandbox.FileReader{Info: r.Info, ReadCloser: v.reader(h, r.ReadCloser)}, nil
}

// ArchiveDir implements [sandbox.Files].
func (s *Service) ArchiveDir(ctx context.Context, ref, p string, maxBytes int64) (_ io.ReadCloser, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeSandboxesRead, "", ref, p)
	open := false
	defer func() {
		if !open {
			v.leave(&err)
		}
	}()
	if err != nil {
		return nil, err
	}
	if maxBytes < 0 {
		return nil, invalid("max_bytes is %d; give a positive number, or 0 for no bound", maxBytes)
	}
	r, err := h.client.ArchiveDir(v.ctx, p, maxBytes)
	if err != nil {
		return nil, h.explain(v.ctx, err)
	}
	open = true
	return v.reader(h, r), nil
}

// reader lets the visit last until the content is closed.
func (v *visit) reader(h *handle, r io.ReadCloser) io.ReadCloser {
	return &visitReader{v: v, h: h, r: r}
}

type visitReader struct {
	v    *visit
	h    *handle
	r    io.ReadCloser
	once sync.Once
}

func (r *visitReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.v.s.public(r.h.explain(r.v.ctx, err), "file.read")
	}
	return n, err
}

func (r *visitReader) Close() error {
	err := r.r.Close()
	r.once.Do(func() {
		var none error
		r.v.leave(&none)
	})
	return err
}

// WriteFile implements [sandbox.Files].
func (s *Service) WriteFile(ctx context.Context, ref string, req sandbox.WriteFileRequest, content io.Reader) (_ *sandbox.FileInfo, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.write", ref, req.Path)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	mode, err := checkMode(req.Mode)
	if err != nil {
		return nil, err
	}
	if req.Owner != "" {
		if err := checkUser("owner", req.Owner); err != nil {
			return nil, err
		}
	}
	if content == nil {
		content = bytes.NewReader(nil)
	}
	source := &source{r: content}
	info, err := h.client.WriteFile(v.ctx, &req, mode, source)
	if err != nil && source.err != nil && v.ctx.Err() == nil {
		return nil, broken(source.err, req.Append)
	}
	return info, h.explain(v.ctx, err)
}

// source remembers how a caller's content failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = &callbackError{err}
		return n, s.err
	}
	return n, err
}

// broken is the error for content that ended too early. A door's own errors,
// such as one for content over its limit, go back as they are.
func broken(err error, appended bool) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	if appended {
		return sandbox.Wrap(sandbox.CodeCancelled, errors.Unwrap(err), "the content ended too early; what came before was appended, so look at the file before you send the rest")
	}
	return sandbox.Wrap(sandbox.CodeCancelled, errors.Unwrap(err), "the content ended too early, so nothing was written; send it again")
}

// EditFile implements [sandbox.Files].
func (s *Service) EditFile(ctx context.Context, ref string, req sandbox.EditFileRequest) (_ *sandbox.EditFileResult, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.edit", ref, req.Path)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if req.OldText == "" {
		return nil, invalid("old_text is empty; give the text to replace, or write the whole file")
	}
	if err := checkText("old_text", req.OldText); err != nil {
		return nil, err
	}
	if err := checkText("new_text", req.NewText); err != nil {
		return nil, err
	}
	if n := len(req.OldText) + len(req.NewText); n > sandbox.MaxEditFileBytes {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "old_text and new_text have %d bytes; give at most %d, or write the whole file", n, sandbox.MaxEditFileBytes)
	}
	res, err := h.client.EditFile(v.ctx, &req)
	return res, h.explain(v.ctx, err)
}

// MakeDir implements [sandbox.Files].
func (s *Service) MakeDir(ctx context.Context, ref, p, mode string) (_ *sandbox.FileInfo, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.mkdir", ref, p)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	bits, err := checkMode(mode)
	if err != nil {
		return nil, err
	}
	info, err := h.client.MakeDir(v.ctx, p, bits)
	return info, h.explain(v.ctx, err)
}

// MakeSymlink implements [sandbox.Files].
func (s *Service) MakeSymlink(ctx context.Context, ref string, req sandbox.MakeSymlinkRequest) (_ *sandbox.FileInfo, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.symlink", ref, req.Path)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkPath("target", req.Target); err != nil {
		return nil, err
	}
	if req.Owner != "" {
		if err := checkUser("owner", req.Owner); err != nil {
			return nil, err
		}
	}
	v.detail = req.Path + " to " + req.Target
	info, err := h.client.MakeSymlink(v.ctx, &req)
	return info, h.explain(v.ctx, err)
}

// MoveFile implements [sandbox.Files].
func (s *Service) MoveFile(ctx context.Context, ref string, req sandbox.MoveFileRequest) (_ *sandbox.FileInfo, err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.move", ref, req.From)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkPath("to", req.To); err != nil {
		return nil, err
	}
	v.detail = req.From + " to " + req.To
	info, err := h.client.MoveFile(v.ctx, &req)
	return info, h.explain(v.ctx, err)
}

// DeleteFile implements [sandbox.Files].
func (s *Service) DeleteFile(ctx context.Context, ref, p string, recursive bool) (err error) {
	v, h, err := s.files(ctx, sandbox.ScopeFilesWrite, "file.delete", ref, p)
	defer v.leave(&err)
	if err != nil {
		return err
	}
	return h.explain(v.ctx, h.client.DeleteFile(v.ctx, p, recursive))
}

// WatchFiles implements [sandbox.Files].
func (s *Service) WatchFiles(ctx context.Context, ref string, req sandbox.WatchRequest, f func(sandbox.WatchEvent) error) (err error) {
	v, h, err := s.files(ctx, sandbox.ScopeSandboxesRead, "", ref, req.Path)
	defer v.leave(&err)
	if err != nil {
		return err
	}
	if f == nil {
		return invalid("nobody takes the changes; give a function that does")
	}
	err = h.client.WatchFiles(v.ctx, &req, func(e sandbox.WatchEvent) error {
		if err := f(e); err != nil {
			return &callbackError{err}
		}
		return nil
	})
	return h.explain(v.ctx, err)
}
