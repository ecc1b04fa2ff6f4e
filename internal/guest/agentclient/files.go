package agentclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// StatFile describes a path; a symbolic link itself, not its target.
func (c *Client) StatFile(ctx context.Context, p string) (*sandbox.FileInfo, error) {
	resp, err := call(ctx, callTimeout, c.rpc.Stat, &agentv1.StatRequest{Path: p})
	return result(resp.GetInfo(), err)
}

// ListFiles returns up to limit entries below a directory, from the first one past
// after, the last path of the previous page, and whether there are more.
func (c *Client) ListFiles(ctx context.Context, p string, depth, limit int, after string) (entries []sandbox.FileInfo, more bool, err error) {
	resp, err := call(ctx, fileTimeout, c.rpc.List, &agentv1.ListRequest{Path: p, Depth: int32(depth), Limit: int32(limit), After: after})
	if err != nil {
		return nil, false, err
	}
	if resp.GetMore() && len(resp.GetEntries()) == 0 {
		return nil, false, errProtocol("an empty page of a longer listing")
	}
	entries, err = translate(resp.GetEntries(), limit, fileInfo)
	return entries, resp.GetMore(), err
}

// WriteFile writes content up to its end. If content fails, nothing is written and its
// error is returned as it is.
func (c *Client) WriteFile(ctx context.Context, req *sandbox.WriteFileRequest, mode uint32, content io.Reader) (*sandbox.FileInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // breaks off an unfinished stream, which the agent then ignores
	stream := c.rpc.Write(ctx)
	err := stream.Send(&agentv1.WriteRequest{Header: &agentv1.WriteRequest_Header{
		Path: req.Path, Mode: mode, MakeParents: req.MakeParents, Append: req.Append, Exclusive: req.Exclusive, Owner: req.Owner,
	}})
	buf := make([]byte, chunkBytes)
	for err == nil {
		n, rerr := fill(content, buf)
		end := rerr == io.EOF
		if rerr != nil && !end {
			return nil, rerr
		}
		err = stream.Send(&agentv1.WriteRequest{Data: buf[:n], End: end})
		if end {
			break
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, mapError(ctx, err)
	}
	resp, err := stream.CloseAndReceive()
	if err != nil {
		return nil, mapError(ctx, err)
	}
	return fileInfo(resp.Msg.GetInfo())
}

// fill reads until buf is full or r ends. Unlike [io.ReadFull] it distinguishes the end
// of r, [io.EOF], from truncated content, for which the body of an HTTP request returns
// [io.ErrUnexpectedEOF].
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// EditFile replaces text in a file.
func (c *Client) EditFile(ctx context.Context, req *sandbox.EditFileRequest) (*sandbox.EditFileResult, error) {
	resp, err := call(ctx, fileTimeout, c.rpc.Edit, &agentv1.EditRequest{Path: req.Path, OldText: req.OldText, NewText: req.NewText, ReplaceAll: req.ReplaceAll})
	info, err := result(resp.GetInfo(), err)
	if err != nil {
		return nil, err
	}
	return &sandbox.EditFileResult{File: *info, Replacements: int(max(0, resp.GetReplacements()))}, nil
}

// MakeDir makes a directory and its missing parents.
func (c *Client) MakeDir(ctx context.Context, req *sandbox.MakeDirRequest, mode uint32) (*sandbox.FileInfo, error) {
	resp, err := call(ctx, callTimeout, c.rpc.MakeDir, &agentv1.MakeDirRequest{
		Path: req.Path, Mode: mode, Parents: true, Exclusive: req.Exclusive, Owner: req.Owner,
	})
	return result(resp.GetInfo(), err)
}

// MakeSymlink makes a symbolic link.
func (c *Client) MakeSymlink(ctx context.Context, req *sandbox.MakeSymlinkRequest) (*sandbox.FileInfo, error) {
	resp, err := call(ctx, callTimeout, c.rpc.MakeSymlink, &agentv1.MakeSymlinkRequest{
		Path: req.Path, Target: req.Target, Parents: req.MakeParents, Overwrite: req.Overwrite, Owner: req.Owner,
	})
	return result(resp.GetInfo(), err)
}

// MoveFile renames a file or directory.
func (c *Client) MoveFile(ctx context.Context, req *sandbox.MoveFileRequest) (*sandbox.FileInfo, error) {
	resp, err := call(ctx, fileTimeout, c.rpc.Move, &agentv1.MoveRequest{From: req.From, To: req.To, Overwrite: req.Overwrite})
	return result(resp.GetInfo(), err)
}

// DeleteFile deletes a file, or a directory; recursive deletes its content too.
func (c *Client) DeleteFile(ctx context.Context, p string, recursive bool) error {
	_, err := call(ctx, fileTimeout, c.rpc.Delete, &agentv1.DeleteRequest{Path: p, Recursive: recursive})
	return err
}

// WatchFiles passes changes to sink until ctx ends, which is not an error, or sink fails;
// that error is returned as it is.
func (c *Client) WatchFiles(ctx context.Context, req *sandbox.WatchRequest, sink func(sandbox.WatchEvent) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Watch(ctx, connect.NewRequest(&agentv1.WatchRequest{Path: req.Path, Recursive: req.Recursive}))
	if err != nil {
		return mapError(ctx, err)
	}
	defer func() {
		cancel()
		_ = stream.Close() // Err has reported its error
	}()
	for stream.Receive() {
		kind, known := watchKinds[stream.Msg().GetKind()]
		if !known {
			return errProtocol("an unknown change of a file")
		}
		if err := sink(sandbox.WatchEvent{Kind: kind, Path: clip.Valid(stream.Msg().GetPath(), maxPath)}); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := stream.Err(); err != nil {
		return mapError(ctx, err)
	}
	return errProtocol("a watch ended by itself")
}

var watchKinds = map[agentv1.WatchEvent_Kind]sandbox.WatchKind{
	agentv1.WatchEvent_KIND_READY:      sandbox.WatchReady,
	agentv1.WatchEvent_KIND_CREATED:    sandbox.WatchCreated,
	agentv1.WatchEvent_KIND_MODIFIED:   sandbox.WatchModified,
	agentv1.WatchEvent_KIND_DELETED:    sandbox.WatchDeleted,
	agentv1.WatchEvent_KIND_RENAMED:    sandbox.WatchRenamed,
	agentv1.WatchEvent_KIND_ATTRIBUTES: sandbox.WatchAttributes,
	agentv1.WatchEvent_KIND_OVERFLOW:   sandbox.WatchOverflow,
}

func result(w *agentv1.FileInfo, err error) (*sandbox.FileInfo, error) {
	if err != nil {
		return nil, err
	}
	return fileInfo(w)
}

var fileTypes = map[agentv1.FileType]sandbox.FileType{
	agentv1.FileType_FILE_TYPE_FILE:      sandbox.TypeFile,
	agentv1.FileType_FILE_TYPE_DIRECTORY: sandbox.TypeDirectory,
	agentv1.FileType_FILE_TYPE_SYMLINK:   sandbox.TypeSymlink,
}

func fileType(w agentv1.FileType) sandbox.FileType { return cmp.Or(fileTypes[w], sandbox.TypeOther) }

// fileInfo checks and translates a description of a file.
func fileInfo(w *agentv1.FileInfo) (*sandbox.FileInfo, error) {
	p := w.GetPath()
	if !validPath(p) {
		return nil, errProtocol("a file with an invalid path")
	}
	info := &sandbox.FileInfo{
		Path: p, Name: path.Base(p), Type: fileType(w.GetType()), Size: max(0, w.GetSize()), Mode: fmt.Sprintf("%04o", w.GetMode()&0o7777),
		ModifiedAt: time.Unix(0, w.GetModifiedUnixNano()).UTC(), UID: w.GetUid(), GID: w.GetGid(), SymlinkTarget: clip.Valid(w.GetSymlinkTarget(), maxPath),
	}
	info.Owner, info.Group = clean(w.GetOwner(), maxAccount), clean(w.GetGroup(), maxAccount)
	if l := w.GetLinkedFile(); l != nil && info.Type == sandbox.TypeSymlink {
		if !validPath(l.GetPath()) {
			return nil, errProtocol("a link to a file with an invalid path")
		}
		info.LinkedFile = &sandbox.LinkedFile{Path: l.GetPath(), Type: fileType(l.GetType()), Mode: fmt.Sprintf("%04o", l.GetMode()&0o7777)}
	}
	return info, nil
}

// validPath reports whether a file can have this path, which the agent may have made
// longer by replacing bytes that are not UTF-8.
func validPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) <= maxPath && strings.IndexByte(p, 0) < 0
}

const (
	// maxAccount bounds the name of a user or group from the agent.
	maxAccount = 256
	// maxPath bounds a path from the agent.
	maxPath = 4 * sandbox.MaxPathBytes
)

// Apply applies a stream of package layer to the sandbox's files. If it or content fails,
// no file is changed. The error of content is returned unchanged.
func (c *Client) Apply(ctx context.Context, content io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // breaks off an unfinished stream, which the agent then ignores
	stream := c.rpc.Apply(ctx)
	buf := make([]byte, chunkBytes)
	for {
		n, rerr := fill(content, buf)
		if rerr != nil && rerr != io.EOF {
			return rerr
		}
		if err := stream.Send(&agentv1.ApplyRequest{Data: buf[:n]}); err != nil || rerr == io.EOF {
			break // the answer has the error, if any
		}
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		return mapError(ctx, err)
	}
	return nil
}
