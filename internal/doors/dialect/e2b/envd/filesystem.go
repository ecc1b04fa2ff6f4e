package envd

import (
	"context"
	"path"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb"
	"github.com/cove-sh/cove/sandbox"
)

// maxEntries bounds the listing of a directory, which is one message.
const maxEntries = 50_000

// filesystem implements the service filesystem.Filesystem.
type filesystem struct{ *plane }

func (s filesystem) Stat(ctx context.Context, req *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	at, p, err := s.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := s.stat(ctx, at, p)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StatResponse{Entry: entry}), nil
}

// at returns the account of a call and resolves its path.
func (s filesystem) at(ctx context.Context, req connect.AnyRequest, p string) (*account, string, error) {
	at, err := s.accountOf(ctx, req.Header())
	if err != nil {
		return nil, "", err
	}
	p, err = at.resolve(ctx, p)
	return at, p, err
}

func (s filesystem) MakeDir(ctx context.Context, req *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	at, p, err := s.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := s.cfg.Service.MakeDir(ctx, at.box.ID, sandbox.MakeDirRequest{Path: p, Exclusive: true, Owner: at.user})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		if there, serr := s.stat(ctx, at, p); serr == nil && there.GetType() != pb.FileType_FILE_TYPE_DIRECTORY {
			return nil, fail(connect.CodeInvalidArgument, "path already exists but it is not a directory: %s", p)
		}
		return nil, fail(connect.CodeAlreadyExists, "directory already exists: %s", p)
	}
	if err != nil {
		return nil, s.explain(ctx, at.box.ID, err)
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: entryOf(info)}), nil
}

func (s filesystem) stat(ctx context.Context, at *account, p string) (*pb.EntryInfo, error) {
	info, err := s.cfg.Service.StatFile(ctx, at.box.ID, p)
	if err != nil {
		return nil, s.explain(ctx, at.box.ID, err)
	}
	return entryOf(info), nil
}

// needDir returns an error unless a path is a directory.
func (s filesystem) needDir(ctx context.Context, at *account, p string) error {
	there, err := s.stat(ctx, at, p)
	if err == nil && there.GetType() != pb.FileType_FILE_TYPE_DIRECTORY {
		return fail(connect.CodeInvalidArgument, "path is not a directory: %s", p)
	}
	return err
}

func (s filesystem) Move(ctx context.Context, req *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	at, from, err := s.at(ctx, req, req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := at.resolve(ctx, req.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	move := sandbox.MoveFileRequest{From: from, To: to, Overwrite: true}
	info, err := s.cfg.Service.MoveFile(ctx, at.box.ID, move)
	if notFound(err) {
		// Either the file or the target directory does not exist.
		if _, serr := s.cfg.Service.StatFile(ctx, at.box.ID, from); notFound(serr) && !s.gone(ctx, at.box.ID, serr) {
			return nil, fail(connect.CodeNotFound, "source file not found: %s", from)
		}
		if _, err = s.cfg.Service.MakeDir(ctx, at.box.ID, sandbox.MakeDirRequest{Path: path.Dir(to), Owner: at.user}); err == nil {
			info, err = s.cfg.Service.MoveFile(ctx, at.box.ID, move)
		}
	}
	if err != nil {
		return nil, s.explain(ctx, at.box.ID, err)
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: entryOf(info)}), nil
}

func (s filesystem) ListDir(ctx context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	at, p, err := s.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	depth := max(1, req.Msg.GetDepth())
	if depth > sandbox.MaxListDepth {
		return nil, fail(connect.CodeInvalidArgument, "a depth of %d is not supported; Cove lists at most %d levels at a time", depth, sandbox.MaxListDepth)
	}
	if err := s.needDir(ctx, at, p); err != nil {
		return nil, err
	}
	resp := &pb.ListDirResponse{}
	for info, err := range sandbox.Each(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
		return s.cfg.Service.ListFiles(ctx, at.box.ID, sandbox.ListFilesRequest{Path: p, Depth: int(depth), Page: page})
	}) {
		if err != nil {
			return nil, s.explain(ctx, at.box.ID, err)
		}
		if len(resp.Entries) == maxEntries {
			return nil, fail(connect.CodeInvalidArgument, "%s has more than %d entries; list a directory below it, or with a smaller depth", p, maxEntries)
		}
		resp.Entries = append(resp.Entries, entryOf(&info))
	}
	return connect.NewResponse(resp), nil
}

func (s filesystem) Remove(ctx context.Context, req *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	if req.Msg.GetPath() == "" {
		return nil, fail(connect.CodeInvalidArgument, "the path is empty; name what is to be removed")
	}
	at, p, err := s.at(ctx, req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = s.cfg.Service.DeleteFile(ctx, at.box.ID, p, true)
	if err != nil && (!notFound(err) || s.gone(ctx, at.box.ID, err)) {
		return nil, s.explain(ctx, at.box.ID, err)
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}
