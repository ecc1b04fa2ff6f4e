package cloud

import (
	"context"
	"errors"
	"io"
	"math"
	"path"
	"strconv"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxEntries bounds the entries of a directory in one answer.
	maxEntries = 10_000
	// fullList is how many bytes of entries fill an answer.
	fullList = wire.MaxFrame / 2
	// entryCost is the size of an entry besides its path.
	entryCost = 100
)

// handle is an open file or directory of a connection.
type handle struct {
	path    string
	options wire.OpenOptions
	// end is the offset of the next write; for an existing file, its size. Only one write
	// of a handle runs at a time, which busy marks. Both are guarded by the connection's
	// mu.
	end  uint64
	busy bool
	dir  bool
	// next is the cursor of a directory's entries that have not been read, and read is set
	// once all have been. Both are guarded by the connection's listing.
	next string
	read bool
}

// fsSession is an operation on files. Only a write takes data.
type fsSession struct {
	c  *conn
	id uint32
	// in receives the data of a write; nil for all other operations.
	in *io.PipeWriter
}

// receive implements [session]. Data waits until it is written; data after a failure is
// dropped.
func (s *fsSession) receive(f *wire.Frame) (known bool, err error) {
	if f.Type != wire.TypeFSData || s.in == nil {
		return false, nil
	}
	var m wire.Data
	if err := f.Decode(&m); err != nil {
		return true, err
	}
	if len(m.Data) == 0 {
		_ = s.in.Close()
		return true, nil
	}
	_, _ = s.in.Write(m.Data)
	return true, nil
}

// files begins an operation on files.
func (c *conn) files(f *wire.Frame) error {
	var m wire.FS
	if err := f.Decode(&m); err != nil {
		return err
	}
	s := &fsSession{c: c, id: f.ID}
	var data *io.PipeReader
	if m.Op.Write != nil {
		data, s.in = io.Pipe()
		stop := context.AfterFunc(c.ctx, func() { _ = data.CloseWithError(context.Canceled) })
		c.begin(f.ID, s, func() {
			defer stop()
			s.run(&m.Op, data)
		})
		return nil
	}
	c.begin(f.ID, s, func() { s.run(&m.Op, nil) })
	return nil
}

func (s *fsSession) run(op *wire.Op, data *io.PipeReader) {
	if op.List != nil || op.ReadDir != nil {
		s.c.listing.Lock()
		defer s.c.listing.Unlock()
	}
	ctx, err := s.c.alive(s.c.ctx)
	var result map[string]any
	if err == nil {
		result, err = s.do(ctx, op, data)
	}
	if data != nil { // before the client learns of the failure; the connection's reader may be waiting
		_ = data.CloseWithError(io.ErrClosedPipe)
	}
	s.answer(result, err)
}

// answer ends the operation.
func (s *fsSession) answer(result map[string]any, err error) {
	s.c.mu.Lock()
	delete(s.c.sessions, s.id)
	s.c.mu.Unlock()
	response := wire.FSResponse{OK: err == nil, Data: result}
	if err != nil {
		text := sandbox.MessageOf(err)
		response = wire.FSResponse{Error: &text}
	}
	err = s.c.send(s.id, wire.FlagTerminal, wire.TypeFSResponse, response)
	if errors.Is(err, wire.ErrLength) {
		text := "the answer is too long; list a smaller directory"
		_ = s.c.send(s.id, wire.FlagTerminal, wire.TypeFSResponse, wire.FSResponse{Error: &text}) // the client may be gone
	}
}

// do performs an operation and returns its data.
func (s *fsSession) do(ctx context.Context, op *wire.Op, data io.Reader) (map[string]any, error) {
	svc, box := s.c.d.cfg.Service, s.c.sandbox
	switch {
	case op.Stat != nil:
		info, err := s.stat(ctx, op.Stat.Path, follows(op.Stat))
		return one("Stat", info), err
	case op.List != nil:
		list, more, err := s.list(ctx, op.List.Path, "", maxEntries)
		if err == nil && more != "" {
			err = sandbox.Errorf(sandbox.CodeTooLarge, "the directory has more than %d entries, or long names; list it with a command", maxEntries)
		}
		return one("List", list), err
	case op.RealPath != nil:
		out, err := s.tool(ctx, "readlink", "-f", "--", op.RealPath.Path)
		return one("Path", out), err
	case op.ReadLink != nil:
		f, err := svc.StatFile(ctx, box, op.ReadLink.Path)
		if err == nil && f.Type != sandbox.TypeSymlink {
			err = invalid("%s is no symbolic link", clip.Text(op.ReadLink.Path, maxShown))
		}
		if err != nil {
			return nil, err
		}
		return one("Path", f.SymlinkTarget), nil
	case op.Mkdir != nil:
		_, err := svc.MakeDir(ctx, box, sandbox.MakeDirRequest{Path: op.Mkdir.Path, Mode: modeText(op.Mkdir.Mode)})
		return nil, err
	case op.Remove != nil:
		return nil, s.remove(ctx, op.Remove.Path, false, false)
	case op.RemoveDir != nil:
		return nil, s.remove(ctx, op.RemoveDir.Path, true, op.RemoveDir.Recursive)
	case op.Copy != nil:
		_, err := s.tool(ctx, "cp", "-aT", "--", op.Copy.Src, op.Copy.Dst)
		return nil, err
	case op.Rename != nil:
		_, err := svc.MoveFile(ctx, box, sandbox.MoveFileRequest{From: op.Rename.Src, To: op.Rename.Dst, Overwrite: true})
		return nil, err
	case op.Symlink != nil:
		_, err := svc.MakeSymlink(ctx, box, sandbox.MakeSymlinkRequest{Path: op.Symlink.Path, Target: op.Symlink.Target})
		return nil, err
	case op.SetStat != nil:
		return nil, s.setAttrs(ctx, op.SetStat.Path, follows(op.SetStat), &op.SetStat.Attrs)
	}
	return s.doOpen(ctx, op, data)
}

// doOpen performs an operation that opens something, or that uses a handle.
func (s *fsSession) doOpen(ctx context.Context, op *wire.Op, data io.Reader) (map[string]any, error) {
	switch {
	case op.OpenFile != nil:
		n, err := s.open(ctx, op.OpenFile)
		return one("Handle", n), err
	case op.OpenDir != nil:
		info, err := s.stat(ctx, op.OpenDir.Path, true)
		if err == nil && info.Kind != wire.KindDir {
			err = invalid("%s is no directory", clip.Text(op.OpenDir.Path, maxShown))
		}
		if err != nil {
			return nil, err
		}
		n, err := s.c.keep(&handle{path: op.OpenDir.Path, dir: true})
		return one("Handle", n), err
	case op.CloseHandle != nil:
		_, err := s.c.handle(op.CloseHandle.Handle, true)
		return nil, err
	case op.ReadDir != nil:
		list, err := s.readDir(ctx, op.ReadDir)
		return one("List", list), err
	case op.FStat != nil:
		h, err := s.c.handle(op.FStat.Handle, false)
		if err != nil {
			return nil, err
		}
		info, err := s.stat(ctx, h.path, true)
		return one("Stat", info), err
	case op.FSetStat != nil:
		h, err := s.c.handle(op.FSetStat.Handle, false)
		if err != nil {
			return nil, err
		}
		return nil, s.setAttrs(ctx, h.path, true, &op.FSetStat.Attrs)
	case op.Read != nil:
		return nil, s.read(ctx, op.Read)
	case op.Write != nil:
		return nil, s.write(ctx, op.Write, data)
	}
	return nil, invalid("Cove does not know this operation on files")
}

func one(name string, v any) map[string]any { return map[string]any{name: v} }

func follows(op *wire.PathOp) bool { return op.FollowSymlink == nil || *op.FollowSymlink }

// stat describes a file. If follow is set, it describes the target of a symbolic link.
func (s *fsSession) stat(ctx context.Context, name string, follow bool) (*wire.Info, error) {
	f, err := s.c.d.cfg.Service.StatFile(ctx, s.c.sandbox, name)
	if err != nil {
		return nil, err
	}
	if follow && f.Type == sandbox.TypeSymlink {
		if f.LinkedFile == nil {
			return nil, sandbox.Errorf(sandbox.CodeNotFound, "%s leads to nothing", clip.Text(name, maxShown))
		}
		if f, err = s.c.d.cfg.Service.StatFile(ctx, s.c.sandbox, f.LinkedFile.Path); err != nil {
			return nil, err
		}
	}
	info := viewFile(f)
	return &info, nil
}

func viewFile(f *sandbox.FileInfo) wire.Info {
	mode, _ := strconv.ParseUint(f.Mode, 8, 32) // formatted by the service
	at := f.ModifiedAt.Unix()
	v := wire.Info{Path: f.Path, Kind: wire.KindOther, Size: uint64(max(f.Size, 0)), Mode: uint32(mode), UID: f.UID, GID: f.GID, Modified: &at, Mtime: &at}
	switch f.Type {
	case sandbox.TypeFile:
		v.Kind = wire.KindFile
	case sandbox.TypeDirectory:
		v.Kind = wire.KindDir
	case sandbox.TypeSymlink:
		v.Kind = wire.KindSymlink
	}
	return v
}

// list lists a directory from a cursor on, until it has enough entries or the answer is
// full. more is the cursor of the rest, "" if there is none.
func (s *fsSession) list(ctx context.Context, name, cursor string, most int) (out []wire.Info, more string, err error) {
	out = []wire.Info{}
	for size := 0; ; {
		page := sandbox.Page{Limit: min(most-len(out), sandbox.MaxPageSize), Cursor: cursor}
		part, err := s.c.d.cfg.Service.ListFiles(ctx, s.c.sandbox, sandbox.ListFilesRequest{Path: name, Page: page})
		if err != nil {
			return nil, "", err
		}
		for i := range part.Items {
			out = append(out, viewFile(&part.Items[i]))
			size += len(part.Items[i].Path) + entryCost
		}
		if cursor = part.NextCursor; cursor == "" || len(out) >= most || size >= fullList {
			return out, cursor, nil
		}
	}
}

// remove removes a file or, if dir is set, a directory.
func (s *fsSession) remove(ctx context.Context, name string, dir, recursive bool) error {
	f, err := s.c.d.cfg.Service.StatFile(ctx, s.c.sandbox, name)
	if err != nil {
		return err
	}
	if is := f.Type == sandbox.TypeDirectory; is != dir {
		if is {
			return invalid("%s is a directory", clip.Text(name, maxShown))
		}
		return invalid("%s is no directory", clip.Text(name, maxShown))
	}
	if path.Clean(name) == "/" {
		return invalid("the root cannot be removed")
	}
	return s.c.d.cfg.Service.DeleteFile(ctx, s.c.sandbox, name, recursive)
}

// keep returns a new handle for an open file or directory.
func (c *conn) keep(h *handle) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.handles) >= maxHandles {
		return 0, sandbox.Errorf(sandbox.CodeQuotaExceeded, "this connection has %d files open; close some", maxHandles)
	}
	c.lastHandle++
	c.handles[c.lastHandle] = h
	return c.lastHandle, nil
}

// handle returns the file or directory of a handle, and closes the handle if closing is
// set.
func (c *conn) handle(n uint64, closing bool) (*handle, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.handles[n]
	if h == nil {
		return nil, invalid("the handle %d is not open on this connection", n)
	}
	if closing {
		delete(c.handles, n)
	}
	return h, nil
}

// readDir reads the next entries of a directory. An empty list marks the end.
func (s *fsSession) readDir(ctx context.Context, op *wire.HandleOp) ([]wire.Info, error) {
	h, err := s.c.handle(op.Handle, false)
	switch {
	case err != nil:
		return nil, err
	case !h.dir:
		return nil, invalid("the handle %d is not of a directory", op.Handle)
	case h.read:
		return []wire.Info{}, nil
	}
	most := uint64(maxEntries)
	if op.Limit != nil {
		most = max(min(*op.Limit, most), 1)
	}
	list, more, err := s.list(ctx, h.path, h.next, int(most))
	if err == nil {
		h.next, h.read = more, more == ""
	}
	return list, err
}

// read sends a range of a file.
func (s *fsSession) read(ctx context.Context, op *wire.HandleOp) error {
	h, err := s.c.handle(op.Handle, false)
	switch {
	case err != nil:
		return err
	case h.dir || !h.options.Read:
		return invalid("the handle %d is not open for reading", op.Handle)
	case op.Offset > math.MaxInt64 || op.Len != nil && *op.Len > math.MaxInt64:
		return invalid("the offset or the length is out of range")
	case op.Len != nil && *op.Len == 0:
		return nil
	}
	req := sandbox.ReadFileRequest{Path: h.path, Offset: int64(op.Offset)}
	if op.Len != nil {
		req.Limit = int64(*op.Len)
	}
	f, err := s.c.d.cfg.Service.ReadFile(ctx, s.c.sandbox, req)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, readSize)
	for {
		n, err := io.ReadFull(f, buf)
		if n > 0 {
			if err := s.c.send(s.id, 0, wire.TypeFSData, wire.Data{Data: buf[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}
